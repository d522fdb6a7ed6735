"""What a service has loaded stays for good, so the garbage collector does not stop the service to walk it."""

from __future__ import annotations

import asyncio
import gc

from tandem.rpc.serving import load_or_stop


async def test_what_was_loaded_is_left_out_of_collections() -> None:
    try:
        loaded = await load_or_stop(lambda: [[number] for number in range(9)], asyncio.Event())
        assert loaded is not None
        later: list[object] = [[]]
        walked = {id(each) for each in gc.get_objects()}
        assert id(later) in walked
        assert not walked & {id(each) for each in (loaded, *loaded)}
    finally:
        gc.unfreeze()
