"""A model that is ready to run, and what a worker says of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LoadedModel:
    module: nn.Module  # in eval mode: a transformers causal language model with attention "tandem", or a LeanDecoder
    name: str
    fingerprint: str  # of config, weights, dtype, kernels and tensor-parallel size; the same wherever the folder lies
    dtype: torch.dtype
    device: str
    context_length: int
    end_token_ids: frozenset[int]
    head_width: int  # columns of the logits
    num_pieces: int
    vocabulary_hash: str
    kv_bytes_per_token: int  # over all layers, of this rank
    row_ids: Tensor | None = None  # int64 [head_width]: the token each column of the logits stands for; None: its index
