"""GGUF files as model folders: converted once per content, under a lock, and renamed into place when complete."""

from __future__ import annotations

import fcntl
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from transformers import AutoTokenizer

from tandem.errors import ModelError
from tandem.model.fingerprint import content_key
from tandem.model.pretrained import read_model

# Part of every cache key: to be raised when a conversion would come out different.
VERSION = 1
WEIGHTS = "model.safetensors"


def convert_once(path: Path, cache: Path, on_phase: Callable[[str], None]) -> Path:
    """The folder in `cache` with the fp32 weights and the tokenizer of GGUF file `path`.

    Safe to call from many processes at once. Raises ModelError naming the file.
    """
    folder = cache / f"{path.stem}-{content_key(path)}-{VERSION}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            on_phase(f"converting {path.name}")
            _convert_beside(path, folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, or its process dies
        yield


def _convert_beside(path: Path, folder: Path) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that died: the lock is ours
    partial.mkdir()
    try:
        _convert(path, partial)
        partial.rename(folder)
    except Exception as error:  # whatever the parser meets in a broken file
        raise ModelError(f"{path}: cannot be converted: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(path: Path, folder: Path) -> None:
    _convert_tokenizer(path, folder)
    with redirect_stderr(io.StringIO()):  # transformers draws a progress bar there
        module = read_model(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = module.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights no longer are
    config.save_pretrained(folder)
    module.generation_config.save_pretrained(folder)
    save_file(_untied_state(module), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # as its neighbours: a cache may have several users


def _untied_state(module: nn.Module) -> dict[str, Tensor]:
    """Each tensor once, under its first name: a tied head is made again from the configuration."""
    state: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict().items():
        state.setdefault(tensor.data_ptr(), (name, tensor.contiguous()))
    return dict(state.values())


def _convert_tokenizer(path: Path, folder: Path) -> None:
    reader = GGUFReader(path)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    if _field(reader, "tokenizer.ggml.pre") == "smollm":  # transformers' table of splits does not have it
        digits = pre_tokenizers.Digits(individual_digits=True)
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.save_pretrained(folder)
    _drop_added_pieces(folder / "tokenizer.json", len(_field(reader, "tokenizer.ggml.tokens") or ()))


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _drop_added_pieces(path: Path, num_pieces: int) -> None:
    """transformers adds an <|endoftext|> behind the vocabulary of a model that has none: no row of the head is its."""
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < num_pieces]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
