#!/bin/sh
# Install the system tools that tests ask for a second opinion, where this machine lets us; else say what stays skipped.
#
# It never fails: without the tool a test is skipped, and skipped tests have their own rule (tests/allowed_skips.txt).
set -u

any_of() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null 2>&1 && return 0
    done
    return 1
}

packages=
unproven=
while IFS='|' read -r tools package proof; do
    # shellcheck disable=SC2086 # one tool a word
    any_of $tools && continue
    packages="$packages $package"
    unproven="$unproven${unproven:+, }$proof ($package)"
done <<'TABLE'
lspci|pciutils|what lspci reads of a machine
lstopo-no-graphics lstopo|hwloc-nox|what hwloc says of a machine
strace|strace|what a run writes
dpkg-shlibdeps|build-essential|how NCCL and its packages are made
chromium chromium-browser google-chrome google-chrome-stable|chromium|how the report page shows in a browser
TABLE

[ -n "$packages" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Not installed here, so their tests are skipped: $unproven."
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2016,SC2086 # one package a word
sh tools/step.sh -q "Install$packages" \
    sh -c 'apt-get update && exec apt-get install --yes --no-install-recommends "$@"' sh $packages ||
    echo "apt-get could not install them, so their tests are skipped: $unproven."
