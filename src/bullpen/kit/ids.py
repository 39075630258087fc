"""The source of ids: object uids and the random suffix of generated names.

Ids are an input like time: the real source is the operating system, the simulator's is its
seed.
"""

from __future__ import annotations

import random
import uuid
from datetime import datetime
from typing import Protocol

SUFFIX_LENGTH = 5
# Kubernetes leaves vowels and look-alikes out so that no name spells a word.
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class Ids(Protocol):
    def uid(self) -> str:
        """A new object uid: a random UUID as text."""

    def suffix(self) -> str:
        """Five characters to complete a ``generateName``."""

    def ordered(self, now: datetime) -> str:
        """A UUIDv7: sorts as text in the order of creation, also within a millisecond."""


class RandomIds:
    """Ids from a random source; ``random.SystemRandom`` unless a seed is wanted."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()
        self._last = 0

    def uid(self) -> str:
        return str(uuid.UUID(int=self._source.getrandbits(128), version=4))

    def suffix(self) -> str:
        return "".join(self._source.choice(_SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))

    def ordered(self, now: datetime) -> str:
        # The 12 bits after the milliseconds are a counter, so that ids stay ordered in a burst.
        self._last = max(int(now.timestamp() * 1000) << 12, self._last + 1)
        milliseconds, count = self._last >> 12, self._last & 0xFFF
        value = milliseconds << 80 | 0x7 << 76 | count << 64 | 0b10 << 62
        return str(uuid.UUID(int=value | self._source.getrandbits(62)))
