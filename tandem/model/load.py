"""From a resolved folder to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PretrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig

from tandem.errors import ModelError
from tandem.model.attention import ATTENTION
from tandem.model.draft_layers import assemble, draft_target
from tandem.model.fingerprint import fingerprint
from tandem.model.fixed_shapes import why_not
from tandem.model.lean import LeanDecoder, fits
from tandem.model.loaded import LoadedModel
from tandem.model.pretrained import read_config, read_model
from tandem.model.probe import Findings, agree, probe
from tandem.model.simulated import load_simulated, read_simulation
from tandem.model.tokenizer import load_tokenizer, pieces, vocabulary_hash

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
DEFAULT_CONTEXT_LENGTH = 2048


def load_model(
    folder: Path,
    dtype: torch.dtype,
    device: str,
    target_folder: Path | None = None,
    *,
    name: str = "",
    tensor_parallel_size: int = 1,
    lean: bool = True,
    cuda_graphs: bool = False,
) -> LoadedModel:
    """Loads a model folder; one of draft layers takes embeddings, head and tokenizer from `target_folder`.

    With `tensor_parallel_size` above 1 every rank calls this, inside an initialised process group. `lean`: models that
    a LeanDecoder fits run on one. `cuda_graphs`: those whose steps can be recorded will be, which changes last bits and
    so the fingerprint.
    Raises ModelError naming the folder where files are missing or corrupt, where the weights do not fit the
    configuration, or where the architecture keeps state that is no KV.
    """
    if simulation := read_simulation(folder):
        return load_simulated(folder, name, simulation)
    folders = _folders(folder, target_folder)
    with _blaming(folder):
        module, row_ids = _load_module(folders, dtype, tensor_parallel_size)
        module = module.to(device).eval().requires_grad_(False)
        config: PretrainedConfig = module.config
        found = probe(module, _text_config(config).num_hidden_layers)
        kernels = "transformers"
        if lean and fits(module):
            module = _lean(module, found)
            kernels = module.kernels
        if cuda_graphs and not why_not(module):
            kernels += "-graphs"
        tokenizer = load_tokenizer(folders[-1])
        vocabulary = pieces(tokenizer)
        return LoadedModel(
            module=module,
            name=name or folder.name,
            fingerprint=fingerprint(folders, f"{dtype} {kernels}", tensor_parallel_size),
            dtype=dtype,
            device=device,
            context_length=_context_length(config),
            end_token_ids=end_token_ids(folders[-1], config, tokenizer.eos_token_id),
            head_width=found.head_width,
            num_pieces=len(vocabulary),
            vocabulary_hash=vocabulary_hash(vocabulary),
            kv_bytes_per_token=found.kv_bytes_per_token,
            row_ids=None if row_ids is None else row_ids.to(device),
        )


def _lean(module: Any, found: Findings) -> LeanDecoder:
    """Takes over `module`, of which `found` is known. Raises ModelError where its logits change."""
    decoder = LeanDecoder(module)
    again = probe(decoder, len(decoder.layers))
    if not agree(again.logits, found.logits):
        raise ModelError(f"{type(module).__name__} computes other logits than its lean decoder")
    return decoder


def _folders(folder: Path, target: Path | None) -> list[Path]:
    """[folder] of a whole model, [folder, target] of draft layers."""
    if draft_target(folder) is None:
        return [folder]
    if target is None:
        raise ModelError(f"{folder}: draft layers need their target's folder: set model.target")
    return [folder, target]


def _load_module(folders: list[Path], dtype: torch.dtype, tensor_parallel_size: int) -> tuple[Any, Tensor | None]:
    _refuse_unfit(read_config(folders[-1]))
    if len(folders) == 2:
        return assemble(folders[0], folders[1], dtype, ATTENTION)
    options = {"dtype": dtype, "attn_implementation": ATTENTION, "use_safetensors": True}
    if tensor_parallel_size == 1:
        return read_model(folders[0], **options), None
    sharing = DistributedConfig(tp_size=tensor_parallel_size, tp_plan="auto")
    module = read_model(folders[0], **options, distributed_config=sharing)
    if not any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise ModelError(f"{type(module).__name__} has no plan by which ranks could share it")
    return module, None


def _refuse_unfit(config: PretrainedConfig) -> None:
    """Before weights are read: architectures whose layers are known to be more than attention over KV."""
    if config.is_encoder_decoder:
        raise ModelError(f"{config.model_type} is an encoder-decoder model")
    unfit = set(getattr(_text_config(config), "layer_types", None) or ()) - ATTENTION_LAYERS
    if unfit:
        raise ModelError(f"{config.model_type} has {', '.join(sorted(unfit))} layers, which do not run on a KV pool")


def _text_config(config: PretrainedConfig) -> PretrainedConfig:
    return config.get_text_config(decoder=True)


def _context_length(config: PretrainedConfig) -> int:
    return getattr(_text_config(config), "max_position_embeddings", None) or DEFAULT_CONTEXT_LENGTH


def end_token_ids(folder: Path, config: PretrainedConfig, of_tokenizer: int | None) -> frozenset[int]:
    """All that config.json, generation_config.json and the tokenizer call an end."""
    found = [of_tokenizer, _text_config(config).eos_token_id]
    if (folder / "generation_config.json").exists():
        found.append(GenerationConfig.from_pretrained(str(folder), local_files_only=True).eos_token_id)
    ids: set[int] = set()
    for entry in found:
        ids.update(entry if isinstance(entry, list | tuple) else [] if entry is None else [entry])
    return frozenset(ids)


@contextmanager
def _blaming(folder: Path) -> Iterator[None]:
    """Whatever goes wrong inside is said of `folder`: transformers raises a dozen types for a bad file."""
    try:
        yield
    except Exception as error:
        message = str(error) if isinstance(error, ModelError) and str(folder) in str(error) else f"{folder}: {error}"
        raise ModelError(message) from error
