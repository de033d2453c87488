"""The planner: which GPU uses which NIC, with proof, and everything that follows from it. Pure: no clock, no I/O."""

from .explain import explain
from .launch import gres_lines, rankfile
from .planner import plan

__all__ = ["explain", "gres_lines", "plan", "rankfile"]
