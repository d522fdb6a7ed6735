"""An engine in a process of its own, possibly of another interpreter, for as long as a bench runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tandem.errors import TandemError

_MAIN = Path(__file__).with_name("peers") / "main.py"
_CLOSE_S = 20.0
_NUM_LOG_LINES = 20


class PeerFailed(TandemError):
    """An engine ended before it answered; the message carries the end of its log."""


class Peer:
    """Runs peers/ENGINE.py on `python`. As a context it ends the process."""

    def __init__(self, python: Path, engine: str, options: Mapping[str, Any], log: Path) -> None:
        """Returns once the engine is ready. Raises PeerFailed, or OSError where `python` is none."""
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, _MAIN, engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,  # Ctrl-C is ours: see tandem/supervisor.py
            )
        try:
            self.version = str(self._exchange(options))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, **arguments: Any) -> Any:
        """The result of the engine's method `name`. Raises PeerFailed."""
        return self._exchange({"call": name, **arguments})

    def close(self) -> None:
        """Safe to call twice."""
        try:
            self._process.communicate(timeout=_CLOSE_S)  # its input ends, and so does it
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, message: Mapping[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.close()
            lines = self._log.read_text(errors="replace").splitlines()[-_NUM_LOG_LINES:]
            ending = f"{self._log.stem} ended with code {self._process.returncode}; end of its log {self._log}:"
            raise PeerFailed("\n".join([ending, *lines])) from None
