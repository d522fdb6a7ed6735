"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tandem.client.errors import ClientClosed

_DRAIN_S = 2.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for any thread until it is stopped; then it cancels what is left of them, and runs `closing`."""

    def __init__(self, name: str, closing: Callable[[], Awaitable[None]]) -> None:
        self._closing = closing
        self._lock = threading.RLock()  # a generator collected in the midst of _submit posts from within it
        self._open = True
        self._tasks: set[asyncio.Task[Any]] = set()  # what was submitted and still runs
        self.kept: set[object] = set()  # what the collector must not find: it would end it in the midst of a step here
        self._started = threading.Event()
        # A daemon: who forgets to stop it must still be able to leave.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The coroutine's result. Raises ClientClosed if the thread is stopped, before or meanwhile."""
        future = self._submit(function, *args, **kwargs)
        if future is None:
            raise ClientClosed()
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise ClientClosed() from error
        except BaseException:
            future.cancel()  # of use when it is the waiting that was interrupted
            raise

    def post(self, function: Callable[_P, Coroutine[Any, Any, None]], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Runs it soon, if there is still a loop to run on. Never waits, so that it may be called in a finaliser."""
        self._submit(function, *args, **kwargs)

    def stop(self) -> None:
        """Returns when the thread has ended; may be called again, and by any thread."""
        with self._lock:
            if self._open:
                self._open = False
                self._loop.call_soon_threadsafe(self._end.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _submit(
        self, function: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> concurrent.futures.Future[_T] | None:
        with self._lock:  # nothing may be handed to the loop once it has been told to end
            if not self._open:
                return None
            return asyncio.run_coroutine_threadsafe(self._noted(function(*args, **kwargs)), self._loop)

    async def _noted(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await coroutine

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._started.set()
        await self._end.wait()
        running = tuple(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._closing()
        await self._drain()

    async def _drain(self) -> None:
        """Lets gRPC's own tasks end: its events would still come for a loop that is closed before."""
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=_DRAIN_S)
