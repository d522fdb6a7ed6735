"""Linear layers that the ranks of a group share, as torch's DTensor says of their weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter; all of one that is not shared."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: Tensor = tensor.to_local()
    return part


def is_shared(part: Any) -> bool:
    """Whether the weight of a linear layer is."""
    return isinstance(part.weight, DTensor)


def sum_over_ranks(product: Tensor) -> Tensor:
    """`product`, made that of all ranks, in place."""
    dist.all_reduce(product)
    return product


def join_over_ranks(product: Tensor, width: int) -> Tensor:
    """[rows, this rank's columns] to [rows, width]. All ranks but the last ones have as many columns as the first."""
    num_ranks = dist.get_world_size()
    columns = -(-width // num_ranks)
    parts = product.new_empty(num_ranks, len(product), columns)
    padded = torch.nn.functional.pad(product, (0, columns - product.shape[1]))
    dist.all_gather(list(parts), padded)
    return parts.transpose(0, 1).flatten(1)[:, :width]
