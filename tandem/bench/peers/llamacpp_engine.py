"""llama.cpp on a GGUF file, greedy, through llama-cpp-python."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import llama_cpp


class Engine:
    version = f"llama-cpp-python {llama_cpp.__version__}"

    def __init__(self, options: dict[str, Any]) -> None:
        threads = options["threads"]
        self._model = llama_cpp.Llama(
            options["model"],
            n_ctx=options["max_length"],
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def generate(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        """The answer to `ids`, end tokens ignored; times in seconds from the call on."""
        began_s, first_s = time.perf_counter(), 0.0
        self._model.reset()  # or else it would go on from what this prompt shares with the one before
        tokens: list[int] = []
        for token in islice(self._model.generate(ids, temp=0.0), max_tokens):
            first_s = first_s or time.perf_counter() - began_s
            tokens.append(int(token))
        total_s = time.perf_counter() - began_s
        return {
            "token_ids": tokens,
            "total_s": total_s,
            "first_s": first_s,
            "num_first": 1,
            "num_verifies": len(tokens),
        }
