#!/bin/sh
# Bring a virtual environment up to a lock file, or do nothing when it is there already.
#
#   tools/venv.sh VENV LOCK VERSION...
#
# VERSION: the Pythons that will do, best first. Every package is checked against its hash in LOCK; the project itself
# is installed in place. What an environment holds stands in VENV/railwright-locks, a line a lock. Exit 2 when no
# Python fits.
set -eu

venv=$1
lock=$2
shift 2
held=$venv/railwright-locks

# An environment serves only the place where it was made.
locks=$({ cat constraints.txt constraints-runtime.txt && pwd -P; } | cksum | tr ' ' -)
project=$(cksum <pyproject.toml | tr ' ' -)

holds() {
    grep -q "^$1$" "$held" 2>/dev/null && "$venv/bin/python" -c 'import railwright' 2>/dev/null
}

# constraints.txt holds everything that constraints-runtime.txt does.
if holds "$lock $locks $project" || holds "constraints.txt $locks $project"; then
    exit 0
fi

# Packages that an older lock left behind would be found by accident, so a changed lock begins afresh.
if ! holds ".* $locks .*"; then
    python=$(sh tools/find_python.sh "$@")
    sh tools/step.sh -q "Make $venv with $("$python" -V)" "$python" -m venv --clear "$venv"
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# The lock is complete, so pip resolves nothing; a wheel is the only form that builds nothing.
sh tools/step.sh -q "Install the packages of $lock" \
    "$venv/bin/python" -m pip install --require-hashes --no-deps --only-binary :all: -r "$lock"
sh tools/step.sh -q "Install Railwright itself, in place" \
    "$venv/bin/python" -m pip install --no-index --no-deps --no-build-isolation --editable .
"$venv/bin/python" -m pip check >/dev/null || "$venv/bin/python" -m pip check >&2
echo "$lock $locks $project" >>"$held"
