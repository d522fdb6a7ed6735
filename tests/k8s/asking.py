"""A client that asks again and again until SIGTERM: asking.py ADDRESS

It takes its requests from /out/requests.json and writes a line for each answer to /out/answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem import AsyncClient

OUT = Path("/out")
NUM_TASKS = 2
ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
OPTIONS = (("grpc.service_config", ROUND_ROBIN), ("grpc.dns_min_time_between_resolutions_ms", 1000))


async def ask(client: AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    try:
        generation = await client.generate(**request, timeout_s=120)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "token_ids": list(generation.token_ids),
        "num_accepted": generation.speculation.num_accepted_tokens,
        "num_resumptions": generation.num_resumptions,
    }


async def keep_asking(client: AsyncClient, turns: Iterator[tuple[int, Any]], stopped: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while not stopped.is_set():
        number, request = next(turns)
        began = loop.time()
        answer = {"request": number, **await ask(client, request), "seconds": loop.time() - began}
        with (OUT / "answers").open("a") as file:
            file.write(json.dumps(answer) + "\n")


async def main(address: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    turns = itertools.cycle(enumerate(json.loads((OUT / "requests.json").read_text())))
    async with AsyncClient(address, channel_options=OPTIONS) as client:
        await asyncio.gather(*(keep_asking(client, turns, stopped) for _ in range(NUM_TASKS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
