"""The planner: which GPU uses which NIC, with proof, and everything that follows from it. Pure: no clock, no I/O."""

from .explain import explain
from .launch import FORMS as LAUNCH_FORMS
from .launch import gres_lines, launch_text, rankfile
from .planner import plan

__all__ = ["LAUNCH_FORMS", "explain", "gres_lines", "launch_text", "plan", "rankfile"]
