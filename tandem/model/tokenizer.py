"""Tokenizers of model folders, and the identity of a vocabulary. Light to import: torch comes with the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from tandem.errors import InvalidRequest, ModelError, UnsupportedRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a resolved model folder. Raises ModelError naming the folder."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever the parsers of a dozen file formats raise
        raise ModelError(f"{folder}: no tokenizer: {error}") from error


def pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The vocabulary's pieces in id order; an id that stands for nothing has the empty piece."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    ordered = [""] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token_id in vocabulary.items():
        ordered[token_id] = piece
    return ordered


def vocabulary_hash(pieces: Iterable[str]) -> str:
    """sha256 over the pieces in order, each behind its length, so that no two lists are written alike."""
    digest = hashlib.sha256()
    for piece in pieces:
        encoded = piece.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of `messages` ({"role", "content"}) in the model's own chat template, up to where the answer begins.

    Raises UnsupportedRequest where the model has no template, InvalidRequest where the template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise UnsupportedRequest("the model has no chat template")
    conversation = [dict(message) for message in messages]
    try:
        ids: Any = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except jinja2.TemplateError as error:
        raise InvalidRequest("chat.messages", str(error)) from error
    return [int(token_id) for token_id in ids]
