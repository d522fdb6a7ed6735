"""What one generation came to, and the numbers that `--json` and the demo's table show of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import TandemError
from tandem.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation."""

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish: pb.Finish

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """Without the prompt: the tokens after the first, over the time after the first."""
        after_first_ns = self.finish.timing.total_ns - self.finish.timing.first_token_ns
        return _share(self.num_tokens - 1, after_first_ns / 1e9)

    @property
    def tokens_per_verify(self) -> float:
        return _share(self.num_tokens, self.finish.speculation.num_verifies)

    @property
    def acceptance_rate(self) -> float:
        return _share(self.finish.speculation.num_accepted_tokens, self.finish.speculation.num_draft_tokens)

    @property
    def num_fallbacks(self) -> int:
        return sum(self.finish.speculation.num_fallbacks.values())

    @property
    def finish_reason(self) -> str:
        return pb.FinishReason.Name(self.finish.reason).removeprefix("FINISH_REASON_").lower()

    def as_json(self) -> dict[str, Any]:
        """The keys of `--json`."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "num_tokens": self.num_tokens,
            "tokens_per_s": self.tokens_per_s,
            "num_verifies": self.finish.speculation.num_verifies,
            "tokens_per_verify": self.tokens_per_verify,
            "acceptance_rate": self.acceptance_rate,
            "num_rollbacks": self.finish.speculation.num_rollbacks,
            "num_ahead_hits": self.finish.speculation.num_ahead_hits,
            "num_fallbacks": self.num_fallbacks,
            "finish_reason": self.finish_reason,
        }


def collect(chunks: Iterable[pb.GenerateChunk], show: Callable[[pb.GenerateChunk], None]) -> Generation:
    """Shows each chunk as it comes, and returns the whole."""
    seen = []
    for chunk in chunks:
        show(chunk)
        seen.append(chunk)
    if not seen or not seen[-1].HasField("finish"):
        raise TandemError("the stream ended without a finish")
    return Generation(
        text="".join(chunk.text for chunk in seen),
        token_ids=tuple(token for chunk in seen for token in chunk.token_ids),
        prompt_token_ids=tuple(seen[0].prompt_token_ids),
        finish=seen[-1].finish,
    )


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _share(part: float, whole: float) -> float:
    return part / whole if part > 0 and whole > 0 else 0.0
