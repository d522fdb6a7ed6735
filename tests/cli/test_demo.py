"""What the demo shows of two generations, what it writes, and what it fails on."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from tandem.cli.comparison import Comparison, comparison_table
from tandem.cli.margin import MARGIN

from .fakes import generation
from .test_commands import JSON_KEYS


def never(context: Sequence[int], candidates: Sequence[int]) -> float:
    raise AssertionError("no fork to measure")


def test_equal_texts_are_lawful() -> None:
    findings = Comparison(generation([5, 6], "ab"), generation([5, 6], "ab")).findings(never)
    assert [finding.lawful for finding in findings] == [True]


@pytest.mark.parametrize(("gap", "lawful"), [(MARGIN / 2, True), (MARGIN * 2, False)])
def test_a_fork_is_lawful_within_the_margin(gap: float, lawful: bool) -> None:
    asked = []

    def measured(context: Sequence[int], candidates: Sequence[int]) -> float:
        asked.append((context, candidates))
        return gap

    [finding] = Comparison(generation([5, 6, 7]), generation([5, 8, 9])).findings(measured)
    assert finding.lawful is lawful
    assert "token 1" in finding.text
    assert asked == [((1, 2, 5), (6, 8))]


def test_a_shorter_text_is_unlawful() -> None:
    [finding] = Comparison(generation([5]), generation([5, 8])).findings(never)
    assert not finding.lawful


def test_two_texts_of_the_same_tokens_are_unlawful() -> None:
    [finding] = Comparison(generation([5], "a"), generation([5], "b")).findings(never)
    assert not finding.lawful


def test_a_fallback_is_unlawful() -> None:
    drafted = generation([5], num_fallbacks={"late": 1})
    findings = Comparison(drafted, generation([5])).findings(never)
    assert [finding.lawful for finding in findings] == [True, False]
    assert "late" in findings[1].text


def test_json_adds_the_plain_side() -> None:
    tree = Comparison(generation([5, 6], "ab"), generation([5, 6], "ab")).as_json()
    assert list(tree) == [*JSON_KEYS, "plain_text", "plain_token_ids", "plain_tokens_per_s", "speedup"]
    assert tree["speedup"] == 1.0


def test_the_table_has_both_sides() -> None:
    console = Console(file=io.StringIO(), width=80)
    drafted = generation([5, 6], num_verifies=1, num_draft_tokens=4, num_accepted_tokens=1)
    console.print(comparison_table(Comparison(drafted, generation([5, 6], num_verifies=2))))
    file = console.file
    assert isinstance(file, io.StringIO)
    rows = {
        cells[1].strip(): [cells[2].strip(), cells[3].strip()]
        for cells in map(split_row, file.getvalue().splitlines())
        if len(cells) > 3
    }
    assert rows["tokens per verify"] == ["2.00", "1.00"]
    assert rows["acceptance"] == ["0.25", "–"]
    assert rows["ratio"] == ["1.00", "1.00"]


def split_row(line: str) -> list[str]:
    return line.split("│")
