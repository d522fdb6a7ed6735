"""What of one generation has come, over all its attempts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.client.errors import ProtocolFault
from tandem.client.request import Request
from tandem.client.results import Chunk, Finish, Generation, Start

_MAX_REQUEST_ID = 128


class Progress:
    """Owned by one generation: says what to ask for next, and whether a chunk is the one that must come."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._output: list[int] = []
        self._start: Start | None = None
        self._finish: Finish | None = None
        self._num_attempts = 0
        self._num_resumptions = 0

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def next_request(self) -> Request:
        """Of the next attempt, under an id of its own: the one before may still run."""
        self._num_attempts += 1
        request = self._request
        if self._start is not None:
            self._num_resumptions += 1
            request = request.going_on(self._start, self._output)
        return replace(request, request_id=self._request_id())

    def receive(self, chunk: Chunk) -> Chunk:
        """The chunk as the caller shall see it. Raises ProtocolFault for a gap, a repetition or an overlap."""
        if self.finished:
            raise ProtocolFault("a chunk after the last one")
        if chunk.offset != len(self._output):
            raise ProtocolFault(f"a chunk begins at token {chunk.offset}, expected was {len(self._output)}")
        chunk = self._with_one_start(chunk)
        self._output.extend(chunk.token_ids)
        if chunk.finish is not None:
            self._end(chunk.finish)
        return chunk

    def check_finished(self) -> None:
        """Raises ProtocolFault if a stream that ended well has not brought the end."""
        if not self.finished:
            raise ProtocolFault("the stream ended without a finish")

    def generation(self, chunks: Sequence[Chunk]) -> Generation:
        """The whole, from all chunks that were received."""
        assert self._start is not None and self._finish is not None
        return Generation(
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(self._output),
            finish_reason=self._finish.reason,
            stop=self._finish.stop,
            stop_token_id=self._finish.stop_token_id,
            num_prompt_tokens=self._finish.num_prompt_tokens,
            num_reused_prompt_tokens=self._finish.num_reused_prompt_tokens,
            num_output_tokens=self._finish.num_output_tokens,
            speculation=self._finish.speculation,
            timing=self._finish.timing,
            logprobs=tuple(row for chunk in chunks for row in chunk.logprobs),
            origins=tuple(origin for chunk in chunks for origin in chunk.origins),
            seed=self._start.seed,
            target_fingerprint=self._start.target_fingerprint,
            prompt_token_ids=self._start.prompt_token_ids,
            request_id=self._request.request_id,
            num_resumptions=self._num_resumptions,
        )

    def _request_id(self) -> str:
        if self._num_attempts == 1:
            return self._request.request_id
        suffix = f"/{self._num_attempts}"
        return self._request.request_id[: _MAX_REQUEST_ID - len(suffix)] + suffix

    def _with_one_start(self, chunk: Chunk) -> Chunk:
        """Every attempt begins with a start; the caller sees the first."""
        if self._start is None:
            if chunk.start is None:
                raise ProtocolFault("the first chunk does not say how to go on")
            self._start = chunk.start
            return chunk
        if chunk.start not in (None, self._start):
            raise ProtocolFault("the generation goes on from another seed, target or prompt than it began with")
        return replace(chunk, start=None)

    def _end(self, finish: Finish) -> None:
        if finish.num_output_tokens != len(self._output):
            raise ProtocolFault(f"{len(self._output)} tokens came of {finish.num_output_tokens}")
        self._finish = finish
