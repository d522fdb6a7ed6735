"""One question at a time, asked of every row in turn: who answers how fast, and whether with the same tokens.

All that was measured is written down after each question; a run that is started again goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from tandem.bench.speedup import Probe
from tandem.cli.margin import fork_position
from tandem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as every row gets it."""

    name: str
    category: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question. Times in seconds. What an engine cannot tell is 0."""

    token_ids: tuple[int, ...]
    total_s: float  # from the question to the last token
    first_s: float  # to the first tokens
    num_first: int  # tokens that came first
    num_verifies: int = 0  # forward passes of the target, the prompt's counted as one
    num_drafted: int = 0
    num_accepted_per_position: tuple[int, ...] = ()
    num_fallbacks: int = 0
    # behind the first tokens, as the coordinator saw it:
    decode_s: float = 0.0
    verify_s: float = 0.0
    draft_wait_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Record:
    """One question and all answers to it, in the order in which they were given."""

    name: str
    category: str
    num_prompt_tokens: int
    answers: Mapping[str, Answer]
    gaps: Mapping[str, float] = field(default_factory=dict)  # row -> logits between the two tokens at its fork

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        answers = {row: _answer(found) for row, found in fields["answers"].items()}
        return cls(**{**fields, "answers": answers})


Ask = Callable[[Sequence[int]], Answer]
Gap = Callable[[Sequence[int], Sequence[int]], float]  # (context, candidates) -> logits, see tandem/cli/margin.py
Show = Callable[[Question, str], None]


@dataclass(slots=True)
class Run:
    """A measurement on disk. `rows` and `settings` make figures comparable: runs that differ in them do not mix."""

    rows: Sequence[str]  # the others are held against the first
    settings: Mapping[str, Any]
    about: Mapping[str, Any]  # machine, date, command, versions
    probes: list[Probe] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ConfigError where `path` holds no run."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            probes = [Probe(**probe) for probe in stored.pop("probes")]
            records = [Record.from_json(record) for record in stored.pop("records")]
            return cls(**stored, probes=probes, records=records)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: not a latency run: {error}") from error

    def going_on(self, path: Path) -> Self:
        """The run at `path`, if there is one, to go on with. Raises ConfigError where it is of something else."""
        if not path.exists():
            return self
        before = self.load(path)
        ours, theirs = (json.loads(json.dumps({"rows": run.rows, **run.settings})) for run in (self, before))
        if differing := sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)):
            raise ConfigError(f"{path}: measured with other {', '.join(differing)}; remove it, or write elsewhere")
        return before

    def save(self, path: Path) -> None:
        """As JSON, all or nothing."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(asdict(self), ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)

    def missing(self, questions: Iterable[Question]) -> list[Question]:
        done = {record.name for record in self.records}
        return [question for question in questions if question.name not in done]


def rotated(rows: Sequence[str], turn: int) -> list[str]:
    """The rows in the order of a turn: each comes first, last and between equally often, always behind the same one."""
    start = turn % len(rows)
    return [*rows[start:], *rows[:start]]


def measure(run: Run, path: Path, questions: Iterable[Question], asks: Mapping[str, Ask], gap: Gap, show: Show) -> None:
    """Asks the questions that `run` lacks, each once of each row; saves after each. `gap` is asked of forks only."""
    for question in run.missing(questions):
        answers = {}
        for row in rotated(run.rows, len(run.records)):
            show(question, row)
            answers[row] = asks[row](question.token_ids)
        gaps = _gaps(question, answers, run.rows[0], gap)
        run.records.append(Record(question.name, question.category, len(question.token_ids), answers, gaps))
        run.save(path)


def fork(record: Record, row: str, first: str) -> int | None:
    """The index of the first token in which an answer differs from that of row `first`; None: it does not."""
    return fork_position(record.answers[first].token_ids, record.answers[row].token_ids)


def _gaps(question: Question, answers: Mapping[str, Answer], first: str, gap: Gap) -> dict[str, float]:
    gaps, ours = {}, answers[first].token_ids
    for row, answer in answers.items():
        position = fork_position(ours, answer.token_ids)
        if position is not None and position < min(len(ours), answer.num_tokens):
            context = (*question.token_ids, *ours[:position])
            gaps[row] = gap(context, (ours[position], answer.token_ids[position]))
    return gaps


def _answer(fields: dict[str, Any]) -> Answer:
    tuples = {name: tuple(fields[name]) for name in ("token_ids", "num_accepted_per_position")}
    return Answer(**{**fields, **tuples})
