"""Layer 3: where each token of a text falls in the target's law, whatever the context: uniform and independent.

For a token t behind a context, u = F(t-) + v p(t) with v uniform is itself uniform on (0, 1) if t follows p, for any
order of the tokens behind F. Ordered by p / q, what a draft is too fond of comes first: that is where wrong rules show.
"""

from __future__ import annotations

import asyncio

import torch
from harness.virtual_time import run_virtual
from torch import Tensor

from exactness import tiny_pair
from exactness.drive import new_call, run
from exactness.tails import require_uncorrelated, require_uniform
from tandem.core.ledger import Ledger
from tandem.core.load import Pace
from tandem.core.pacing import Steady
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Rule, Sampling

LENGTH = 64
_AT_ONCE = 30
_NUM_PROMPT_TOKENS = 6


def check(num_sequences: int) -> None:
    """Kolmogorov-Smirnov and 20 bins on all tokens, and no correlation between neighbours."""
    values = transform(texts(num_sequences))
    require_uniform(values.flatten(), "PIT")
    require_uncorrelated(values[:, :-1].flatten(), values[:, 1:].flatten(), "PIT of neighbours")


def texts(num_sequences: int) -> list[list[int]]:
    """Prompts with sampled outputs behind them; many sequences share each step of the engines."""

    async def all_of_them() -> list[list[int]]:
        found = list[list[int]]()
        async with tiny_pair.workers().running() as workers:
            for first in range(0, num_sequences, _AT_ONCE):
                seeds = range(first, min(first + _AT_ONCE, num_sequences))
                found += await asyncio.gather(*[_text(workers, seed) for seed in seeds])
        return found

    return run_virtual(all_of_them())


async def _text(workers: object, seed: int) -> list[int]:
    """Blocks of three on even seeds, of six on odd ones; every third sequence in turn."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(256, (_NUM_PROMPT_TOKENS,), generator=generator).tolist()
    ledger = Ledger(prompt, Stopping(StopRules(LENGTH), lambda tokens: ""))
    call = new_call(Rule.REJECTION, Sampling(), seed, len(prompt) + LENGTH)
    pace = Pace(3 + 3 * (seed % 2), ahead=seed % 3 > 0)
    target, draft = workers.target.exchange, workers.draft.exchange  # type: ignore[attr-defined]
    commits = await run(ledger, call, target, draft, Steady(pace), LENGTH, draft_wait_s=0.5)
    return prompt + [token for commit in commits for token in commit.tokens]


def transform(sequences: list[list[int]]) -> Tensor:
    """[sequences, LENGTH] in (0, 1), from laws that transformers computes over whole texts."""
    p, q = (torch.softmax(_behind(name, sequences), dim=-1) for name in ("target", "near"))
    tokens = torch.tensor(sequences)[:, _NUM_PROMPT_TOKENS:]
    ratio = p / q
    own_ratio = ratio.gather(-1, tokens[..., None])
    below = p.where(ratio < own_ratio, 0.0).sum(dim=-1)
    own = p.gather(-1, tokens[..., None])[..., 0]
    share = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return below + share * own


def _behind(name: str, sequences: list[list[int]]) -> Tensor:
    """Logits that each output token was drawn from."""
    parts = [tiny_pair.logits(name, sequences[first : first + 50]) for first in range(0, len(sequences), 50)]
    return torch.cat(parts)[:, _NUM_PROMPT_TOKENS - 1 : -1]
