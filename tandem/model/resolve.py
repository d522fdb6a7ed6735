"""From a model's name to a folder with config.json, safetensors and a tokenizer. Light to import."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
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
    if name.startswith(PACKAGE):
        return _converted(_gguf_of_package(name), cache, on_phase)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _checked(path)
    if path.suffix == ".gguf" and path.is_file():
        return _converted(path, cache, on_phase)
    if not name or path.suffix == ".gguf" or name.startswith((".", "~", os.sep)):
        raise ModelError(f"{name!r}: no such model folder or file")
    from tandem.model.hub import fetch

    return _checked(fetch(name, on_phase))


def _converted(path: Path, cache: Path, on_phase: OnPhase) -> Path:
    from tandem.model.conversion import convert_once

    return convert_once(path, cache, on_phase)


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder}: no safetensors")
    return folder


def _gguf_of_package(name: str) -> Path:
    """Finds the package without importing it: its code is not ours to run."""
    package = name.removeprefix(PACKAGE)
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:  # a module that runs without a spec, such as __main__
        spec = None
    if spec is None:
        raise ModelError(f"{name}: no such package is installed")
    found = [path for root in spec.submodule_search_locations or () for path in Path(root).rglob("*.gguf")]
    if len(found) != 1:
        raise ModelError(f"{name}: {len(found)} GGUF files in the package, not one")
    return found[0]
