"""Killed at any moment, a distillation goes on to the very files of one that was left alone."""

from __future__ import annotations

import itertools
import json
import socket
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.distill import learner, run
from tandem.distill.acceptance import measure
from tandem.distill.learner import Student
from tandem.distill.run import distill
from tandem.distill.settings import claim
from tandem.distill.shards import load_text, read_notes
from tandem.distill.speedup import best_shared
from tandem.distill.student import read_draft
from tandem.distill.writer import Readout
from tandem.errors import ConfigError
from tandem.model.load import load_model
from tandem.model.pretrained import read_model
from tests.distill.conftest import MakeFolder

MINUTES = 2.0
LAP_S = 20.0  # by the test's clock, of every text and every step
WISHES = {"layers": "2", "head": 24, "rows": 4, "length": 24, "seed": 3}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def clock() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * LAP_S


def work(target: Path, out: Path) -> dict[str, object]:
    """Starts, or goes on; returns what the finished folder holds."""
    settings = claim(out, (out / "work" / "settings.json").exists(), target=str(target), **WISHES)
    distill(settings, out, MINUTES, clock=clock())
    layers = {name: tensor.double().tolist() for name, tensor in load_file(out / "layers.safetensors").items()}
    return layers | {name: json.loads((out / name).read_text()) for name in ("config.json", "report.json")}


@pytest.fixture
def count_renames(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[str]]:
    """Kills just before the rename of a file, the `deadly`-th from now; returns the list of those renamed."""
    rename = Path.replace

    def count(deadly: int | None) -> list[str]:
        renamed: list[str] = []

        def replace(path: Path, target: Path) -> Path:
            if len(renamed) == deadly:
                raise Killed
            renamed.append(target.name)
            return rename(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        return renamed

    return count


@pytest.mark.usefixtures("quick")
def test_a_kill_at_any_file_changes_nothing(
    make_target: MakeFolder, tmp_path: Path, count_renames: Callable[[int | None], list[str]]
) -> None:
    target = make_target()
    renamed = count_renames(None)
    undisturbed = work(target, tmp_path / "undisturbed")
    assert {"settings.json", "text-00002.safetensors", learner.CHECKPOINT, "report.json"} <= set(renamed)
    assert renamed.count(learner.CHECKPOINT) > 2
    for deadly in range(len(renamed)):
        count_renames(deadly)
        with pytest.raises(Killed):
            work(target, tmp_path / str(deadly))
        count_renames(None)
        assert work(target, tmp_path / str(deadly)) == undisturbed, renamed[deadly]


@pytest.mark.usefixtures("quick")
def test_more_minutes_go_on_from_what_was_learned(make_target: MakeFolder, tmp_path: Path) -> None:
    target, out = make_target(), tmp_path / "draft"
    first = work(target, out)
    assert work(target, out) == first  # nothing is left to do
    distill(claim(out, True), out, 2 * MINUTES, clock=clock())
    report = json.loads((out / "report.json").read_text())
    assert report["minutes"] == 2 * MINUTES
    assert int(read_notes(out / "work" / "student" / learner.CHECKPOINT)["step"]) > 3


@pytest.mark.usefixtures("quick")
def test_minutes_that_writing_uses_up_leave_a_draft_that_can_go_on(make_target: MakeFolder, tmp_path: Path) -> None:
    target, out = make_target(), tmp_path / "draft"
    distill(claim(out, False, target=str(target), **WISHES), out, 0.1, clock=clock())
    assert load_model(out, torch.float64, "cpu", target).head_width == 24
    distill(claim(out, True), out, MINUTES, clock=clock())
    assert json.loads((out / "report.json").read_text())["minutes"] == MINUTES


@pytest.mark.usefixtures("quick")
def test_a_search_goes_on_with_the_best_of_what_it_tried(
    make_target: MakeFolder, tmp_path: Path, count_renames: Callable[[int | None], list[str]]
) -> None:
    """And a kill between two candidates changes nothing."""
    target, minutes = make_target(), 10.0
    renamed = count_renames(None)
    outs = [tmp_path / "undisturbed", tmp_path / "killed"]
    settings = [claim(out, False, target=str(target), search=True, **WISHES) for out in outs]
    report = distill(settings[0], outs[0], minutes, clock=clock())
    folders = sorted((outs[0] / "work").glob("candidate-*"))
    shapes = [(read_draft(folder).layers, len(read_draft(folder).kept)) for folder in folders]
    assert {len(layers) for layers, _ in shapes} == {1, 2, 3}
    assert {rows for _, rows in shapes} == {24, 12, 6, 3}
    text, costs = load_text(outs[0] / "work", 0), run.measure_costs(folders, target, torch.float32, "cpu")
    readout = Readout(read_model(target, dtype=torch.float32))
    speedups = [
        best_shared(measure(Student(folder, target, "cpu"), readout, text), cost)
        for folder, cost in zip(folders, costs, strict=True)
    ]
    assert speedups[shapes.index((report.layers, report.head_rows))] == pytest.approx(max(speedups), rel=0.01)

    count_renames(renamed.index("layers.safetensors", len(renamed) // 2))
    with pytest.raises(Killed):
        distill(settings[1], outs[1], minutes, clock=clock())
    count_renames(None)
    assert distill(settings[1], outs[1], minutes, clock=clock()) == report


def test_work_is_not_begun_twice_nor_resumed_otherwise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no work to resume"):
        claim(tmp_path, True, target="a")
    assert claim(tmp_path, False, target="a", head=8).head == 8
    with pytest.raises(ConfigError, match="resume it"):
        claim(tmp_path, False, target="a", head=8)
    assert claim(tmp_path, True, target="a", head=None).head == 8
    with pytest.raises(ConfigError, match=r"^head: 9, but the work was begun with 8"):
        claim(tmp_path, True, target="a", head=9)


_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_note_open)  # cannot be taken away again; it notes nothing but inside the test below


@pytest.mark.usefixtures("quick")
def test_nothing_is_read_but_the_target(
    make_target: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data set, no hub: files of the target, of the work, and code."""
    target, out = make_target(), tmp_path / "draft"

    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(sys.modules[__name__], "_opened", opened := [])
    work(target, out)
    monkeypatch.setattr(sys.modules[__name__], "_opened", None)
    code = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platstdlib")} | {
        str(Path(__file__).parents[2] / "tandem")
    }
    lawful = (str(target), str(out), "/proc", "/sys", "/dev", *code)
    assert any(path.startswith(str(target)) for path in opened)
    assert not [path for path in opened if not str(Path(path).absolute()).startswith(lawful)]
