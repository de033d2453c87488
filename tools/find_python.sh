#!/bin/sh
# Print the path of a Python that really runs and can make a virtual environment.
#
#   tools/find_python.sh 3.12 3.13 3.11     the first of these versions that this machine has
#
# A name on PATH proves nothing: a version manager's shim answers "command not found", and Debian ships a Python
# without venv. So each candidate is run and asked. Exit 2, with one sentence, when none will do.
set -u

probe='import sys
version = "%d.%d" % sys.version_info[:2]
try:
    import ensurepip, ssl, venv
    print(version, getattr(sys, "_base_executable", sys.executable))
except ImportError:
    print(version, "incomplete")'

found=

# Run $1; on a fit for version $2 print its path and end. `found` gathers what did not fit.
try() {
    [ -x "$1" ] && [ ! -d "$1" ] || return 0
    answer=$("$1" -I -c "$probe" 2>/dev/null </dev/null) || return 0
    version=${answer%% *}
    path=${answer#* }
    if [ "$path" = incomplete ]; then
        version="$version without venv, ensurepip or ssl"
    elif [ "$version" = "$2" ]; then
        printf '%s\n' "$path"
        exit 0
    fi
    case ", $found, " in
        *", $version, "*) ;;
        *) found=${found:+$found, }$version ;;
    esac
}

# Every folder of PATH, not only the first hit: a real Python may lie behind a shim.
try_path() {
    rest=$PATH:
    while [ -n "$rest" ]; do
        folder=${rest%%:*}
        rest=${rest#*:}
        try "${folder:-.}/$1" "$2"
    done
}

pyenv_root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || true)}
[ -n "$pyenv_root" ] || pyenv_root=${HOME:-/nonexistent}/.pyenv

[ $# -gt 0 ] || set -- 3.12 3.13 3.11

for wanted in "$@"; do
    try_path "python$wanted" "$wanted"
    for python in "$pyenv_root"/versions/*/bin/python3; do
        try "$python" "$wanted"
    done
    for folder in /usr/bin /usr/local/bin /opt/homebrew/bin; do
        try "$folder/python$wanted" "$wanted"
    done
    try_path python3 "$wanted"
    if command -v uv >/dev/null 2>&1; then
        try "$(uv python find --system --no-python-downloads "$wanted" 2>/dev/null)" "$wanted"
    fi
done

choices=$(printf '%s, ' "$@")
choices=${choices%, }
[ $# -eq 1 ] || choices=$(printf '%s\n' "$@" | sort | awk '
    { line[NR] = $0 }
    END { for (i = 1; i <= NR; i++) printf "%s%s", line[i], i == NR ? "" : i == NR - 1 ? " or " : ", " }')
echo "Railwright needs Python $choices on this machine (found: ${found:-none}); install one, for example" \
    "\`apt-get install python3.11 python3.11-venv\`." >&2
exit 2
