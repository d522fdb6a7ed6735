"""One engine behind standard input and output: a JSON object a line, answered by one.

    python main.py vllm_engine                        to begin with, the engine's options come
    {"call": "generate", "ids": [...], ...}           then calls of its methods, in turn

Ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints is no answer

    def answer(result: object) -> None:
        answers.write(json.dumps(result) + "\n")

    engine = importlib.import_module(sys.argv[1]).Engine(json.loads(sys.stdin.readline()))
    answer(engine.version)
    while line := sys.stdin.readline():
        arguments = json.loads(line)
        answer(getattr(engine, arguments.pop("call"))(**arguments))


if __name__ == "__main__":
    main()
