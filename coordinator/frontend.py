"""Prompts into tokens and tokens into text, off the event loop where it may take long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tandem.errors import InvalidRequest
from tandem.model.tokenizer import pieces, render_chat, vocabulary_hash
from tandem.rpc.codec.public import RawRequest

ROLES = frozenset({"system", "user", "assistant"})


class Frontend:
    """The target's tokenizer. Its long calls run on one thread of their own, since a tokenizer is not shared safely."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.pieces = pieces(tokenizer)
        self.vocabulary_hash = vocabulary_hash(self.pieces)

    async def prompt(self, raw: RawRequest) -> list[int]:
        """The prompt's token ids. Raises InvalidRequest naming the field."""
        if raw.token_ids is not None:
            return list(raw.token_ids)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, raw)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a few tokens, special ones left out."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _encode(self, raw: RawRequest) -> list[int]:
        if raw.text is not None:
            ids: list[int] = self._tokenizer.encode(raw.text)
            return ids
        if raw.chat is None:
            raise InvalidRequest("input", "none given")
        return self._encode_chat(raw.chat)

    def _encode_chat(self, chat: Sequence[tuple[str, str]]) -> list[int]:
        if not chat:
            raise InvalidRequest("chat", "no messages")
        for role, _ in chat:
            if role not in ROLES:
                raise InvalidRequest("chat.messages.role", f"{role!r:.40} is not system, user or assistant")
        if not self._tokenizer.chat_template:
            raise InvalidRequest("chat", "the model has no chat template")
        try:
            return render_chat(self._tokenizer, [{"role": role, "content": content} for role, content in chat])
        except Exception as error:  # a template refuses by whatever its author chose
            raise InvalidRequest("chat", f"the model's template refuses it: {error}") from error
