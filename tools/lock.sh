#!/bin/sh
# Write constraints.txt (everything), constraints-runtime.txt (what running the playbooks needs) and constraints-image.txt
# (the tool for an image's bills of materials, for an environment of its own): one version of each package for each row,
# with the hash of every file that its index offers, so that Linux and macOS install the same.
#
# Versions that are locked stay, unless UPGRADE is set. No index is named in the files: pip asks the one it knows.
set -eu

if command -v uv >/dev/null 2>&1; then
    uv=uv
else
    uv=.cache/uv/bin/uv
    [ -x "$uv" ] || {
        sh tools/step.sh -q "Make an environment for uv" "$(sh tools/find_python.sh 3.12 3.13 3.11)" -m venv .cache/uv
        sh tools/step.sh -q "Install uv" .cache/uv/bin/python -m pip install uv
    }
fi

lock() {
    "$uv" pip compile --quiet --universal --python-version 3.11 --no-build --generate-hashes \
        --no-emit-index-url --custom-compile-command "make constraints" "$@"
}

of_project() {
    lock pyproject.toml --extra ansible "$@"
}

of_project --group dev ${UPGRADE:+--upgrade} --output-file constraints.txt
of_project --group build --constraint constraints.txt --upgrade --output-file constraints-runtime.txt
lock --group pyproject.toml:image ${UPGRADE:+--upgrade} --output-file constraints-image.txt

if grep -n '://' constraints.txt constraints-runtime.txt constraints-image.txt >&2; then
    echo "A lock file names a host (above): find out which setting of uv put it there." >&2
    exit 1
fi
