"""Progress: a line per change off a terminal, a live line each on one."""

import io

from rich.console import Console

from tandem.cli.progress import phases


def shown(terminal: bool) -> str:
    file = io.StringIO()
    with phases(Console(file=file, force_terminal=terminal, width=80)) as report:
        for phase in ("loading", "loading", "ready"):
            report("target [1]", phase)
    return file.getvalue()


def test_plain_lines_off_a_terminal() -> None:
    assert shown(terminal=False) == "target [1]: loading\ntarget [1]: ready\n"


def test_a_live_line_on_a_terminal() -> None:
    assert "target [1]" in shown(terminal=True)
    assert "✓" in shown(terminal=True)
