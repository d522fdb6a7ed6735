"""Where an output must end and what its text is, written a second time and slowly: from the ids alone, blind to blocks.

Also the identities that every answer keeps, whatever was asked.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.v1 import coordinator_pb2 as pb

END_TOKEN = pb.FINISH_REASON_END_TOKEN
STOP_STRING = pb.FINISH_REASON_STOP_STRING
MAX_TOKENS = pb.FINISH_REASON_MAX_TOKENS
CONTEXT_FULL = pb.FINISH_REASON_CONTEXT_FULL


@dataclass(frozen=True)
class Ended:
    """An output as it must look."""

    ids: list[int]
    text: str
    reason: int
    stop: str = ""


def text_of(words: Sequence[bytes], ids: Sequence[int]) -> str:
    """All whole characters of `ids`; a half one at the end is not text yet."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(words[token] for token in ids))


def ended(
    ids: Sequence[int],
    words: Sequence[bytes],
    max_tokens: int,
    ends: Collection[int] = (),
    stops: Sequence[str] = (),
    full: int = MAX_TOKENS,
) -> Ended:
    """The first token of `ids` that ends the output decides."""
    for length in range(1, len(ids) + 1):
        taken = list(ids[:length])
        if taken[-1] in ends:
            return Ended(taken, text_of(words, taken[:-1]), END_TOKEN)
        text = text_of(words, taken)
        found = min(((text.find(stop), order) for order, stop in enumerate(stops) if stop in text), default=None)
        if found is not None:
            return Ended(taken, text[: found[0]], STOP_STRING, stops[found[1]])
        if length == max_tokens:
            return Ended(taken, text, full)
    raise AssertionError(f"{list(ids)} is no whole output")


def check_chunks(chunks: Sequence[pb.GenerateChunk], num_prior: int = 0) -> None:
    """Offsets run on; the start is on the first chunk only, the finish on the last only."""
    position = num_prior
    for index, chunk in enumerate(chunks):
        assert chunk.offset == position or not chunk.token_ids
        position += len(chunk.token_ids)
        assert len(chunk.origins) == len(chunk.token_ids)
        assert pb.ORIGIN_UNSPECIFIED not in chunk.origins
        assert bool(chunk.target_fingerprint) == bool(chunk.prompt_token_ids) == (index == 0)
        assert chunk.HasField("finish") == (index == len(chunks) - 1)
        assert chunk.token_ids or chunk.HasField("finish")


def check_counts(chunks: Sequence[pb.GenerateChunk], num_prior: int = 0) -> None:
    """Rows 7, 8, 88, 89: what is counted is what was streamed, and nothing is counted before the cut."""
    finish: Any = chunks[-1].finish
    stats = finish.speculation
    origins = [origin for chunk in chunks for origin in chunk.origins]
    num_drafted = origins.count(pb.ORIGIN_DRAFT)
    per_position = list(stats.num_accepted_per_position)
    assert finish.num_output_tokens == num_prior + len(origins)
    assert stats.num_accepted_tokens == num_drafted == sum(per_position) <= stats.num_draft_tokens
    assert per_position == sorted(per_position, reverse=True)
    assert stats.num_verifies == sum(bool(chunk.token_ids) for chunk in chunks)
    truncated = stats.num_accepted_tokens + stats.num_verifies - len(origins)
    assert truncated in (0, 1)  # the target's own token behind the one that ended the output
    assert sum(stats.num_fallbacks.values()) <= stats.num_verifies
    assert stats.num_ahead_hits <= stats.num_verifies
