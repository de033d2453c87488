"""Fake nodes: machines that Ansible can work on, made of a folder each.

A node's folder `tree` is its root: a recorded /sys, /proc and /etc, and whatever a node writes. Its "Python" is a
script that enters the tree in namespaces of its own and runs a plain Python there. Of this machine only the programs
are seen, read only, and `systemctl` is a stand-in that keeps its state in the tree. So production code runs as on a
node, no root is needed where user namespaces are allowed, and a look at the tree tells all that was written.
"""

from .errors import FakeNodeError
from .node import FakeNode, create, inventory
from .snapshot import Entry, changes, snapshot

__all__ = ["Entry", "FakeNode", "FakeNodeError", "changes", "create", "inventory", "snapshot"]
