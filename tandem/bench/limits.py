"""What the machine can do at most, measured where and when it is to be held against something."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

STREAM_BYTES = 256 << 20
MATRIX_SIZE = 1536
# Of a GPU's, so that launching is nothing beside the work, and its cache nothing beside the stream.
CUDA_STREAM_BYTES = 4 << 30
CUDA_MATRIX_SIZE = 8192
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_per_s: float  # of a stream from memory
    flops_per_s: float  # of a large matrix product

    def seconds(self, num_bytes: float, num_flops: float) -> float:
        """The least time for work that moves and computes so much, if the two overlap."""
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops_per_s)


def measure_limits(dtype: torch.dtype, device: str) -> Limits:
    """Bandwidth as the better of reading and copying a long stream, arithmetic from a square product; the best of
    several.
    """
    on_gpu = device.startswith("cuda")
    num_bytes, size = (CUDA_STREAM_BYTES, CUDA_MATRIX_SIZE) if on_gpu else (STREAM_BYTES, MATRIX_SIZE)
    stream = torch.ones(num_bytes // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(stream)
    matrix = torch.rand(size, size, dtype=dtype, device=device)  # products of ones alone run at a higher clock
    reading = num_bytes / _best(stream.sum, device)
    copying = 2 * num_bytes / _best(lambda: target.copy_(stream), device)
    return Limits(max(reading, copying), 2 * size**3 / _best(lambda: matrix @ matrix, device))


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds until `work` is done, on whichever device."""
    wait(device)
    before = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - before


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _best(work: Callable[[], object], device: str) -> float:
    work()
    return min(timed(work, device) for _ in range(REPEATS))
