"""A trial run at load: does this architecture keep all its state in the KV pool, and only there?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ModelError
from tandem.model.kv_pool import KVPool
from tandem.model.runner import run_step

LONG, SHORT = (1, 2, 3, 4, 5), (3, 1)
BLOCK_SIZE = 8


@dataclass(frozen=True, slots=True)
class Findings:
    kv_bytes_per_token: int
    head_width: int
    logits: Tensor  # [2, head_width] of the trial's rows, by which two ways to run a model can be compared


def probe(module: nn.Module, num_layers: int) -> Findings:
    """Runs two short sequences in one step, then each alone, one of them in two steps.

    Raises ModelError where the two ways disagree: the model then carries state past the pool (recurrence, convolution),
    ignores positions, or lets sequences of one batch see one another.
    """
    together, apart = KVPool(2 * BLOCK_SIZE), KVPool(2 * BLOCK_SIZE)
    try:
        ragged = run_step(module, together, BLOCK_SIZE, StepPlan((_rows(LONG, 0, 0), _rows(SHORT, 0, 1))))
        stepped = _apart(module, apart)
    except ModelError:
        raise
    except Exception as error:  # whatever an unfit architecture trips over
        raise ModelError(f"{type(module).__name__} does not run on a KV pool: {error}") from error
    if together.layers != frozenset(range(num_layers)):
        raise ModelError(f"{type(module).__name__}: not every layer is attention that runs on a KV pool")
    if not agree(ragged, stepped):
        raise ModelError(f"{type(module).__name__} keeps state outside its KV, or mixes the sequences of a batch")
    return Findings(together.bytes_per_token, ragged.shape[1], ragged)


def _apart(module: nn.Module, pool: KVPool) -> Tensor:
    """The same two rows of logits, from steps of one sequence each, the long one's cut in two."""
    half = len(LONG) // 2
    steps = (_rows(LONG[:half], 0, 0), _rows(LONG[half:], half, 0), _rows(SHORT, 0, 1))
    logits = [run_step(module, pool, BLOCK_SIZE, StepPlan((step,))) for step in steps]
    return torch.cat(logits[1:])


def _rows(tokens: tuple[int, ...], start: int, block: int) -> SequencePlan:
    return SequencePlan(tokens, start, (block,), 1)


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of logits are the same but for rounding."""
    tolerance = 1e-3 if a.dtype in (torch.float32, torch.float64) else 0.1
    return bool((a - b).float().norm() <= tolerance * b.float().norm())
