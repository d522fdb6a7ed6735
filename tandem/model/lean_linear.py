"""Linear layers for few rows: weights of several fused into one, and packed for the CPU where that helps.

A plain float32 product doubles its cost from one row to two or four, which eats the gain of speculation; one with a
packed weight hardly grows up to sixteen rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tandem.model.sharded import is_shared, join_over_ranks, local, sum_over_ranks

Linear = Callable[[Tensor], Tensor]  # [rows, in] to [rows, out]

# Any: neither namespace is typed.
_mkl: Any = torch.ops.mkl
_mkldnn: Any = torch.ops.mkldnn
# Rows that the layouts are made for. Larger ones cost few rows nothing, smaller ones make a prompt up to twice as slow.
_MKL_ROWS = 128
_MKLDNN_ROWS = 32
_TRIED_ROWS = (1, 2, 3, 5, 6, 9, 16, 17, 33, 127, 128, 129, 300)


def kernels(dtype: torch.dtype, device: torch.device) -> str:
    """Which products are made there: "mkl-fp32", "mkldnn-fp32" or "linear"; they differ in the last bits."""
    if dtype != torch.float32 or device.type != "cpu":
        return "linear"
    if torch.backends.mkl.is_available() and mkl_packs_for_any_rows():
        return "mkl-fp32"
    return "mkldnn-fp32" if torch.backends.mkldnn.is_available() else "linear"


def fuse(parts: Sequence[nn.Linear]) -> Linear:
    """One linear whose outputs are those of `parts`, one after another; of shared ones, this rank's."""
    weights = [local(part.weight) for part in parts]
    bias = None if all(part.bias is None for part in parts) else torch.cat([_bias(part) for part in parts])
    return _linear(weights[0] if len(weights) == 1 else torch.cat(weights), bias)


def fuse_and_sum(part: nn.Linear) -> Linear:
    """`part`; where ranks share its inputs, their products are summed before the bias, which all have, is added."""
    if not is_shared(part):
        return fuse([part])
    product = _linear(local(part.weight), None)
    if part.bias is None:
        return lambda x: sum_over_ranks(product(x))
    bias = local(part.bias)
    return lambda x: sum_over_ranks(product(x)) + bias


def fuse_and_join(part: nn.Linear) -> Linear:
    """`part`; where ranks share its outputs, those of all ranks."""
    product, width = fuse([part]), part.weight.shape[0]
    return (lambda x: join_over_ranks(product(x), width)) if is_shared(part) else product


def _bias(part: nn.Linear) -> Tensor:
    """Zeros where it is missing."""
    weight = local(part.weight)
    return weight.new_zeros(len(weight)) if part.bias is None else local(part.bias)


def _linear(weight: Tensor, bias: Tensor | None) -> Linear:
    match kernels(weight.dtype, weight.device):
        case "mkl-fp32":
            return _mkl_linear(weight, bias)
        case "mkldnn-fp32":
            return _mkldnn_linear(weight, bias)
        case _:
            return lambda x: linear(x, weight, bias)


def _mkl_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = _mkl._mkl_reorder_linear_weight(weight, _MKL_ROWS)
    # Read where the row count is not the packed one: here both are said to be x's, so that its shape is all it gives.
    shape = weight.new_empty(1).expand(weight.shape)
    product: Callable[..., Tensor] = _mkl._mkl_linear.default
    return lambda x: product(x, packed, shape, bias, x.shape[0])


def _mkldnn_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = _mkldnn._reorder_linear_weight(weight, _MKLDNN_ROWS)
    product: Callable[..., Tensor] = _mkldnn._linear_pointwise.default
    return lambda x: product(x, packed, bias, "none", [], "")


@cache
@torch.inference_mode()
def mkl_packs_for_any_rows() -> bool:
    """Whether MKL's packed weights serve every row count: its manual promises only the one they were packed for."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 72, generator=generator)
    packed = _mkl_linear(weight, None)
    tried = [torch.randn(rows, 72, generator=generator) for rows in _TRIED_ROWS]
    return all(torch.allclose(packed(x), linear(x, weight), atol=1e-3) for x in tried)
