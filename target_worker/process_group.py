"""torch.distributed for the ranks: their rendezvous, their process groups, and the channel that plans travel on."""

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

FRAME = 512  # numbers in a plan's first message: most plans need no second one
LOADING = timedelta(minutes=30)  # the longest that ranks wait for one another before the first step
_SIOCGIFADDR = 0x8915
_Store: Any = getattr(dist, "TCPStore")  # noqa: B009 - not exported for mypy


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one rank runs, and where it meets the others."""

    rank: int
    world_size: int
    local_world_size: int  # ranks on its machine
    address: str  # of its machine
    gpu: int | None  # as torch counts them in its process
    master_address: str  # rank 0's
    master_port: int  # of the store that rank 0 keeps


def open_store(address: str, world_size: int) -> Any:
    """Rank 0's key-value store, by which ranks find one another, on a free port."""
    return _Store(address, 0, world_size, is_master=True, wait_for_workers=False, timeout=LOADING)


def connect_store(placement: Placement) -> Any:
    """The store that rank 0 has opened."""
    address, port, size = placement.master_address, placement.master_port, placement.world_size
    return _Store(address, port, size, is_master=False, timeout=LOADING)


def join_process_group(placement: Placement, store: Any, limit_s: float) -> PlanChannel:
    """Makes this process rank `placement.rank` and returns once all ranks are there.

    The model's collectives run in the default group. Plans have a group of their own, always on the CPU, in which
    waiting for longer than `limit_s` is an error. Nobody destroys the groups: a process that leaves them ends.
    """
    interface = interface_of(placement.address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend = "gloo" if placement.gpu is None else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=placement.rank, world_size=placement.world_size, timeout=LOADING)
    return PlanChannel(dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s)))


def all_reduce_min(number: int) -> int:
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


class PlanChannel:
    """Carries encoded plans from rank 0 to the others as int64 tensors."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def send(self, numbers: Sequence[int]) -> None:
        """On rank 0."""
        filled = [len(numbers), *numbers]
        padding = [0] * (FRAME - len(filled))
        dist.broadcast(torch.tensor(filled[:FRAME] + padding), 0, self._group)
        if len(filled) > FRAME:
            dist.broadcast(torch.tensor(filled[FRAME:]), 0, self._group)

    def receive(self) -> list[int]:
        """On every other rank."""
        frame = torch.empty(FRAME, dtype=torch.int64)
        dist.broadcast(frame, 0, self._group)
        length, *numbers = frame.tolist()
        if length >= FRAME:
            rest = torch.empty(length + 1 - FRAME, dtype=torch.int64)
            dist.broadcast(rest, 0, self._group)
            numbers += rest.tolist()
        return numbers[:length]

    def barrier(self) -> None:
        """A broadcast is over for rank 0 when it is sent; this is over when all have come to it."""
        dist.all_reduce(torch.ones(1, dtype=torch.int64), group=self._group)
