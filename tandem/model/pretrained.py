"""transformers' own readers: quiet, offline, without foreign code, and strict about missing weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

from tandem.errors import ModelError

# Any: transformers has no hints for most of what is called here, and wrong ones for the rest.
_configs: Any = AutoConfig
_models: Any = AutoModelForCausalLM
_logging: Any = logging
_logging.disable_progress_bar()

LOCAL = {"trust_remote_code": False, "local_files_only": True}


def read_config(folder: Path) -> PretrainedConfig:
    config: PretrainedConfig = _configs.from_pretrained(str(folder), **LOCAL)
    return config


def read_model(folder: Path, **options: Any) -> Any:
    """The causal language model of `folder`. Raises ModelError on missing weights, else what transformers raises."""
    module, report = _models.from_pretrained(str(folder), output_loading_info=True, **LOCAL, **options)
    return _complete(module, report)


def model_from_state(config: PretrainedConfig, state: dict[str, Tensor], **options: Any) -> Any:
    """The causal language model of `config` with the weights in `state`. Raises as `read_model` does."""
    architecture: Any = type(skeleton(config))
    module, report = architecture.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True, **options
    )
    return _complete(module, report)


def skeleton(config: PretrainedConfig) -> Any:
    """The model of `config` without memory for its weights."""
    with torch.device("meta"):
        return _models.from_config(config)


def _complete(module: Any, report: Any) -> Any:
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random weights in their place
        raise ModelError(f"no weights for {', '.join(missing[:3])}{' and more' if missing[3:] else ''}")
    return module
