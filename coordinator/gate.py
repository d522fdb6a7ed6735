"""Which workers may be used: those whose tokens mean what ours mean, and that are of one kind with their pool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from tandem.core.types import Description
from tandem.rpc.link import Link


class VocabularyGate:
    """Lets in workers whose tokenizer has the pieces that the coordinator's has."""

    def __init__(self, pieces: Sequence[str], vocabulary_hash: str) -> None:
        self._pieces = pieces
        self._hash = vocabulary_hash

    async def why_not(self, link: Link, description: Description) -> str:
        if description.vocabulary_hash == self._hash:
            return ""
        return first_difference(self._pieces, await link.pieces())


def misfit(description: Description, fingerprints: Collection[str], others: Sequence[Description]) -> str:
    """Why a worker does not belong beside `others`; empty if it does. `fingerprints`: what it must agree with.

    Another model would go on with a text of the first; a worker that has two addresses would count as two.
    """
    for fingerprint in fingerprints:
        if fingerprint != description.fingerprint:
            return f"another fingerprint: {description.fingerprint}, the pool's is {fingerprint}"
    if description.incarnation and any(description.incarnation == other.incarnation for other in others):
        return "the same worker under another address"
    return ""


def first_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Where two vocabularies part, in words."""
    for index, (mine, other) in enumerate(zip_longest(ours, theirs)):
        if mine != other:
            return f"another vocabulary: token {index} is {_quoted(other)}, the target's is {_quoted(mine)}"
    return "another vocabulary: the hashes differ though the pieces do not"


def _quoted(piece: str | None) -> str:
    return "missing" if piece is None else repr(piece)
