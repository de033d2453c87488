#!/bin/sh
# Run one step: say what it does, run it, say how long it took. Ends with the command's own exit status.
#
#   tools/step.sh SENTENCE COMMAND [ARGUMENT...]      show what the command prints
#   tools/step.sh -q SENTENCE COMMAND [ARGUMENT...]   show it only when the command fails
set -u

quiet=no
if [ "$1" = -q ]; then
    quiet=yes
    shift
fi
sentence=$1
shift

# Some tools colour a file too.
[ -t 1 ] || export NO_COLOR=1

printf '==> %s\n' "$sentence"
begun=$(date +%s)
status=0
if [ "$quiet" = yes ]; then
    log=$(mktemp) || exit 1
    trap 'rm -f "$log"' EXIT
    "$@" >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || cat "$log" >&2
else
    "$@" || status=$?
fi
took=$(($(date +%s) - begun))
if [ "$status" -eq 0 ]; then
    printf '    done in %s s\n' "$took"
else
    printf '    FAILED with exit status %s after %s s: %s\n' "$status" "$took" "$sentence" >&2
fi
exit "$status"
