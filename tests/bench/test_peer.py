"""Engines in processes of their own: asked, chatty, broken, leaving."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.bench import peer
from tandem.bench.peer import Peer, PeerFailed

HONEST = """
import os, sys
class Engine:
    version = "honest 1"
    def __init__(self, options):
        print("loading", options["model"])
        os.write(1, b"straight to the descriptor\\n")
        self.model = options["model"]
    def generate(self, ids, max_tokens):
        print("a line that is no answer")
        return {"token_ids": ids[:max_tokens], "model": self.model}
    def fail(self):
        raise RuntimeError("the kernel is missing")
"""

Open = Callable[..., Peer]


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of engines beside a copy of main.py."""
    main = tmp_path / "main.py"
    main.write_text(peer._MAIN.read_text())
    monkeypatch.setattr(peer, "_MAIN", main)
    (tmp_path / "honest.py").write_text(HONEST)
    (tmp_path / "broken.py").write_text("import no_such_package")
    return tmp_path


def opened(engines: Path, engine: str) -> Peer:
    return Peer(Path(sys.executable), engine, {"model": "tiny"}, engines / f"{engine}.log")


def test_answers_are_told_from_what_the_engine_prints(engines: Path) -> None:
    with opened(engines, "honest") as found:
        assert found.version == "honest 1"
        for _ in range(2):
            assert found.call("generate", ids=[5, 6, 7], max_tokens=2) == {"token_ids": [5, 6], "model": "tiny"}
    log = (engines / "honest.log").read_text()
    assert "loading tiny" in log and "straight to the descriptor" in log
    assert found._process.returncode == 0


def test_an_engine_that_does_not_start_says_why(engines: Path) -> None:
    with pytest.raises(PeerFailed, match="no_such_package"):
        opened(engines, "broken")


def test_an_engine_that_fails_says_why_and_is_gone(engines: Path) -> None:
    with opened(engines, "honest") as found, pytest.raises(PeerFailed, match=r"code 1;(.|\n)*the kernel is missing"):
        found.call("fail")
    found.close()


def test_an_engine_that_was_killed_says_so(engines: Path) -> None:
    with opened(engines, "honest") as found:
        found._process.kill()
        found._process.wait()
        with pytest.raises(PeerFailed, match="code -9"):
            found.call("generate", ids=[1], max_tokens=1)
