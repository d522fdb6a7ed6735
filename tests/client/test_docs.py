"""Runs every Python example of docs/client.md against a coordinator that behaves."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import tandem
from tandem.client.errors import CLASS_OF_CODE
from tandem.client.request import Options

from .fakes import Coordinator, serving

PAGE = (Path(__file__).parents[2] / "docs/client.md").read_text()
EXAMPLES = [
    (match[1], PAGE[: match.start()].count("\n") + 2) for match in re.finditer(r"```python\n(.*?)```", PAGE, re.S)
]
# A piece of what each prints, by its order on the page.
PRINTED = [
    "STOP_STRING 6 tokens",
    "The sky is blue today",
    "6 -1.0 ((1, -1.0),)",
    "The sky is blue today\nSTOP_STRING, 4 verifies",
    "running",
    "The",
    "",
    "The sky is blue today 0",
    "['sampling.top_k']",
    "target t:7072 ready",
    "The sky is blue today",
    '"offset": 5',
]


def test_every_example_has_its_line_here() -> None:
    assert len(EXAMPLES) == len(PRINTED) == PAGE.count("```python")


@pytest.mark.parametrize(
    ("example", "line", "printed"),
    [(*example, printed) for example, printed in zip(EXAMPLES, PRINTED, strict=False)],
    ids=[f"line{line}" for _, line in EXAMPLES],
)
def test_example(example: str, line: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Coordinator()) as address:
        code = compile("\n" * (line - 1) + example.replace("127.0.0.1:7070", address), "docs/client.md", "exec")
        exec(code, {"__name__": "__main__"})
    assert printed in capsys.readouterr().out
    assert not [thread for thread in threading.enumerate() if thread.name == "tandem-client"]


def test_every_error_stands_in_the_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w*) ?\|", PAGE, re.M))
    assert rows.items() >= {kind.__name__: code.name for code, kind in CLASS_OF_CODE.items()}.items()
    assert {"UnknownFault", "ProtocolFault", "ClientClosed"} <= {*re.findall(r"^\| `(\w+)` \|", PAGE, re.M)}
    assert set(rows) <= set(tandem.__all__)


def test_every_keyword_stands_on_the_page() -> None:
    assert {word for word in Options.__optional_keys__ if f"`{word}`" not in PAGE} <= {"sampling"}
