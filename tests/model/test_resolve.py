from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tandem.errors import ModelError
from tandem.model import hub
from tandem.model.resolve import gguf_file, resolve

MakeFolder = Callable[..., Path]


def test_a_folder_is_returned_as_it_is(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder("llama")
    assert resolve(str(folder), tmp_path) == folder
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "../none", "none.gguf", "~/no-such-model"])
def test_paths_to_nothing_fail_at_once(name: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(ModelError, match=name):
        resolve(name, tmp_path)
    assert time.monotonic() - begin < 0.5


def test_an_empty_name_is_no_name_for_this_folder(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_folder("llama"))
    with pytest.raises(ModelError, match=r"model\.target"):
        resolve("", Path("cache"))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"{tmp_path}: no config\.json"):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no safetensors"):
        resolve(str(tmp_path), tmp_path)


def test_a_hub_name_out_of_reach_fails_in_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on port 9 of this machine."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    with pytest.raises(ModelError, match="no-such-owner/no-such-model"):
        resolve("no-such-owner/no-such-model", tmp_path)
    assert time.monotonic() - begin < 5


def test_a_hub_that_never_answers_does_not_hold_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: time.sleep(2))
    monkeypatch.setattr(hub, "REACH_S", 0.1)
    with pytest.raises(ModelError, match=r"no-such-owner/no-such-model.*did not answer"):
        resolve("no-such-owner/no-such-model", tmp_path)


def test_names_that_are_neither_path_nor_hub_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a/b/c"):
        resolve("a/b/c", tmp_path)


def test_a_package_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "explosive_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="package:explosive_package: 0 GGUF files"):
        resolve("package:explosive_package", tmp_path)
    (package / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"tiny\.gguf: cannot be converted"):
        resolve("package:explosive_package", tmp_path)
    assert "explosive_package" not in sys.modules


@pytest.mark.parametrize(
    "name", ["package:no_such_package", "package:", "package:a.b", "package:../x", "package:specless"]
)
def test_packages_that_are_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specless", ModuleType("specless"))
    with pytest.raises(ModelError, match="no such package"):
        resolve(name, tmp_path)


def test_a_file_in_parts_is_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index has a limit on the size of a file: large models come as NAME, NAME_part1, NAME_part2..."""
    monkeypatch.syspath_prepend(tmp_path)
    contents = {"split_model": None, "split_model_part1": b"GG", "split_model_part2": b"UF", "split_model_part4": b"!"}
    for package, content in contents.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        if content:
            (tmp_path / package / f"tiny.gguf.part0{package[-1]}").write_bytes(content)
    cache = tmp_path / "cache"
    whole = gguf_file("package:split_model", cache)
    assert whole is not None and whole.read_bytes() == b"GGUF"
    assert gguf_file("package:split_model", cache) == whole and list(cache.iterdir()) == [whole]
    (tmp_path / "split_model_part2" / "tiny.gguf.part02").write_bytes(b"UFO")
    assert gguf_file("package:split_model", cache) == whole and whole.read_bytes() == b"GGUFO"
    assert gguf_file(str(whole), cache) == whole and gguf_file("owner/model", cache) is None
