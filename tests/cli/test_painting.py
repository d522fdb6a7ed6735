"""Draft tokens look different on a terminal; the text itself never changes."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tandem.cli.painting import painter, spans

from .fakes import CHUNKS

GREEN, RESET = "\x1b[32m", "\x1b[0m"


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system="standard" if terminal else None)
    paint = painter(console)
    for chunk in CHUNKS:
        paint(chunk)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_colour_on_a_terminal_only() -> None:
    assert shown(terminal=False) == "The sky is"
    assert shown(terminal=True) == f"The{GREEN} sky {RESET}is"


@pytest.mark.parametrize(
    ("text", "drafted", "expected"),
    [
        (" sky is", [True, False], [(" sky", True), (" is", False)]),
        (" sky", [True, True], [(" sky", True)]),
        ("abcdef", [True, True, False], [("abcd", True), ("ef", False)]),
        ("", [True, False], [("", True), ("", False)]),
        ("", [], [("", False)]),
    ],
)
def test_text_is_split_by_piece_or_by_share(text: str, drafted: list[bool], expected: list[tuple[str, bool]]) -> None:
    assert spans(text, drafted) == expected


@given(st.text(), st.lists(st.booleans(), max_size=17))
def test_no_character_is_lost(text: str, drafted: list[bool]) -> None:
    assert "".join(piece for piece, _ in spans(text, drafted)) == text
