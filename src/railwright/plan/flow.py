"""Integral flows on small networks: maximum flow, minimum cut and minimum cost, in whole numbers.

A node of eight GPUs has about a hundred network nodes, so plain augmenting paths are both exact and fast enough.
"""

from __future__ import annotations

from collections import deque
from typing import Optional

# More units than any network here can carry: the capacity of an arc that limits nothing.
UNLIMITED = 1 << 60


class Network:
    """A directed network. Arc `i` and arc `i ^ 1` are each other's residual."""

    def __init__(self, nodes: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int] = []
        self.cost: list[int] = []

    def arc(self, tail: int, head: int, capacity: int, cost: int = 0) -> int:
        """Add an arc and return its number. Costs are not negative."""
        number = len(self.head)
        self.head += (head, tail)
        self.room += (capacity, 0)
        self.cost += (cost, -cost)
        self.out[tail].append(number)
        self.out[head].append(number + 1)
        return number

    def carried(self, arc: int) -> int:
        """Units that the arc carries now."""
        return self.room[arc ^ 1]


def max_flow(network: Network, source: int, sink: int) -> int:
    """Send as many units as there is room for; returns how many. Shortest augmenting paths (Edmonds and Karp)."""
    sent = 0
    while True:
        entered = _breadth_first(network, source, sink)
        if entered[sink] is None:
            return sent
        path = _path_to(network, entered, source, sink)
        units = min(network.room[arc] for arc in path)
        for arc in path:
            network.room[arc] -= units
            network.room[arc ^ 1] += units
        sent += units


def source_side(network: Network, source: int) -> set[int]:
    """Nodes that residual paths still reach from the source: after `max_flow`, one side of a minimum cut."""
    entered = _breadth_first(network, source, -1)
    return {node for node, arc in enumerate(entered) if arc is not None} | {source}


def min_cost_flow(network: Network, source: int, sink: int, amount: int) -> Optional[int]:
    """Send exactly `amount` units at the least cost; returns the cost, or None when they do not fit."""
    total = 0
    for _ in range(amount):
        distance, entered = _cheapest(network, source)
        if entered[sink] is None:
            return None
        for arc in _path_to(network, entered, source, sink):
            network.room[arc] -= 1
            network.room[arc ^ 1] += 1
        total += distance[sink]
    return total


def _breadth_first(network: Network, source: int, sink: int) -> list[Optional[int]]:
    """For each node reached the arc that entered it."""
    entered: list[Optional[int]] = [None] * len(network.out)
    head, room = network.head, network.room
    queue = deque([source])
    while queue:
        for arc in network.out[queue.popleft()]:
            node = head[arc]
            if room[arc] > 0 and entered[node] is None and node != source:
                entered[node] = arc
                if node == sink:
                    return entered
                queue.append(node)
    return entered


def _cheapest(network: Network, source: int) -> tuple[list[int], list[Optional[int]]]:
    """Cheapest residual distance of each node and the arc that entered it (Bellman and Ford, with a queue)."""
    head, room, cost, out = network.head, network.room, network.cost, network.out
    far = 1 << 200
    distance = [far] * len(out)
    entered: list[Optional[int]] = [None] * len(out)
    distance[source] = 0
    queue, waiting = deque([source]), {source}
    while queue:
        tail = queue.popleft()
        waiting.discard(tail)
        reached = distance[tail]
        for arc in out[tail]:
            node = head[arc]
            if room[arc] > 0 and reached + cost[arc] < distance[node]:
                distance[node] = reached + cost[arc]
                entered[node] = arc
                if node not in waiting:
                    waiting.add(node)
                    queue.append(node)
    return distance, entered


def _path_to(network: Network, entered: list[Optional[int]], source: int, sink: int) -> list[int]:
    path = []
    node = sink
    while node != source:
        arc = entered[node]
        if arc is None:  # the caller has seen that the sink was reached
            raise AssertionError("no path")
        path.append(arc)
        node = network.head[arc ^ 1]
    return path
