"""The joint law of five tokens through the real decode loop, and that each token index comes out once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

from exactness import laws
from exactness.drive import PROMPT, Pair, Sequence_, Way
from exactness.tails import require, require_law
from tandem.core.types import Rule

CHUNK = 500

IN_TURN = Way(pipelined=False, max_tokens=5)
PIPELINED = Way()
COUPLED = Way(Rule.COUPLED)
LOSSY = 0.2  # of all calls do not get all of their answer
WAYS = {
    "rejection, in turn": Way(pipelined=False, misfortune=LOSSY, max_tokens=5),
    "rejection, pipelined": Way(misfortune=LOSSY),
    "rejection, looked up": Way(looks_up=True, misfortune=LOSSY),
    "coupled, looked up": Way(Rule.COUPLED, pipelined=False, looks_up=True, misfortune=LOSSY, max_tokens=5),
    "coupled, in turn": Way(Rule.COUPLED, pipelined=False, misfortune=LOSSY, max_tokens=5),
    "coupled, pipelined": Way(Rule.COUPLED, misfortune=LOSSY),
}


def outputs(way: Way, seeds: Sequence[int]) -> list[list[int]]:
    """The first tokens of one sequence for each seed."""
    generated = Pair(laws.TARGET, laws.DRAFT).generate(way, seeds)
    return [sequence.output[: way.num_tokens] for sequence in generated]


def spread_outputs(pool: Executor, way: Way, n: int) -> Tensor:
    """`outputs` of seeds 0 to n - 1, over the processes of `pool`."""
    chunks = [range(first, min(first + CHUNK, n)) for first in range(0, n, CHUNK)]
    parts = pool.map(outputs, [way] * len(chunks), chunks)
    return torch.tensor([output for part in parts for output in part])


def require_joint_law(samples: Tensor) -> None:
    """t1, each (t_i, t_i+1) and (t1, t2, t3) of `samples` [N, L] follow the target's chain; ALPHA shared by all."""
    chain, alone = laws.softmax(laws.TARGET), laws.positions(laws.TARGET, PROMPT[-1], samples.shape[1])
    pairs = [law[:, None] * chain for law in alone[:-1]]
    num_tests = len(pairs) + 2
    require_law(_table(samples[:, :1]), alone[0], "t1", num_tests)
    for index, law in enumerate(pairs):
        require_law(_table(samples[:, index : index + 2]), law, f"t{index + 1}, t{index + 2}", num_tests)
    require_law(_table(samples[:, :3]), pairs[0][:, :, None] * chain, "t1, t2, t3", num_tests)


def check_in_steps(way: Way, sizes: Sequence[int], draft: Tensor = laws.DRAFT) -> None:
    """Looks after each of `sizes` sequences, so that a grossly wrong rule dies early."""
    pair, samples = Pair(laws.TARGET, draft), list[list[int]]()
    for size in sizes:
        generated = pair.generate(way, range(len(samples), size))
        samples += [sequence.output[: way.num_tokens] for sequence in generated]
        require_joint_law(torch.tensor(samples))


def check_offsets(n: int = 150) -> None:
    """Each token index once, in order, and the stream is what the ledger holds; calls lost and late by coin."""
    for pipelined in (False, True):
        way = Way(pipelined=pipelined, misfortune=LOSSY, num_tokens=12, max_tokens=12)
        for sequence in Pair(laws.TARGET, laws.DRAFT).generate(way, range(n)):
            _require_whole(sequence, way.max_tokens)


def _require_whole(sequence: Sequence_, num_tokens: int) -> None:
    num_streamed = 0
    for commit in sequence.commits:
        require(commit.offset == num_streamed, f"token {commit.offset} comes where {num_streamed} must")
        require(len(commit.origins) == len(commit.tokens), "an origin for each token")
        num_streamed += len(commit.tokens)
    assert sequence.ledger is not None
    committed = sequence.ledger.tokens[len(PROMPT) :]
    require(sequence.output == committed, f"streamed {sequence.output}, committed {committed}")
    require(num_streamed == num_tokens, f"{num_streamed} tokens, not {num_tokens}")


def _table(samples: Tensor) -> Tensor:
    """Counts of each tuple: [V] * columns."""
    columns = samples.shape[1]
    index = (samples * laws.NUM_IDS ** torch.arange(columns - 1, -1, -1)).sum(dim=1)
    counts = torch.bincount(index, minlength=laws.NUM_IDS**columns)
    return counts.view([laws.NUM_IDS] * columns)
