"""Asking in turn, writing down, going on: no clock, no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.bench.latency import Answer, Ask, Question, Run, fork, measure, rotated
from tandem.errors import ConfigError

from .runs import ANSWERS, ROWS, SETTINGS, run

QUESTIONS = [Question(str(index), "qa", (index, 1)) for index in range(5)]


class Stopped(Exception):
    """Somebody pressed Ctrl-C."""


class Asked:
    """Answers, and remembers in which order; stops at a given call."""

    def __init__(self, stop_at: int = -1) -> None:
        self.calls: list[tuple[str, int]] = []
        self.gaps: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._stop_at = stop_at

    def ask(self, row: str) -> Ask:
        def answer(ids: Sequence[int]) -> Answer:
            if len(self.calls) == self._stop_at:
                raise Stopped
            self.calls.append((row, ids[0]))
            return ANSWERS[row]

        return answer

    def gap(self, context: Sequence[int], candidates: Sequence[int]) -> float:
        self.gaps.append((tuple(context), tuple(candidates)))
        return 0.5

    def measure(self, of: Run, path: Path, questions: Sequence[Question] = QUESTIONS) -> None:
        measure(of, path, questions, {row: self.ask(row) for row in of.rows}, self.gap, lambda question, row: None)


def empty(**settings: object) -> Run:
    return Run(ROWS, {**SETTINGS, **settings}, {"date": "today"})


def test_every_row_is_asked_once_of_every_question_and_each_has_every_turn(tmp_path: Path) -> None:
    asked = Asked()
    asked.measure(empty(), tmp_path / "run.json", [Question(str(i), "qa", (i,)) for i in range(len(ROWS))])
    assert Counter(asked.calls) == Counter((row, index) for row in ROWS for index in range(len(ROWS)))
    turns = [[row for row, index in asked.calls if index == question] for question in range(len(ROWS))]
    assert all(set(column) == set(ROWS) for column in zip(*turns, strict=True))


def test_rotation_keeps_the_circle() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


@pytest.mark.parametrize("stop_at", range(0, 5 * len(ROWS), 3))
def test_a_stopped_run_goes_on_and_comes_to_what_an_undisturbed_one_does(tmp_path: Path, stop_at: int) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(Stopped):
        Asked(stop_at).measure(empty(), path)
    again = Asked()
    again.measure(empty().going_on(path), path)
    undisturbed = Asked()
    undisturbed.measure(empty(), tmp_path / "other.json")
    assert json.loads(path.read_text()) == json.loads((tmp_path / "other.json").read_text())
    assert len(again.calls) == len(undisturbed.calls) - stop_at // len(ROWS) * len(ROWS)
    assert [entry.name for entry in tmp_path.iterdir() if "partial" in entry.name] == []


def test_a_run_reads_back_as_it_was(tmp_path: Path) -> None:
    before = replace(run(), rows=list(ROWS))
    before.save(tmp_path / "run.json")
    after = Run.load(tmp_path / "run.json")
    assert (after.rows, after.settings, after.about) == (before.rows, before.settings, before.about)
    assert (after.probes, after.records) == (before.probes, before.records)
    fields = json.loads((tmp_path / "run.json").read_text())
    assert set(fields) == {"rows", "settings", "about", "probes", "records"}
    assert set(fields["records"][0]) == {"name", "category", "num_prompt_tokens", "answers", "gaps"}
    assert set(fields["records"][0]["answers"]) == set(ROWS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda found: replace(found, rows=ROWS[:3]), "rows"),
        (lambda found: replace(found, settings={**SETTINGS, "max_tokens": 9}), "max_tokens"),
        (lambda found: replace(found, settings={**SETTINGS, "weights": "f00"}), "weights"),
    ],
)
def test_runs_of_different_settings_do_not_mix(tmp_path: Path, change: Callable[[Run], Run], named: str) -> None:
    run().save(tmp_path / "run.json")
    with pytest.raises(ConfigError, match=rf"run\.json: measured with other {named}"):
        change(run()).going_on(tmp_path / "run.json")
    assert run().going_on(tmp_path / "none.json").records == run().records


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"rows": 1, "probes": 2}', '{"records": [{}], "probes": []}'])
def test_what_is_no_run_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"run\.json: not a latency run"):
        empty().going_on(tmp_path / "run.json")


def test_forks_are_found_at_their_first_token_and_only_they_are_judged(tmp_path: Path) -> None:
    asked, measured = Asked(), empty()
    asked.measure(measured, tmp_path / "run.json", QUESTIONS[:1])
    (record,) = measured.records
    assert {row: fork(record, row, ROWS[0]) for row in ROWS if fork(record, row, ROWS[0]) is not None} == {
        "vllm": 5,
        "llamacpp-stored": 0,
    }
    assert record.gaps == {"vllm": 0.5, "llamacpp-stored": 0.5}
    assert asked.gaps == [((0, 1, 0, 1, 2, 3, 4), (5, 9)), ((0, 1), (0, 7))]


def test_an_answer_that_ends_early_is_a_fork_without_a_second_token(tmp_path: Path) -> None:
    asked, measured = Asked(), replace(empty(), rows=("transformers", "plain"))
    short = replace(ANSWERS["plain"], token_ids=ANSWERS["plain"].token_ids[:3])
    asks: dict[str, Ask] = {"transformers": asked.ask("transformers"), "plain": lambda ids: short}
    measure(measured, tmp_path / "run.json", QUESTIONS[:1], asks, asked.gap, lambda question, row: None)
    assert fork(measured.records[0], "plain", "transformers") == 3 and measured.records[0].gaps == {}
