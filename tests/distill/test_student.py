"""What a draft starts as: layers, kept ids, and, where nothing is cut from the layers, the target itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tandem.core.plan import SequencePlan, StepPlan
from tandem.distill.run import distill
from tandem.distill.settings import claim
from tandem.distill.student import Draft, kept_ids, pick_layers, save_draft, take_layers
from tandem.errors import ConfigError, ModelError
from tandem.model.load import load_model
from tandem.model.runner import Runner
from tests.distill.conftest import MakeFolder

IDS = (4, 9, 30, 11, 5, 6, 3, 22)
PLAN = StepPlan((SequencePlan(IDS, 0, (0,), len(IDS)),))


def logits(folder: Path, target: Path) -> tuple[torch.Tensor, torch.Tensor | None]:
    model = load_model(folder, torch.float64, "cpu", target, lean=False)
    return Runner(model, 1, 8).forward(PLAN), model.row_ids


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        ("all", (0, 1, 2, 3, 4, 5)),
        ("1", (0,)),
        ("2", (0, 5)),
        ("3", (0, 2, 5)),
        ("6", (0, 1, 2, 3, 4, 5)),
        ("1,4", (1, 4)),
    ],
)
def test_layers_are_picked(choice: str, layers: tuple[int, ...]) -> None:
    assert pick_layers(choice, 6) == layers


@pytest.mark.parametrize("choice", ["0", "7", "4,1", "1,1", "0,6", "-1,2", "some", "", "1,"])
def test_layers_that_there_are_not_are_named(choice: str) -> None:
    with pytest.raises(ConfigError, match=r"^layers: "):
        pick_layers(choice, 6)


def test_kept_ids_are_special_ones_and_then_the_most_frequent() -> None:
    mass = torch.tensor([0.0, 5.0, 0.1, 3.0, 4.0, 0.0])
    assert kept_ids(mass, {5, 2, 99}, 4).tolist() == [2, 5, 1, 4]
    assert kept_ids(mass, {5, 2}, 10).tolist() == [2, 5, 1, 4, 3, 0]
    with pytest.raises(ConfigError, match=r"^head: 1 rows do not hold the 2 special tokens"):
        kept_ids(mass, {5, 2}, 1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma3_text", "gpt_neox"])
def test_all_layers_are_the_target_itself(make_target: MakeFolder, tmp_path: Path, architecture: str) -> None:
    """Law: without minutes the draft's best token is the target's wherever that is a kept one."""
    target, out = make_target(architecture), tmp_path / "draft"
    distill(claim(out, False, target=str(target), layers="all", head=20, rows=4, length=24), out, 0)
    plain, _ = logits(target, target)
    found, kept = logits(out, target)
    assert kept is not None and len(kept) == 20
    assert {0, 1, 2} <= set(kept.tolist())  # special and end tokens
    torch.testing.assert_close(found, plain[:, kept], rtol=1e-9, atol=1e-9)
    known = torch.isin(plain.argmax(-1), kept)
    assert torch.equal(kept[found.argmax(-1)][known], plain.argmax(-1)[known])
    report = json.loads((out / "report.json").read_text())
    assert report["head_rows"] == 20


def test_layers_keep_the_kind_of_attention_that_they_had(make_target: MakeFolder, tmp_path: Path) -> None:
    """The middle one of three sees everything, the others a window."""
    target = make_target("gemma3_text")
    kinds = AutoConfig.from_pretrained(target).layer_types
    for layers in ((1,), (0, 1), (1, 2)):
        folder = tmp_path / str(layers)
        save_draft(folder, "target", Draft(take_layers(target, layers), layers, torch.arange(40)))
        module = load_model(folder, torch.float64, "cpu", target).module
        assert module.config.layer_types == [kinds[layer] for layer in layers]  # type: ignore[union-attr]


def test_layers_that_the_target_has_not_are_refused(make_target: MakeFolder, tmp_path: Path) -> None:
    target = make_target("gemma3_text")
    save_draft(tmp_path / "draft", "target", Draft(take_layers(target, (1,)), (7,), torch.arange(40)))
    with pytest.raises(ModelError, match=r"layers: \[7\]"):
        load_model(tmp_path / "draft", torch.float64, "cpu", target)
