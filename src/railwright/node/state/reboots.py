"""What takes effect at the next boot: of each such item the cells that stand otherwise than at the last one.

/run/railwright.reboot, `{item id: {cell: value at the last boot}}`. It is written before the item is, so that a run
that is killed loses no reboot that is owed; a boot empties /run, and then none is. An item that stands again as it
stood at the boot is owed none.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import run_file
from .item import Item, Node, Value
from .place import REBOOT


class Reboots:
    """The items that are not in force as they stand, with what is."""

    def __init__(self, node: Node) -> None:
        """Raises StateError for a file that is none of ours."""
        self._node = node
        self._kept = run_file.read(node, REBOOT)
        self.in_force: dict[str, Mapping[str, Value]] = dict(self._kept)

    def begin(self, item: Item, cells: Mapping[str, Value]) -> None:
        """The item is about to change from these cells."""
        self.in_force[item.id] = {**cells, **self.in_force.get(item.id, {})}

    def settle(self, item: Item, cells: Mapping[str, Value]) -> None:
        """The item has these cells now."""
        known = self.in_force.pop(item.id, {})
        # One that cannot be read now is owed as before.
        owed = {
            cell: value
            for cell, value in known.items()
            if cell not in cells or not item.same(cells[cell], value)
        }
        if owed:
            self.in_force[item.id] = owed

    def forget(self, item: Item) -> None:
        """The system itself tells that what was written is in force."""
        self.in_force.pop(item.id, None)

    def owed(self, item: Item) -> bool:
        return item.id in self.in_force

    def save(self) -> None:
        """Raises StateError."""
        if self.in_force != self._kept:
            run_file.save(self._node, REBOOT, self.in_force)
            self._kept = dict(self.in_force)
