"""A model that computes nothing: a forward pass takes the time it is told to take, and what comes next is a script.

For `tandem bench orchestration`, which wants real services around devices of known speed. A simulated model is a folder
like any other, with a tokenizer and a config.json, and is loaded and served by the same code.

The right token after token t at position i is a hash of (t, i). A simulated model names it with the chance `agreement`,
itself a hash of (t, i), and else its neighbour: so a draft is right with a known and independent chance at every
position, however often it is asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tandem.core.noise import Purpose, noise_key, uniforms
from tandem.errors import ModelError
from tandem.model.fingerprint import fingerprint
from tandem.model.loaded import LoadedModel
from tandem.model.tokenizer import load_tokenizer, pieces, vocabulary_hash

_CONFIG_KEY = "tandem_simulation"
_MAX_LENGTH = 1 << 20
_SPIN_S = 0.00015
_HIGH = 5.0  # logit of the named token; 0 elsewhere


@dataclass(frozen=True, slots=True)
class Simulation:
    """How long a forward pass takes, and how often the model is right."""

    step_s: float  # of a forward pass, beside its rows
    row_s: float = 0.0  # of each row
    agreement: float = 1.0  # chance that the right token is named
    vocab_size: int = 512
    context_length: int = 8192

    def seconds(self, num_rows: int) -> float:
        """Of a forward pass of `num_rows` rows."""
        return self.step_s + self.row_s * num_rows

    def named(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The token that follows each of `tokens` at its position, as this model has it. All int64 [n]."""
        ids = tokens * _MAX_LENGTH + positions
        right = (uniforms([_key(Purpose.PLAIN)], ids)[0] * self.vocab_size).long()
        errs = uniforms([_key(Purpose.DRAFT)], ids)[0] >= self.agreement
        return (right + errs) % self.vocab_size

    def continuation(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What this model alone says after `prompt`."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.named(torch.tensor(tokens[-1:]), torch.tensor([len(tokens) - 1]))))
        return tokens[len(prompt) :]


def _key(purpose: Purpose) -> int:
    return noise_key(0, 0, 0, purpose)


class SimulatedDecoder(nn.Module):
    """Stands where a causal language model would."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation = simulation
        self.embedding = nn.Embedding(simulation.vocab_size, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> SimpleNamespace:
        """`logits`: [1, len(logits_to_keep), V], after the time that this many rows take. input_ids: [1, rows]."""
        until_s = time.monotonic() + self.simulation.seconds(input_ids.shape[1])
        named = self.simulation.named(input_ids[0, logits_to_keep], position_ids[0, logits_to_keep])
        logits = torch.zeros(1, len(named), self.simulation.vocab_size)
        logits[0, torch.arange(len(named)), named] = _HIGH
        _sleep_until(until_s)
        return SimpleNamespace(logits=logits)


def _sleep_until(until_s: float) -> None:
    """To some microseconds: a sleep comes back late, so the last bit is spun away."""
    time.sleep(max(until_s - time.monotonic() - _SPIN_S, 0.0))
    while time.monotonic() < until_s:
        pass


def save_simulated(folder: Path, simulation: Simulation) -> Path:
    """Writes a simulated model; all of one `vocab_size` have one vocabulary, of words w0, w1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer(simulation.vocab_size).save_pretrained(folder)
    config = {"model_type": "llama", _CONFIG_KEY: asdict(simulation)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def read_simulation(folder: Path) -> Simulation | None:
    """What a folder simulates; None where it holds a real model. Raises ModelError."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(_CONFIG_KEY)
        return None if fields is None else Simulation(**fields)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}: config.json: {error}") from error


def load_simulated(folder: Path, name: str, simulation: Simulation) -> LoadedModel:
    """A simulated model, ready to run."""
    vocabulary = pieces(load_tokenizer(folder))
    return LoadedModel(
        module=SimulatedDecoder(simulation).eval().requires_grad_(False),
        name=name or folder.name,
        fingerprint=fingerprint([folder], "simulated", 1),
        dtype=torch.float32,
        device="cpu",
        context_length=simulation.context_length,
        end_token_ids=frozenset(),
        head_width=simulation.vocab_size,
        num_pieces=len(vocabulary),
        vocabulary_hash=vocabulary_hash(vocabulary),
        kv_bytes_per_token=1,
    )


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({f"w{index}": index for index in range(vocab_size)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Sequence([decoders.Replace("w", " w"), decoders.Fuse()])
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    return tokenizer
