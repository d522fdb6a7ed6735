"""Streams text; on a terminal, what the draft proposed looks different from the target's own."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from tandem.v1 import coordinator_pb2 as pb

DRAFT_STYLE = "green"
LEGEND = "[green]green[/]: drafted and accepted; plain: the target's own"

# Most tokens are a word with the space before it, a run of signs, or white space.
_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]+|\s+")


def painter(console: Console) -> Callable[[pb.GenerateChunk], None]:
    """A function that shows a chunk: coloured on a terminal, the bare text elsewhere."""
    return (lambda chunk: _paint(console, chunk)) if console.is_terminal else (lambda chunk: _write(console, chunk))


def _paint(console: Console, chunk: pb.GenerateChunk) -> None:
    drafted = [origin == pb.ORIGIN_DRAFT for origin in chunk.origins]
    for text, by_draft in spans(chunk.text, drafted):
        console.print(Text(text, style=DRAFT_STYLE if by_draft else ""), end="", soft_wrap=True)


def _write(console: Console, chunk: pb.GenerateChunk) -> None:
    console.file.write(chunk.text)
    console.file.flush()


def spans(text: str, drafted: list[bool]) -> list[tuple[str, bool]]:
    """Splits a chunk's text among its tokens, of which only ids and origins are known here.

    Where the text falls into as many pieces as there are tokens, piece by piece; else by share: accepted tokens come
    before the target's own, so the first part is the draft's. That border may be a few characters off, the text never.
    """
    if len(set(drafted)) <= 1:
        return [(text, any(drafted))]
    pieces = _PIECE.findall(text)
    if len(pieces) == len(drafted):
        return list(zip(pieces, drafted, strict=True))
    border = round(len(text) * sum(drafted) / len(drafted))
    return [(text[:border], True), (text[border:], False)]
