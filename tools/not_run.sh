#!/bin/sh
# Say what a test run leaves out on this machine. Under the strict rule (RAILWRIGHT_STRICT_SKIPS=1) that is a failure:
# what did not run did not pass.
echo "Not run: $1."
[ "${RAILWRIGHT_STRICT_SKIPS:-}" != 1 ]
