"""All work is done on the device that is named: whatever is made without saying where would lie elsewhere on a GPU.

Here such tensors come to lie on no device at all, and mixing them with others is an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tandem.cli import app
from tandem.distill import settings
from tandem.distill.acceptance import Acceptance, measure
from tandem.distill.learner import Student
from tandem.distill.run import distill
from tandem.distill.schedule import seeded
from tandem.distill.script import read_script
from tandem.distill.settings import ON_GPU, Settings, claim
from tandem.distill.shards import load_text
from tandem.distill.student import Draft, save_draft, take_layers
from tandem.distill.writer import ATTENTION, Readout, Text, Writer
from tandem.errors import ConfigError
from tandem.model.pretrained import read_model
from tandem.model.tokenizer import load_tokenizer
from tests.distill.conftest import MakeFolder

ROWS, LENGTH = 6, 24


def writer(folder: Path) -> Writer:
    module = read_model(folder, dtype=torch.float64, attn_implementation=ATTENTION).eval()
    return Writer(module, read_script(load_tokenizer(folder), frozenset({2})), ROWS, LENGTH)


def tensors(text: Text) -> list[Tensor]:
    return [text.token_ids, text.answers, text.greedy, text.hidden, text.mass]


def test_writing(make_target: MakeFolder) -> None:
    expected, writing = writer(make_target()).write(seeded(0)), writer(make_target())
    generator = seeded(0)
    with torch.device("meta"):
        found = writing.write(generator)
    for one, other in zip(tensors(expected), tensors(found), strict=True):
        assert torch.equal(one, other)


def test_learning_and_measuring(make_target: MakeFolder, tmp_path: Path) -> None:
    target = make_target()
    save_draft(tmp_path, str(target), Draft(take_layers(target, (0, 2)), (0, 2), torch.arange(24)))
    text, student = writer(target).write(seeded(0)), Student(tmp_path, target, "cpu")
    readout = Readout(read_model(target, dtype=torch.float64))

    def results() -> tuple[float, Acceptance]:
        loss = student.loss(text)
        loss.backward()
        return float(loss.detach()), measure(student, readout, text)

    expected = results()
    with torch.device("meta"):
        assert results() == expected


@pytest.mark.usefixtures("quick")
def test_rows_and_batches_are_as_wide_as_asked_for(make_target: MakeFolder, tmp_path: Path) -> None:
    wishes = {"layers": "1", "head": 24, "rows": 6, "length": 24, "batch": 6}
    distill(claim(tmp_path, False, target=str(make_target()), **wishes), tmp_path, 0.0)
    assert load_text(tmp_path / "work", 0).token_ids.shape == (6, 24)


def test_work_that_was_begun_before_there_were_batches_goes_on(tmp_path: Path) -> None:
    claim(tmp_path, False, target="t")
    path = tmp_path / settings.WORK / settings.SETTINGS
    path.write_text('{"target": "t", "rows": 96, "length": 224}')
    assert claim(tmp_path, True) == Settings("t")
    with pytest.raises(ConfigError, match="rows: 512, but the work was begun with 96"):
        claim(tmp_path, True, **ON_GPU)


def test_a_device_that_is_not_there_is_named(make_target: MakeFolder, tmp_path: Path) -> None:
    args = ["distill", "--target", str(make_target()), "--out", str(tmp_path / "out"), "--device"]
    for device in ("cuda:99", "nonsense"):
        result = CliRunner().invoke(app.app, [*args, device])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception).startswith(f"device: {device}: ")
    assert not (tmp_path / "out").exists()
