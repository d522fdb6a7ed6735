"""On which tokens a call stands: the running digest, and what of a cache a stated prefix keeps.

    session tokens   [ a b c d e | x y ]        the caller said a..e, x y were speculated
    stated prefix    [ a b c d e   x z ]        start = 5, tokens = (x, z)
                       ^^^^^^^^^^^^^            kept: 6 positions, the first that differs is fed anew

Roll-back is nothing but this: the next call names another prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.core.types import Prefix

EMPTY_DIGEST = 0x9E3779B97F4A7C15
_MULTIPLIER = 0xBF58476D1CE4E5B9
_MASK = (1 << 64) - 1


def extend_digest(digest: int, token: int) -> int:
    """The 64-bit digest of a token list with `token` appended, from the digest of the list."""
    mixed = ((digest ^ (token + 1)) * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 31)


def digest_of(tokens: Iterable[int]) -> int:
    """The 64-bit running digest of `tokens`."""
    digest = EMPTY_DIGEST
    for token in tokens:
        digest = extend_digest(digest, token)
    return digest


class TokenList:
    """A growing token list that knows the digest of each of its prefixes."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        self._digests: list[int] = [EMPTY_DIGEST]  # [i] covers tokens[:i]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, span: slice) -> list[int]:
        return self._tokens[span]

    @property
    def ids(self) -> Sequence[int]:
        """The tokens themselves, to be read."""
        return self._tokens

    def digest(self, length: int) -> int:
        """Digest of the first `length` tokens."""
        return self._digests[length]

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._digests.append(extend_digest(self._digests[-1], token))

    def truncate(self, length: int) -> None:
        del self._tokens[length:]
        del self._digests[length + 1 :]

    def common_length(self, start: int, tokens: Sequence[int]) -> int:
        """Length up to which this list equals its own [0, start) followed by `tokens`."""
        for offset, token in enumerate(tokens):
            if start + offset >= len(self._tokens) or self._tokens[start + offset] != token:
                return start + offset
        return start + len(tokens)


@dataclass(frozen=True, slots=True)
class Missing:
    """The stated prefix cannot be built from what is here; `have` tokens can be relied on."""

    have: int


def state_prefix(tokens: TokenList, speculated: Sequence[int], num_prompt_tokens: int, start: int) -> Prefix:
    """The prefix of all committed `tokens` followed by `speculated` ones, sent from `start` on."""
    digest = tokens.digest(len(tokens))
    for token in speculated:
        digest = extend_digest(digest, token)
    return Prefix(
        length=len(tokens) + len(speculated),
        num_committed=len(tokens),
        num_prompt_tokens=num_prompt_tokens,
        digest=digest,
        start=start,
        tokens=(*tokens[start:], *speculated),
    )


def reconcile(tokens: TokenList, cached_len: int, prefix: Prefix) -> int | Missing:
    """Makes `tokens` the stated prefix; returns how many cached positions stay valid.

    The digest is checked before anything changes. The last stated token is always fed again, so at most
    `prefix.length - 1` positions are kept: that covers rejection, bonus and full acceptance alike.
    """
    if prefix.start > len(tokens):
        return Missing(len(tokens))
    digest = tokens.digest(prefix.start)
    for token in prefix.tokens:
        digest = extend_digest(digest, token)
    if digest != prefix.digest:
        return Missing(0)
    common = tokens.common_length(prefix.start, prefix.tokens)
    tokens.truncate(common)
    tokens.extend(prefix.tokens[common - prefix.start :])
    return min(common, cached_len, prefix.length - 1)
