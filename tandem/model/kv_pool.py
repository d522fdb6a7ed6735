"""The keys and values of all sessions, in one pool per layer, and how large that pool may be."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

MAX_DEFAULT_KV_TOKENS = 65_536
MEMORY_SHARE = 0.25


class KVPool:
    """Two tensors per layer, [num_slots, num_kv_heads, head_dim], made when the layer first writes.

    Their shapes and dtype are those of the tensors that come, so that every architecture and every tensor-parallel rank
    gets what it needs. Who owns which slot is the engine's business.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Puts `key` and `value`, each [num_kv_heads, rows, head_dim], into `slots`, int64 [rows].

        Returns the layer's whole pools. Raises IndexError on a slot outside the pool.
        """
        pools = self._layers.get(layer)
        if pools is None:
            pools = self._layers[layer] = (self._empty_like(key), self._empty_like(value))
        pools[0].index_copy_(0, slots, key.transpose(0, 1))
        pools[1].index_copy_(0, slots, value.transpose(0, 1))
        return pools

    @property
    def layers(self) -> frozenset[int]:
        """Indices of the layers that have written."""
        return frozenset(self._layers)

    @property
    def bytes_per_token(self) -> int:
        """Memory of one slot over all layers that have written; 0 before the first step."""
        tensors = [tensor for pools in self._layers.values() for tensor in pools]
        return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)

    def _empty_like(self, rows: Tensor) -> Tensor:
        return rows.new_empty(self.num_slots, rows.shape[0], rows.shape[2])


def default_kv_tokens(bytes_per_token: int, device: str = "cpu") -> int:
    """A modest share of the memory that is free now, in tokens: at least 1, at most MAX_DEFAULT_KV_TOKENS."""
    affordable = int(_free_bytes(device) * MEMORY_SHARE) // max(bytes_per_token, 1)
    return max(1, min(affordable, MAX_DEFAULT_KV_TOKENS))


def _free_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    return min(_free_on_machine(), _free_in_container())


def _free_on_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _free_in_container(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What the memory limit of this control group leaves: /proc/meminfo does not know of it."""
    try:
        limit = int((folder / "memory.max").read_text())
        return max(0, limit - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or the limit is "max"
        return 1 << 62
