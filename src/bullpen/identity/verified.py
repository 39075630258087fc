"""A cache of tokens whose signature was verified. Expiry is the caller's to check each time."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Generic, TypeVar

C = TypeVar("C")


class VerifiedTokens(Generic[C]):
    """Claims by the digest of their token: the cache holds no token that could be replayed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._claims: dict[bytes, C] = {}

    def claims(self, token: str, verify: Callable[[str], C]) -> C:
        """The claims of ``token``, which ``verify`` reads and checks at its first use."""
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = self._claims.get(digest)
        if found is None:
            found = verify(token)
            if len(self._claims) >= self._most:
                self._claims.clear()
            self._claims[digest] = found
        return found
