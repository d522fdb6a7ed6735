"""What a verify of few rows costs on a device, in turn with and without recorded steps, against memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tandem.bench.limits import Limits, timed
from tandem.bench.random_models import RandomModel, Shape, random_model
from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.fixed_shapes import Record
from tandem.model.runner import Runner

EIGHT_B: Shape = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
ROWS = range(1, 9)
CONTEXTS = (100, 2000)
REPEATS = 25
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Point:
    """One sequence of `context` cached tokens, fed `rows` more."""

    context: int
    rows: int
    eager_s: tuple[float, ...]
    recorded_s: tuple[float, ...]  # in turn with those of `eager_s`
    limit_s: float  # for reading each weight and the context once, at the bandwidth measured beside
    largest_difference: float  # between the two's logits, as a share of the largest


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one context, one row first."""

    points: tuple[Point, ...]


def run_again(work: Callable[[], None]) -> Callable[[], None]:
    """A recorder for devices that have none: replaying is running again, over the same buffers."""
    work()
    return work


def measure_rows(
    shape: Shape,
    dtype: torch.dtype,
    device: str,
    record: Record,
    limits: Limits,
    contexts: Sequence[int] = CONTEXTS,
    repeats: int = REPEATS,
) -> Iterator[Curve]:
    """Of a model of random weights, a curve for each context."""
    made = random_model(shape, dtype, device)
    num_blocks = -(-(max(contexts) + len(ROWS)) // _BLOCK_SIZE)
    runners = [Runner(made.model, num_blocks, _BLOCK_SIZE, each) for each in (None, record)]
    for context in contexts:
        prompt = StepPlan((SequencePlan(_tokens(made, context), 0, tuple(range(num_blocks)), 1),))
        for runner in runners:
            runner.forward(prompt)
        yield Curve(tuple(_measure(made, runners, context, rows, limits, repeats) for rows in ROWS))


def _measure(
    made: RandomModel, runners: Sequence[Runner], context: int, rows: int, limits: Limits, repeats: int
) -> Point:
    num_blocks, device = -(-(context + rows) // _BLOCK_SIZE), made.model.device
    plan = StepPlan((SequencePlan(_tokens(made, rows), context, tuple(range(num_blocks)), rows),))
    eager, recorded = (runner.forward(plan).float() for runner in runners)
    pairs = [[timed(lambda: runner.forward(plan), device) for runner in runners] for _ in range(repeats)]  # noqa: B023
    return Point(
        context,
        rows,
        tuple(pair[0] for pair in pairs),
        tuple(pair[1] for pair in pairs),
        (made.weight_bytes + context * made.model.kv_bytes_per_token) / limits.bytes_per_s,
        float((eager - recorded).abs().max() / eager.abs().max()),
    )


def _tokens(made: RandomModel, count: int) -> tuple[int, ...]:
    """Spread over the vocabulary."""
    return tuple((7919 * index + 13) % made.model.num_pieces for index in range(count))
