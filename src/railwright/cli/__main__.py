"""`python -m railwright.cli`: the command without its console script."""

import sys

from . import main

sys.exit(main())
