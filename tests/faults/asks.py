"""What is asked for in a run, what must come out, and the asking itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache

from exactness import tiny_pair
from exactness.reference import sample
from harness.tiny import reference

from faults.history import History
from tandem.client import Acceptance, AsyncClient, Lookahead
from tandem.core.types import Rule, Sampling

PROMPTS = (b"hello world", b"The sky is", b"\x00\xff\x80", b"a", b"once upon a time there was a king")
NUM_IDS = 256
TEMPERATURE = 1.0
WITHIN_S = 30.0  # whatever dies: all time-outs of a cluster together are shorter


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: bytes = PROMPTS[0]
    num_tokens: int = 16
    rule: Rule = Rule.GREEDY
    seed: int = 1
    k: int = 3
    ahead: bool = True

    @property
    def output(self) -> tuple[int, ...] | None:
        """The very tokens, by transformers alone; None under rejection, which promises the law."""
        return None if self.rule is Rule.REJECTION else _output(replace(self, k=0, ahead=False))

    async def of(self, client: AsyncClient, history: History, name: str, output: Sequence[int] | None) -> None:
        """Asks, and notes what comes; an error is noted as the end. `output` is what must come."""
        sampled = self.rule is not Rule.GREEDY
        with history.asking(name, self.num_tokens, output, WITHIN_S):
            chunks = client.stream(
                token_ids=self.prompt,
                max_tokens=self.num_tokens,
                temperature=TEMPERATURE if sampled else 0.0,
                seed=self.seed,
                acceptance=Acceptance[self.rule.name] if sampled else None,
                num_draft_tokens=self.k,
                lookahead=Lookahead.CHAIN if self.ahead else Lookahead.OFF,
                request_id=name,
                timeout_s=WITHIN_S,
            )
            async with aclosing(chunks) as stream:
                async for chunk in stream:
                    history.came(name, chunk.offset, chunk.token_ids)


def random_ask(rng: random.Random) -> Ask:
    """From few prompts and seeds, so that references are computed once."""
    return Ask(
        prompt=rng.choice(PROMPTS),
        num_tokens=rng.choice((8, 16, 24)),
        rule=rng.choice((Rule.GREEDY, Rule.COUPLED, Rule.COUPLED, Rule.REJECTION)),
        seed=rng.randrange(3),
        k=rng.choice((0, 1, 2, 4, 8)),
        ahead=rng.random() < 0.5,
    )


@cache
def _output(ask: Ask) -> tuple[int, ...]:
    if ask.rule is Rule.GREEDY:
        return tuple(reference(ask.prompt, ask.num_tokens))
    return _longest_sample(ask.prompt, ask.seed)[: ask.num_tokens]


@cache
def _longest_sample(prompt: bytes, seed: int) -> tuple[int, ...]:
    tokens, _ = sample(_logits_behind, tuple(prompt), 24, Sampling(temperature=TEMPERATURE), seed, NUM_IDS)
    return tuple(tokens)


def _logits_behind(tokens: Sequence[int]) -> list[float]:
    row: list[float] = tiny_pair.logits("target", [tokens])[0, -1].tolist()
    return row
