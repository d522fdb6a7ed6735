"""The same weights in the forms that other engines read."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

from tandem.model.draft_layers import WEIGHTS, assemble, draft_target
from tandem.model.fingerprint import content_key
from tandem.model.pretrained import read_config
from tandem.model.tokenizer import load_tokenizer

_WRITTEN_BY_WRITER = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def whole_draft(folder: Path, target: Path, cache: Path) -> Path:
    """A draft as an ordinary model folder; one of draft layers gets the embeddings and the full head of `target`."""
    if draft_target(folder) is None:
        return folder
    made = cache / f"{folder.name}-{content_key(folder / WEIGHTS)}-of-{target.name}"
    if not made.is_dir():
        partial = made.with_name(made.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        module, _ = assemble(folder, target, torch.float32, "eager", whole_head=True)
        module.config.tie_word_embeddings = read_config(target).tie_word_embeddings
        module.tie_weights()
        module.save_pretrained(partial)
        load_tokenizer(target).save_pretrained(partial)
        partial.rename(made)
    return made


def float32_gguf(path: Path, cache: Path) -> Path:
    """GGUF file `path` with every tensor as float32: the very weights that a converted folder has."""
    made = cache / f"{path.stem}-{content_key(path)}-F32.gguf"
    if not made.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(".partial")
        _write_float32(GGUFReader(path), partial)
        partial.rename(made)
    return made


def _write_float32(reader: GGUFReader, path: Path) -> None:
    writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    writer.add_file_type(LlamaFileType.ALL_F32)
    for name, field in reader.fields.items():
        if not name.startswith(_WRITTEN_BY_WRITER):
            is_array = field.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
