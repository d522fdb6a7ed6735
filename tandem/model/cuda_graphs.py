"""CUDA graphs: the hundreds of launches of a forward pass recorded once, and replayed by one."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 2  # before a recording: libraries choose algorithms and take workspaces when they first run


class CudaGraphs:
    """Records work on one CUDA device; all recordings share one pool of memory, so only one may run at a time.

    What the work reads and writes beyond itself must stay where it is; between recordings no intermediate lives on.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Runs `work`, records it, and returns its replay, on the stream that is current when it is called."""
        with torch.cuda.device(self._device):
            self._warm_up(work)
            graph = torch.cuda.CUDAGraph()
            # thread_local: what other threads do on the device meanwhile is none of the recording's business
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        return graph.replay

    def _warm_up(self, work: Callable[[], None]) -> None:
        """On the stream of the recording, behind what runs already."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
