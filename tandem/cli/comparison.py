"""One prompt decoded with and without speculation: the numbers side by side, and whether the texts agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tandem.cli.margin import MARGIN, fork_position
from tandem.cli.result import Generation

Gap = Callable[[Sequence[int], Sequence[int]], float]  # (context, candidates) -> logits, see margin.logit_gap


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the comparison shows; an unlawful one must not happen."""

    text: str
    lawful: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same request, drafted and plain."""

    drafted: Generation
    plain: Generation

    @property
    def speedup(self) -> float:
        return self.drafted.tokens_per_s / self.plain.tokens_per_s if self.plain.tokens_per_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """The keys of the demo's `--json`."""
        return {
            **self.drafted.as_json(),
            "plain_text": self.plain.text,
            "plain_token_ids": list(self.plain.token_ids),
            "plain_tokens_per_s": self.plain.tokens_per_s,
            "speedup": self.speedup,
        }

    def findings(self, gap: Gap) -> list[Finding]:
        """Whether the texts agree, and whether every draft came; `gap` is asked only about a fork."""
        causes = {**self.drafted.finish.speculation.num_fallbacks, **self.plain.finish.speculation.num_fallbacks}
        fallbacks = [Finding(f"verifies without the wanted draft: {causes}", lawful=False)] if causes else []
        return [self._agreement(gap), *fallbacks]

    def _agreement(self, gap: Gap) -> Finding:
        ours, theirs = self.drafted.token_ids, self.plain.token_ids
        position = fork_position(ours, theirs)
        if position is None:
            same = self.drafted.text == self.plain.text
            return Finding("the texts are the same" if same else "the same tokens gave two texts", lawful=same)
        if position >= min(len(ours), len(theirs)):
            return Finding(f"one text ends after {position} tokens, where the other goes on", lawful=False)
        context = self.drafted.prompt_token_ids + ours[:position]
        distance = gap(context, (ours[position], theirs[position]))
        lawful = distance <= MARGIN
        verdict = f"{'within' if lawful else 'beyond'} the margin of {MARGIN:g}"
        return Finding(f"the texts fork at token {position}: the logits lie {distance:.2g} apart, {verdict}", lawful)


def comparison_table(comparison: Comparison) -> Table:
    """Speculation on and off, column by column."""
    table = Table(title="The same prompt with and without speculation")
    table.add_column("")
    table.add_column("speculation on", justify="right")
    table.add_column("off", justify="right")
    for name, *cells in zip(_ROWS, _cells(comparison.drafted), _cells(comparison.plain), strict=True):
        table.add_row(name, *cells)
    table.add_row("ratio", f"{comparison.speedup:.2f}", "1.00")
    return table


_ROWS = (
    "tokens",
    "tokens per verify",
    "acceptance",
    "roll-backs",
    "ahead hits",
    "fallbacks",
    "tokens/s without prefill",
)


def _cells(generation: Generation) -> tuple[str, ...]:
    statistics = generation.finish.speculation
    return (
        str(generation.num_tokens),
        f"{generation.tokens_per_verify:.2f}",
        f"{generation.acceptance_rate:.2f}" if statistics.num_draft_tokens else "–",
        str(statistics.num_rollbacks),
        str(statistics.num_ahead_hits),
        str(generation.num_fallbacks),
        f"{generation.tokens_per_s:.1f}",
    )
