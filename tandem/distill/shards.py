"""Texts on disk: written beside their place, then renamed, so that a kill at any moment leaves whole files only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.distill.writer import Text


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside `path`, which then takes its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    write(unfinished)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """`notes`: strings by name, read again by `read_notes`."""
    replace_file(path, lambda beside: save_file(dict(tensors), beside, metadata=dict(notes or {"format": "pt"})))


def read_notes(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"text-{index:05d}.safetensors"


def save_text(folder: Path, index: int, text: Text, spent_s: float) -> None:
    """`spent_s`: on the whole distillation, this text included."""
    tensors = {field.name: getattr(text, field.name) for field in fields(text)}
    save_tensors(shard_path(folder, index), tensors, {"spent_s": repr(spent_s)})


def load_text(folder: Path, index: int, device: str = "cpu") -> Text:
    return Text(**load_file(shard_path(folder, index), device))


def load_mass(folder: Path, index: int) -> Tensor:
    """`Text.mass` alone: the hidden states beside it are many times larger."""
    with safe_open(shard_path(folder, index), framework="pt") as file:
        mass: Tensor = file.get_tensor("mass")
    return mass


def num_texts(folder: Path) -> int:
    """How many texts there are; they are numbered from 0 without gaps."""
    count = 0
    while shard_path(folder, count).exists():
        count += 1
    return count
