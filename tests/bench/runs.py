"""A run that was never measured: figures chosen so that what they come to is known."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.bench.latency import Answer, Record, Run
from tandem.bench.speedup import Probe

ROWS = ("transformers", "assisted", "plain", "in-turn:2", "pipelined:2", "adaptive", "vllm", "llamacpp-stored")
SETTINGS = {"target": "large", "draft": "small", "dtype": "float32", "setup": "two-devices", "max_tokens": 8}
TOKENS = tuple(range(8))
STEP_S = 0.1

# Seven tokens behind the first. Plain: 7 rounds of 0.1 s. Drafted: 3 rounds of 2 draft tokens, 4 of 6 accepted.
PLAIN = Answer(TOKENS, 1.0, 0.3, 1, num_verifies=8, decode_s=0.7, verify_s=0.7)
DRAFTED = Answer(
    TOKENS,
    0.75,
    0.3,
    1,
    num_verifies=4,
    num_drafted=6,
    num_accepted_per_position=(3, 1),
    num_fallbacks=1,
    decode_s=0.42,
    verify_s=0.36,
    draft_wait_s=0.06,
)
ANSWERS = {
    "transformers": Answer(TOKENS, 2.0, 0.5, 1, num_verifies=8),
    "assisted": Answer(TOKENS, 4.0, 0.5, 1, num_verifies=6),
    "plain": PLAIN,
    "in-turn:2": DRAFTED,
    "pipelined:2": DRAFTED,
    "adaptive": DRAFTED,
    "vllm": Answer((*TOKENS[:5], 9, 9, 9), 0.8, 0.1, 1, num_verifies=8),
    "llamacpp-stored": Answer((7, *TOKENS[1:]), 0.5, 0.1, 1),
}
GAPS = {"vllm": 1e-5, "llamacpp-stored": 3.0}
PROBES = [Probe(0, STEP_S, 0.0), Probe(2, 0.12, 0.02), Probe(8, 0.18, 0.08)]


def run(categories: Sequence[str] = ("qa", "rag", "qa")) -> Run:
    records = [Record(str(index), category, 20, ANSWERS, GAPS) for index, category in enumerate(categories)]
    return Run(ROWS, SETTINGS, {"date": "today", "machine": "none"}, list(PROBES), records)
