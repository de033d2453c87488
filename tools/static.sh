#!/bin/sh
# Every check that runs nothing of ours: all of them, then the verdict.
set -u

if [ ! -x .venv/bin/ruff ]; then
    exec sh tools/not_run.sh "the static checks, which need Python 3.12 or 3.13"
fi
PATH=$PWD/.venv/bin:$PATH

failed=0
check() {
    sh tools/step.sh -q "$@" || failed=1
}

check "Check the Python (ruff)" ruff check .
check "Check its layout (ruff format)" ruff format --check .
check "Check the types (mypy)" python -m mypy
# mypy knows no Python below 3.10; the syntax of 3.9 is ruff's to hold, and a test runs it.
check "Check the types of what travels to nodes, as Python 3.10" \
    python -m mypy --python-version 3.10 src/railwright/node src/railwright/plan roles/node/library
check "Check the YAML (yamllint)" yamllint --strict .
check "Check the roles and playbooks (ansible-lint)" ansible-lint
check "Check that the roles' READMEs say what their specs say" python tools/role_docs.py --check

exit "$failed"
