"""From a model's name to a folder with config.json, safetensors and a tokenizer. Light to import."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from pathlib import Path

from tandem.errors import ModelError

PACKAGE = "package:"
OnPhase = Callable[[str], None]


def resolve(name: str, cache: Path, on_phase: OnPhase = lambda _: None) -> Path:
    """The folder of model `name`; `on_phase` hears of what takes long.

    An existing folder is returned as it is, one of draft layers too. A GGUF file, or `package:NAME` for the one inside
    an installed Python package, is converted once into `cache`. Any other name is looked up in the hub's cache, then on
    the hub. Raises ModelError naming the model: at once for what looks like a path, within 5 s for the hub.
    """
    if (gguf := gguf_file(name, cache)) is not None:
        return _converted(gguf, cache, on_phase)
    if not name:
        raise ModelError("no model is named: set model.target, and on a draft worker model.draft too")
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.suffix == ".gguf" or name.startswith((".", "~", os.sep)):
        raise ModelError(f"{name!r}: no such model folder or file")
    from tandem.model.hub import fetch

    return _checked(fetch(name, on_phase))


def gguf_file(name: str, cache: Path) -> Path | None:
    """The GGUF file that `name` stands for, joined in `cache` where it comes in parts; None where it is no such name.

    Raises ModelError for a package without one.
    """
    if name.startswith(PACKAGE):
        return _gguf_of_package(name, cache)
    path = Path(name).expanduser()
    return path if path.suffix == ".gguf" and path.is_file() else None


def _converted(path: Path, cache: Path, on_phase: OnPhase) -> Path:
    from tandem.model.conversion import convert_once

    return convert_once(path, cache, on_phase)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder}: no safetensors")
    return folder


def _gguf_of_package(name: str, cache: Path) -> Path:
    """One file in package NAME, or the parts of one in the packages NAME_part1, NAME_part2 and so on."""
    package = name.removeprefix(PACKAGE)
    folders = _folders_of_package(package)
    if folders is None:
        raise ModelError(f"{name}: no such package is installed")
    found = [path for folder in folders for path in folder.rglob("*.gguf")]
    if not found and (parts := _parts(package)):
        return _joined(parts, cache)
    if len(found) != 1:
        raise ModelError(f"{name}: {len(found)} GGUF files in the package, not one")
    return found[0]


def _folders_of_package(package: str) -> list[Path] | None:
    """Found without importing it: its code is not ours to run. None if there is no such package."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module that runs without a spec, such as __main__
        spec = None
    return None if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _parts(package: str) -> list[Path]:
    folders = takewhile(bool, (_folders_of_package(f"{package}_part{number}") for number in count(1)))
    return [path for found in folders for folder in found or () for path in sorted(folder.rglob("*.gguf.part*"))]


def _joined(parts: Sequence[Path], cache: Path) -> Path:
    whole = cache / parts[0].name.partition(".part")[0]
    if whole.is_file() and whole.stat().st_size == sum(part.stat().st_size for part in parts):
        return whole
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
    return Path(file.name).rename(whole)
