"""Where the coordinators are: one channel per address, made when first needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tandem.client.errors import ClientClosed
from tandem.v1 import coordinator_pb2_grpc

_MAX_MESSAGE_BYTES = 64 << 20
# As between our services: a cut connection is noticed by keep-alive, not at the deadline.
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # a proxy for the web would swallow calls to one's own machine
)


def channel_options(above: Sequence[tuple[str, Any]] = ()) -> list[tuple[str, Any]]:
    """Ours, with those of `above` instead where both name one."""
    return list({**dict(_OPTIONS), **dict(above)}.items())


class Channels:
    """Calls go to the current address; who fails there turns to the next."""

    def __init__(
        self,
        addresses: Sequence[str],
        credentials: grpc.ChannelCredentials | None,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        self._addresses = tuple(addresses)
        self._credentials = credentials
        self._options = channel_options(options)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._position = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> str:
        return self._addresses[self._position]

    def leave(self, address: str) -> None:
        """Turns to the next address, unless another call has turned already."""
        if address == self.current:
            self._position = (self._position + 1) % len(self._addresses)

    def stub(self, address: str) -> Any:
        """Raises ClientClosed."""
        if self._closed:
            raise ClientClosed()
        if address not in self._channels:
            self._channels[address] = self._open(address)
        return coordinator_pb2_grpc.CoordinatorStub(self._channels[address])

    async def close(self) -> None:
        """Ends all calls; may be called again."""
        self._closed = True
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._credentials, options=self._options)
