"""vLLM on a CPU, greedy, alone or with a draft model; without its prefix cache, which no prompt here could use."""

from __future__ import annotations

import os
import time
from typing import Any

# read when vllm is imported
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

import vllm


class Engine:
    version = f"vllm {vllm.__version__}"

    def __init__(self, options: dict[str, Any]) -> None:
        draft = {"model": options["draft"], "num_speculative_tokens": options["num_draft_tokens"]}
        self._engine = vllm.LLM(
            options["model"],
            dtype=options["dtype"],
            skip_tokenizer_init=True,
            max_model_len=options["max_length"],
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config={"method": "draft_model", **draft} if options["draft"] else None,
        ).llm_engine
        self._num_requests = 0

    def generate(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        """The answer to `ids`, end tokens ignored; times in seconds from the call on."""
        wishes = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._num_requests += 1
        began_s, first_s, num_first, num_steps = time.perf_counter(), 0.0, 0, 0
        self._engine.add_request(str(self._num_requests), {"prompt_token_ids": ids}, wishes)
        tokens: list[int] = []
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens = list(output.outputs[0].token_ids)
                num_steps += 1
            if tokens and not num_first:
                num_first, first_s = len(tokens), time.perf_counter() - began_s
        return {
            "token_ids": tokens,
            "total_s": time.perf_counter() - began_s,
            "first_s": first_s,
            "num_first": num_first,
            "num_verifies": num_steps,
        }
