"""A draft made of a few layers of its own and the target's embeddings.

    config.json           {"format": "tandem-draft", "target": "<model name>", "layers": [<the target's, optional>]}
    layers.safetensors    model.layers.N..., model.norm.weight, and optionally kept_token_ids, int64 [rows]

Its output head is the target's, cut to the rows of kept_token_ids.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PretrainedConfig

from tandem.errors import ModelError
from tandem.model.pretrained import model_from_state, read_config, read_model, skeleton

FORMAT = "tandem-draft"
WEIGHTS = "layers.safetensors"
KEPT = "kept_token_ids"
_INDEX = re.compile(r"\.(\d+)\.")


def draft_target(folder: Path) -> str | None:
    """Name of the target that a folder of draft layers was made for; None for any other folder."""
    config = _read_json(folder)
    return str(config.get("target", "")) if config.get("format") == FORMAT else None


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: config.json: {error}") from error
    return config


def assemble(
    folder: Path, target: Path, dtype: torch.dtype, attention: str, *, whole_head: bool = False
) -> tuple[Any, Tensor | None]:
    """The draft model of `folder` with the embeddings of the model in `target`, and its row ids (None: all rows).

    `whole_head`: all rows, also where the folder says which to keep.
    Raises ModelError naming the tensor and both shapes where the two do not fit.
    """
    try:
        layers = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder}: {WEIGHTS}: {error}") from error
    kept = layers.pop(KEPT, None)
    kept = None if whole_head else kept
    config = _shortened_config(target, layers, _read_json(folder).get("layers"))
    shapes, embedding_name, head_name = _expected(config)
    layers[embedding_name] = embedding = _read_tensor(target, embedding_name)
    _check_shapes(folder, layers, shapes, head_name)
    head = embedding if config.tie_word_embeddings else _read_tensor(target, head_name)
    rows = None if kept is None else _checked_rows(folder, kept, len(head))
    config.tie_word_embeddings = True  # so that no head is looked for: it is set below
    module = model_from_state(config, layers, dtype=dtype, attn_implementation=attention)
    module.set_output_embeddings(_linear((head if rows is None else head[rows]).to(dtype)))
    return module, rows


def _shortened_config(target: Path, layers: dict[str, Tensor], taken: list[int] | None) -> PretrainedConfig:
    """`taken`: which of the target's layers the draft's were, and whose kinds they keep; None: the first ones."""
    config = read_config(target)
    indices = {int(found[1]) for name in layers if (found := _INDEX.search(name))}
    config.num_hidden_layers = 1 + max(indices, default=-1)
    if kinds := getattr(config, "layer_types", None):
        taken = taken or list(range(config.num_hidden_layers))
        if len(taken) != config.num_hidden_layers or not set(taken) <= set(range(len(kinds))):
            raise ModelError(f"layers: {taken} are not {config.num_hidden_layers} of the target's {len(kinds)}")
        config.layer_types = [kinds[index] for index in taken]
    return config


def _expected(config: PretrainedConfig) -> tuple[dict[str, torch.Size], str, str]:
    """Shapes by tensor name of the whole model, and the names of its embedding and of its head."""
    module = skeleton(config)
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    names = {submodule: name for name, submodule in module.named_modules()}
    embedding, head = names[module.get_input_embeddings()], names[module.get_output_embeddings()]
    return shapes, f"{embedding}.weight", f"{head}.weight"


def _check_shapes(folder: Path, found: dict[str, Tensor], expected: dict[str, torch.Size], head_name: str) -> None:
    for name in sorted(found.keys() | expected.keys() - {head_name}):
        has = tuple(found[name].shape) if name in found else "none"
        wants = tuple(expected[name]) if name in expected else "none"
        if has != wants:
            raise ModelError(f"{folder}: {name}: shape {has}, the target's is {wants}")


def _checked_rows(folder: Path, kept: Tensor, num_rows: int) -> Tensor:
    rows = kept.to(torch.int64)
    if rows.numel() == 0 or rows.min() < 0 or rows.max() >= num_rows or len(set(rows.tolist())) != rows.numel():
        raise ModelError(f"{folder}: {KEPT} are not distinct ids below {num_rows}")
    return rows


def _linear(weight: Tensor) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _read_tensor(folder: Path, name: str) -> Tensor:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118
                tensor: Tensor = file.get_tensor(name)
                return tensor
    return _read_renamed_tensor(folder, name)


def _read_renamed_tensor(folder: Path, name: str) -> Tensor:
    """Of an architecture whose files have other names than its modules, which only transformers knows how to match."""
    state: dict[str, Tensor] = read_model(folder, dtype="auto", use_safetensors=True).state_dict()
    if name not in state:
        raise ModelError(f"{folder}: no tensor {name}")
    return state[name]
