"""Where identity comes from: object uids and the random tail of generated names.

Ids are an input like time: the real source is the operating system's, the
simulator's is its seed.
"""

from __future__ import annotations

import random
import uuid
from typing import Protocol

SUFFIX_LENGTH = 5
# Kubernetes leaves vowels and look-alikes out so that no name spells a word.
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class Ids(Protocol):
    def uid(self) -> str:
        """A new object uid: a random UUID as text."""

    def suffix(self) -> str:
        """Five characters to complete a ``generateName``."""


class RandomIds:
    """Ids from a random source; ``random.SystemRandom`` unless a seed is wanted."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()

    def uid(self) -> str:
        return str(uuid.UUID(int=self._source.getrandbits(128), version=4))

    def suffix(self) -> str:
        return "".join(self._source.choice(_SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))
