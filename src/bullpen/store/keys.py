"""Keys in order, so that the keys under a prefix are found without visiting the others.

Keys are kept in one sorted list per bucket, which is the text up to and including the
second slash (``group/plural/``), or the whole key when it has fewer. Buckets never overlap,
so iterating over them in order visits all keys in order, and adding a key moves only the
keys of its own kind.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby


@dataclass(frozen=True, slots=True)
class Span:
    """A range of neighbours in one bucket. Valid until a key is added or removed."""

    keys: list[str]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[str]:
        return map(self.keys.__getitem__, range(self.start, self.stop))


class Keys:
    """A sorted set of keys."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = groupby(sorted(keys), bucket)
        self._buckets = {name: list(members) for name, members in ordered}
        self._names = sorted(self._buckets)

    def add(self, key: str) -> None:
        """Add a key that is not present."""
        name = bucket(key)
        members = self._buckets.get(name)
        if members is None:
            self._buckets[name] = [key]
            insort(self._names, name)
        else:
            insort(members, key)

    def remove(self, key: str) -> None:
        """Remove a key that is present."""
        name = bucket(key)
        members = self._buckets[name]
        del members[bisect_left(members, key)]
        if not members:
            del self._buckets[name]
            del self._names[bisect_left(self._names, name)]

    def under(self, prefix: str, after: str) -> Selection:
        """The keys that begin with ``prefix`` and come after ``after``."""
        spans = (_span(self._buckets[name], prefix, after) for name in self._candidates(prefix))
        return Selection(tuple(span for span in spans if span))

    def _candidates(self, prefix: str) -> list[str]:
        name = bucket(prefix)
        if name.count("/") == 2:
            return [name] if name in self._buckets else []
        return self._names[slice(*_matching(self._names, prefix, 0))]


@dataclass(frozen=True, slots=True)
class Selection:
    """Some keys in order, counted without being visited."""

    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.spans)


def bucket(key: str) -> str:
    """The text up to and including the second slash, or the whole key without one."""
    second = key.find("/", key.find("/") + 1)
    return key[: second + 1] if second > 0 else key


def _span(members: list[str], prefix: str, after: str) -> Span:
    start = bisect_right(members, after) if after else 0
    return Span(members, *_matching(members, prefix, start))


def _matching(ordered: list[str], prefix: str, start: int) -> tuple[int, int]:
    """Start and end of the range of texts that begin with ``prefix``."""
    length = len(prefix)
    start = bisect_left(ordered, prefix, start)
    return start, bisect_right(ordered, prefix, start, key=lambda text: text[:length])
