"""Model folders from the Hugging Face hub, in bounded time where there is no way to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from tandem.errors import ModelError

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Second copies of the weights, in other layouts.
IGNORED = ["consolidated*", "original/*", "onnx/*"]
REACH_S = 4.0


def fetch(name: str, on_phase: Callable[[str], None]) -> Path:
    """The snapshot of hub model `name`, from the hub's cache where that has its weights.

    Raises ModelError naming the model; within 5 s where the hub does not answer.
    """
    cached = _cached(name)
    if cached is not None and any(cached.glob("*.safetensors")):
        return cached
    _reach(name)
    on_phase(f"downloading {name}")
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS, ignore_patterns=IGNORED))
    except Exception as error:  # the hub's own errors, and those of the HTTP client below it
        raise ModelError(f"{name}: download failed: {error}") from error


def _cached(name: str) -> Path | None:
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelError(f"{name}: neither a folder nor a hub name: {error}") from error


def _reach(name: str) -> None:
    """One small question, on a thread of its own: neither name look-up nor the client's retries keep a time limit."""
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=REACH_S)
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, name="hub", daemon=True)
    thread.start()
    thread.join(REACH_S)
    if not outcome:
        raise ModelError(f"{name}: not in the local cache, and the hub did not answer within {REACH_S:g} s")
    if outcome[0] is not None:
        raise ModelError(f"{name}: not in the local cache, and not to be had from the hub: {outcome[0]}") from outcome[
            0
        ]
