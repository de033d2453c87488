"""The lab: real systemd hosts of Debian 12 and 13 whose hardware is a recorded machine, on one machine without a GPU.

`python -m tests.lab --help` tells the verbs; README.md tells what a lab node is made of, what it shows and what not.
"""

from .errors import LabError

__all__ = ["LabError"]
