"""Identities of model files by their content, cheap enough for every start."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

EDGE_BYTES = 4096
NUM_SAMPLES = 64
SAMPLE_BYTES = 64 << 10
# What config.json says of where it lay and who wrote it.
INCIDENTAL = frozenset({"_name_or_path", "transformers_version"})


def fingerprint(folders: list[Path], dtype: str, tensor_parallel_size: int) -> str:
    """sha256 over config.json and weights of `folders`, and over how they are run.

    Of each weight the two ends are read: models that differ, differ in every matrix.
    """
    digest = hashlib.sha256(f"{dtype} {tensor_parallel_size}".encode())
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        config = {key: value for key, value in config.items() if key not in INCIDENTAL}
        digest.update(json.dumps(config, sort_keys=True).encode())
        for path in sorted(folder.glob("*.safetensors")):
            digest.update(_weights_digest(path))
    return digest.hexdigest()


def content_key(path: Path) -> str:
    """A short name for the content of one large file: its size, and samples spread over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for index in range(NUM_SAMPLES):
            file.seek(index * max(0, size - SAMPLE_BYTES) // (NUM_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _weights_digest(path: Path) -> bytes:
    """Of the header of a safetensors file, and the ends of each of its tensors."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
        base = file.tell()
        digest.update(header)
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        for name in sorted(tensors):
            begin, end = tensors[name]["data_offsets"]
            for position in (begin, max(begin, end - EDGE_BYTES)):
                file.seek(base + position)
                digest.update(file.read(min(EDGE_BYTES, end - position)))
    return digest.digest()
