"""transformers' own generate(), greedy, alone or assisted by a draft with transformers' own settings for it."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

_models: Any = AutoModelForCausalLM
_logging: Any = logging
_logging.disable_progress_bar()


class Engine:
    version = f"transformers {transformers.__version__}"

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._model = _load(options["model"], options["dtype"])
        self._draft = _load(options["draft"], options["dtype"]) if options["draft"] else None
        self._num_forwards = 0
        self._model.register_forward_hook(self._count)

    def generate(self, ids: list[int], max_tokens: int, assisted: bool) -> dict[str, Any]:
        """The answer to `ids`, end tokens ignored; times in seconds from the call on."""
        self._num_forwards = 0
        arrivals, prompt = _Arrivals(), torch.tensor([ids])
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,
            streamer=arrivals,
            assistant_model=self._draft if assisted else None,
        )
        return {
            "token_ids": output[0, len(ids) :].tolist(),
            "total_s": time.perf_counter() - arrivals.began_s,
            "first_s": arrivals.first_s,
            "num_first": arrivals.num_first,
            "num_verifies": self._num_forwards,
        }

    def gap(self, context: list[int], candidates: list[int]) -> float:
        """How far the lowest of `candidates` lies below the best token after `context`, in logits."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([context])).logits[0, -1]
        return float(logits.max() - logits[candidates].min())

    def _count(self, *_: Any) -> None:
        self._num_forwards += 1


class _Arrivals:
    """A streamer that looks at the clock: the prompt comes first, then the tokens."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.first_s = 0.0
        self.num_first = 0
        self._has_prompt = False

    def put(self, tokens: torch.Tensor) -> None:
        if self._has_prompt and not self.num_first:
            self.num_first = tokens.numel()
            self.first_s = time.perf_counter() - self.began_s
        self._has_prompt = True

    def end(self) -> None:
        pass


def _load(folder: str, dtype: str) -> Any:
    model = _models.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True).eval()
    model.generation_config.eos_token_id = None
    return model
