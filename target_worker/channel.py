"""How the ranks find one another, and the channel that plans travel on: torch.distributed, gloo or NCCL."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

FRAME = 512  # words of a plan's first message: most plans need no second one
LOADING = timedelta(minutes=30)  # the longest that ranks wait for one another before the first step
_SIOCGIFADDR = 0x8915
_Store: Any = getattr(dist, "TCPStore")  # noqa: B009 - not exported for mypy


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands."""

    rank: int
    size: int
    num_here: int  # ranks on its machine
    host: str  # of rank 0
    port: int  # where rank 0 keeps the meeting point


def meeting_point(host: str, size: int) -> Any:
    """Opens one, on a free port."""
    return _Store(host, 0, size, is_master=True, wait_for_workers=False, timeout=LOADING)


def go_to(place: Place) -> Any:
    """The meeting point that rank 0 has opened."""
    return _Store(place.host, place.port, place.size, is_master=False, timeout=LOADING)


def join(place: Place, store: Any, device: str, own_address: str, limit_s: float) -> TorchChannel:
    """Makes this process rank `place.rank` and returns once all ranks are there.

    The model's collectives run in the default group. Plans have a group of their own, always on the CPU, in which
    waiting for longer than `limit_s` is an error.
    """
    interface = interface_of(own_address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=LOADING)
    return TorchChannel(dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s)))


def leave() -> None:
    """Ends this process's part in the group, if it has one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def smallest(number: int) -> int:
    """The least of what all ranks say; they wait here for one another."""
    numbers = torch.tensor([number])
    dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
    return int(numbers)


def interface_of(address: str) -> str:
    """The network interface that has an IPv4 address; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


class TorchChannel:
    """Words from rank 0 to the others as int64 tensors."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def send(self, words: Sequence[int]) -> None:
        """On rank 0."""
        filled = [len(words), *words]
        padding = [0] * (FRAME - len(filled))
        dist.broadcast(torch.tensor(filled[:FRAME] + padding), 0, self._group)
        if len(filled) > FRAME:
            dist.broadcast(torch.tensor(filled[FRAME:]), 0, self._group)

    def receive(self) -> list[int]:
        """On every other rank."""
        frame = torch.empty(FRAME, dtype=torch.int64)
        dist.broadcast(frame, 0, self._group)
        num_words, *words = frame.tolist()
        if num_words >= FRAME:
            rest = torch.empty(num_words + 1 - FRAME, dtype=torch.int64)
            dist.broadcast(rest, 0, self._group)
            words += rest.tolist()
        return words[:num_words]

    def confirm(self) -> None:
        """A broadcast is over for rank 0 when it is sent; a sum is over when all have taken part."""
        dist.all_reduce(torch.ones(1, dtype=torch.int64), group=self._group)
