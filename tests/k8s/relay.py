"""Packet delay between two network devices, for kernels without netem: relay.py DEVICE_A DEVICE_B DELAY_MS

Frames read on one device leave on the other after the delay. Offloads must be off on both ends, or frames are larger
than a device takes. Needs CAP_NET_RAW.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import signal
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
FRAME_BYTES = 65600


def open_device(name: str) -> socket.socket:
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    device.bind((name, 0))
    device.setblocking(False)
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    device.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    return device


class Relay:
    """Frames under way, each with the time at which it leaves."""

    def __init__(self, first: str, second: str, delay_s: float) -> None:
        one, other = open_device(first), open_device(second)
        self._far = {one: other, other: one}
        self._delay_s = delay_s
        self._under_way: list[tuple[float, int, socket.socket, bytes]] = []
        self._num_taken = 0
        self._poll = select.epoll()
        self._devices = {device.fileno(): device for device in self._far}
        for number in self._devices:
            self._poll.register(number, select.EPOLLIN)

    def turn(self) -> None:
        """Sends what is due, and takes what comes until the next one is."""
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, device, frame = heapq.heappop(self._under_way)
            with contextlib.suppress(OSError):  # a full queue drops frames, as a wire does
                device.send(frame)
        wait_s = max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else 0.2
        for number, _ in self._poll.poll(wait_s):
            self._take(self._devices[number])

    def _take(self, device: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while frame := device.recv(FRAME_BYTES):
                self._num_taken += 1
                leaves_s = time.monotonic() + self._delay_s
                heapq.heappush(self._under_way, (leaves_s, self._num_taken, self._far[device], frame))


def main(first: str, second: str, delay_ms: str) -> None:
    relay, running = Relay(first, second, float(delay_ms) / 1e3), [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    while running:
        relay.turn()


if __name__ == "__main__":
    main(*sys.argv[1:])
