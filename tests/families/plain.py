"""What a request must say, token by token, without draft, cache or batch: the reference sampler on a model's logits."""

from __future__ import annotations

import math

from exactness.reference import Row, race_winner, scored, truncated
from harness.scripted import LogitsOf

from families.desk import Ask
from families.models import VOCAB
from tandem.core.noise import Purpose, noise_key
from tandem.core.types import Rule, Sampling
from tandem.rpc.codec.calls import sampling_from_pb


def sampling_of(ask: Ask) -> Sampling:
    """As it arrives: its floats have 32 bits."""
    return sampling_from_pb(ask.message().sampling)


def scores_behind(model: LogitsOf, ask: Ask, output: list[int], num_pieces: int = VOCAB) -> Row:
    """Logits after penalties, bias, bans and temperature, of the token behind `output`."""
    logits = model([*ask.prompt, *output]).tolist()
    return scored(logits, sampling_of(ask), ask.prompt, output, num_pieces, ask.ends, ask.min_tokens)


def plain(model: LogitsOf, ask: Ask, num_pieces: int = VOCAB) -> list[int]:
    """The text under greedy and coupled, up to max_tokens or the first end token."""
    output: list[int] = []
    while len(output) < (ask.max_tokens or 0) and not (output and output[-1] in ask.ends):
        row = scores_behind(model, ask, output, num_pieces)
        key = noise_key(ask.seed, 0, len(ask.prompt) + len(output), Purpose.COUPLED)
        greedy = sampling_of(ask).is_greedy or ask.rule is Rule.GREEDY
        output.append(row.index(max(row)) if greedy else race_winner(truncated(row, sampling_of(ask)), key))
    return output


def supports(model: LogitsOf, ask: Ask, output: list[int], num_pieces: int = VOCAB) -> list[set[int]]:
    """The ids that could come at each position of `output`."""
    rows = [scores_behind(model, ask, output[:index], num_pieces) for index in range(len(output))]
    weights = [truncated(row, sampling_of(ask)) for row in rows]
    return [{token for token, weight in enumerate(row) if weight > 0} for row in weights]


def log_softmax(row: Row) -> Row:
    largest = max(row)
    norm = largest + math.log(sum(math.exp(score - largest) for score in row))
    return [score - norm for score in row]
