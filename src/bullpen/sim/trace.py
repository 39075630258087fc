"""The events of a run, one line each, and a digest by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

TAIL_MAX = 4_000
"""Lines that are kept; the digest is over all of them."""


class Trace:
    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._digest = hashlib.sha256()
        self._tail: deque[str] = deque(maxlen=TAIL_MAX)
        self.count = 0

    def say(self, who: str, what: str) -> None:
        line = f"{self._time():10.3f} {who:<14} {what}"
        self._digest.update(line.encode())
        self._tail.append(line)
        self.count += 1

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]
