"""What the student starts as: some of the target's layers, and a head of the tokens that the target says most."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tandem.distill.shards import replace_file, save_tensors
from tandem.errors import ConfigError, ModelError
from tandem.model.draft_layers import FORMAT, KEPT, WEIGHTS, draft_target
from tandem.model.pretrained import read_model


def pick_layers(choice: str, num_layers: int) -> tuple[int, ...]:
    """Indices from "all", a count N (spread evenly from the first to the last), or a list such as "0,29".

    Raises ConfigError naming the option.
    """
    try:
        parts = [int(part) for part in choice.split(",")] if choice != "all" else []
    except ValueError:
        raise ConfigError(
            f"layers: {choice!r} is neither all, a count, nor indices such as 0,{num_layers - 1}"
        ) from None
    if choice == "all":
        return tuple(range(num_layers))
    if len(parts) > 1:
        if parts != sorted(set(parts)) or parts[0] < 0 or parts[-1] >= num_layers:
            raise ConfigError(f"layers: {choice!r} is not rising indices of the target's {num_layers} layers")
        return tuple(parts)
    if not 1 <= parts[0] <= num_layers:
        raise ConfigError(f"layers: {parts[0]} of the target's {num_layers} layers")
    gaps = max(1, parts[0] - 1)
    return tuple(round(index * (num_layers - 1) / gaps) for index in range(parts[0]))


def kept_ids(mass: Tensor, always: Iterable[int], num_rows: int) -> Tensor:
    """Ids of the head's rows, int64 [num_rows]: first those of `always`, then by falling `mass`, float [vocabulary].

    Cut at any width that holds `always`, the rows are those of a head of that width.
    """
    first = sorted({token for token in always if 0 <= token < len(mass)})
    if num_rows < len(first):
        raise ConfigError(f"head: {num_rows} rows do not hold the {len(first)} special tokens")
    ranked = mass.argsort(descending=True, stable=True)
    others = ranked[~torch.isin(ranked, torch.tensor(first, dtype=torch.int64))]
    return torch.cat([torch.tensor(first, dtype=torch.int64), others])[:num_rows]


def take_layers(target: Path, layers: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of a draft's folder from the model in `target`, in its own dtype: all but embeddings and head."""
    module = read_model(target, dtype="auto", use_safetensors=True)
    names = {part: name for name, part in module.named_modules()}
    apart = {names[module.get_input_embeddings()], names[module.get_output_embeddings()]}
    stack = f"{names[_stack(module)]}."
    renumbered = {str(old): str(new) for new, old in enumerate(layers)}
    taken: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        if name.rpartition(".")[0] in apart:
            continue
        if name.startswith(stack):
            index, _, rest = name.removeprefix(stack).partition(".")
            if index not in renumbered:
                continue
            name = f"{stack}{renumbered[index]}.{rest}"
        taken[name] = tensor.contiguous().clone()
    return taken


def _stack(module: Any) -> nn.ModuleList:
    count = module.config.get_text_config(decoder=True).num_hidden_layers
    for part in module.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise ModelError(f"{type(module).__name__} has no list of its {count} layers")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a folder of draft layers holds."""

    tensors: dict[str, Tensor]  # layers and norm, by their names in the draft
    layers: tuple[int, ...]  # which of the target's they were
    kept: Tensor  # int64 [head_rows]

    def cut(self, head_rows: int) -> Draft:
        """With the first rows of the head alone."""
        return replace(self, kept=self.kept[:head_rows])


def read_draft(folder: Path) -> Draft:
    """Raises ModelError."""
    if draft_target(folder) is None:
        raise ModelError(f"{folder}: not a folder of draft layers")
    tensors = load_file(folder / WEIGHTS)
    kept = tensors.pop(KEPT, torch.zeros(0)).to(torch.int64)
    config = json.loads((folder / "config.json").read_text())
    return Draft(tensors, tuple(config.get("layers") or range(config["num_layers"])), kept)


def save_draft(folder: Path, target: str, draft: Draft) -> None:
    """Writes a folder of draft layers; the configuration last, so that a folder with one is whole."""
    dtype = next(iter(draft.tensors.values())).dtype
    config = {
        "format": FORMAT,
        "target": target,
        "num_layers": len(draft.layers),
        "layers": list(draft.layers),
        "head_rows": len(draft.kept),
        "dtype": str(dtype).removeprefix("torch."),
    }
    save_tensors(folder / WEIGHTS, draft.tensors | {KEPT: draft.kept.contiguous()})
    replace_file(folder / "config.json", lambda beside: beside.write_text(json.dumps(config, indent=2) + "\n"))
