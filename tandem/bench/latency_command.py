"""`tandem bench latency`: from its options to a run, and from a run to its files."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.bench import latency_report
from tandem.bench import rows as kinds
from tandem.bench.contenders import Contenders, Pair, contenders
from tandem.bench.latency import Question, Run, Show, measure
from tandem.bench.placement import Placement, place, take_cores
from tandem.bench.throughput import load_prompts, spread
from tandem.cli.console import err, out
from tandem.config import PROMPT_LOOKUP, cache_folder
from tandem.errors import ConfigError
from tandem.model.fingerprint import fingerprint
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer, render_chat
from tandem.supervisor import StopSignal

DTYPE = "float32"  # what every engine here has kernels for
_LONGEST_BLOCK = 16  # room that a last block may need
_FOLDERS = re.compile(r"(?<=[=\s'])/\S*/")  # of this machine, which are nobody's business


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of the command, as given."""

    target: str
    draft: str
    prompts: Path
    categories: str
    limit: int
    rows: str
    num_tokens: int
    max_tokens: int
    setup: kinds.Setup
    cores: int
    draft_threads: int
    peers: tuple[str, ...]


def execute(wishes: Wishes, folder: Path, as_markdown: bool) -> None:
    """Measures what the run in `folder` lacks, and shows it. Raises TandemError."""
    peers = _peers(wishes.peers)
    names = kinds.parse_rows(wishes.rows, wishes.num_tokens, list(peers))
    placement = place(wishes.setup, take_cores(wishes.cores), wishes.draft_threads)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "latency.json"
    with err.status("reading prompts"):
        questions = _questions(wishes)
        run = Run(names, _settings(wishes, placement), _about()).going_on(path)
    if run.missing(questions):
        longest = max(len(question.token_ids) for question in questions) + wishes.max_tokens + _LONGEST_BLOCK
        pair = Pair(wishes.target, wishes.draft, DTYPE, wishes.max_tokens, longest, cache_folder())
        with StopSignal(), contenders(run.rows, pair, placement, peers, folder) as ready:
            _measure(run, path, questions, ready)
    _show(run, folder, as_markdown)


def _measure(run: Run, path: Path, questions: Sequence[Question], ready: Contenders) -> None:
    run.about = {**run.about, "engines": ", ".join(sorted(set(ready.versions.values())))}
    first = questions[0].token_ids
    with _progress(len(run.missing(questions)) * len(run.rows)) as show:
        for row in run.rows:
            show(Question("", "warming up", first), row)
            ready.asks[row](first)
        if ready.tandem is not None and not run.probes and any(map(kinds.is_drafted, run.rows)):
            show(Question("", "what rounds cost", first), kinds.IN_TURN)
            run.probes = ready.tandem.probe(first)
        measure(run, path, questions, ready.asks, ready.gap, show)


@contextmanager
def _progress(num_answers: int) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("starting", total=num_answers)

        def show(question: Question, row: str) -> None:
            is_timed = bool(question.name)
            progress.update(task, description=f"{question.category} {question.name}, {row}", advance=int(is_timed))

        yield show


def _show(run: Run, folder: Path, as_markdown: bool) -> None:
    text = latency_report.markdown(run)
    (folder / "latency.md").write_text(text, encoding="utf-8")
    if as_markdown:
        out.print(text, markup=False, soft_wrap=True)
    else:
        for table in latency_report.tables(run):
            out.print(table)
    if find_spec("matplotlib"):
        latency_report.draw(run, folder / "latency.png")
    else:
        err.print("no picture: matplotlib is missing (pip install tandem-serving\\[bench])")


def _peers(texts: Sequence[str]) -> dict[str, Path]:
    peers = {}
    for text in texts:
        name, _, python = text.partition("=")
        if name not in kinds.OF_PEER or not Path(python).is_file():
            raise ConfigError(f"peer: {text!r} is not {' or '.join(f'{known}=PYTHON' for known in kinds.OF_PEER)}")
        peers[name] = Path(python)
    return peers


def _questions(wishes: Wishes) -> list[Question]:
    """A mixture from the start, in the target's own chat template, or as bare text where it has none."""
    wanted = {name.strip() for name in wishes.categories.split(",") if name.strip()}
    prompts = spread(load_prompts(wishes.prompts))
    if unknown := wanted - {prompt.category for prompt in prompts}:
        raise ConfigError(f"categories: {', '.join(sorted(unknown))}: not in {wishes.prompts}")
    chosen = [prompt for prompt in prompts if not wanted or prompt.category in wanted]
    tokenizer = load_tokenizer(resolve(wishes.target, cache_folder()))

    def ids(text: str) -> tuple[int, ...]:
        if tokenizer.chat_template:
            return tuple(render_chat(tokenizer, [{"role": "user", "content": text}]))
        return tuple(tokenizer(text).input_ids)

    return [Question(prompt.name, prompt.category, ids(prompt.text)) for prompt in chosen[: wishes.limit or None]]


def _settings(wishes: Wishes, placement: Placement) -> dict[str, Any]:
    """What two runs must share for their figures to be compared."""
    names = [name for name in (wishes.target, wishes.draft) if name != PROMPT_LOOKUP]
    return {
        "target": _short(wishes.target),
        "draft": _short(wishes.draft),
        "weights": fingerprint([resolve(name, cache_folder()) for name in names], DTYPE, 1),
        "dtype": DTYPE,
        "max_tokens": wishes.max_tokens,
        "setup": placement.setup.value,
        "target_threads": placement.target_threads,
        "draft_threads": placement.draft_threads,
        "other_threads": placement.num_cores,
        **{name: version(name) for name in ("tandem-serving", "torch", "transformers")},
    }


def _short(name: str) -> str:
    return Path(name).name or name


def _about() -> dict[str, Any]:
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": f"{_processor()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "command": _FOLDERS.sub("", shlex.join(["tandem", *sys.argv[1:]])),
    }


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
