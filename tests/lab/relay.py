"""relay.py A B SECONDS: carries each frame from one device to the other, that much later, both ways. Says "ready".

It stands between a port and its switch. What the kernel has not filled in yet (checksums of frames that never left the
machine) it must not see: the sender's offload is switched off first.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from collections import deque

ALL_PROTOCOLS = 3  # ETH_P_ALL
OUTGOING = 4  # PACKET_OUTGOING: our own frames come by too


def main(first: str, second: str, seconds: float) -> None:
    ends = {
        name: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        for name in (first, second)
    }
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    ready = selectors.DefaultSelector()
    for name, end in ends.items():
        end.bind((name, 0))
        other = ends[second if name == first else first]
        ready.register(end, selectors.EVENT_READ, other)
        subprocess.run(["ethtool", "-K", name, "gro", "off", "tx", "off"], check=False, capture_output=True)
    print("ready", flush=True)
    while True:
        pause = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        for key, _ in ready.select(pause):
            assert isinstance(key.fileobj, socket.socket)
            frame, (_, _, kind, *_) = key.fileobj.recvfrom(65536)
            if kind != OUTGOING:
                waiting.append((time.monotonic() + seconds, key.data, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            end.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
