"""The durable state, read from raw documents as they are committed, and its checkers.

Shares nothing with the code it checks: documents are dicts here, and stay dicts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from bullpen.store.base import Change, Verb

Raw = dict[str, Any]
Where = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    promise: str
    message: str
    at: float

    def __str__(self) -> str:
        return f"{self.promise}: {self.message} (at {self.at:.3f} s)"


@dataclass(frozen=True, slots=True)
class Fact:
    """One committed change."""

    kind: str
    namespace: str
    name: str
    old: Raw | None
    new: Raw | None
    """None if it was deleted."""

    revision: int
    at: float

    @property
    def last(self) -> Raw:
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


class Checker(Protocol):
    promise: str

    def see(self, fact: Fact) -> Iterable[str]:
        """The violations caused by the change, in words."""


class Truth:
    def __init__(self, time: Callable[[], float], broken: Callable[[Violation], None]) -> None:
        self.objects: dict[Where, Raw] = {}
        self.revision = 0
        self.commits = 0
        self._order: dict[str, list[int]] = {}
        """By prefix of the key, the revisions of its changes."""

        self._checkers: list[Checker] = []
        self._time = time
        self._broken = broken

    def check(self, *checkers: Checker) -> None:
        self._checkers += checkers

    def committed(self, changes: list[Change]) -> None:
        for change in changes:
            self._commit(change)

    def _commit(self, change: Change) -> None:
        at = self._time()
        if change.revision <= self.revision:
            text = f"revision {change.revision} came after {self.revision}"
            self._broken(Violation("revisions only grow", text, at))
        self.revision = change.revision
        self.commits += 1
        self._order.setdefault(_prefix(change.key), []).append(change.revision)
        document: Raw = msgspec.json.decode(change.value)
        meta = document["metadata"]
        where = (document["kind"], meta.get("namespace", ""), meta["name"])
        old = self.objects.get(where)
        if change.verb is Verb.DELETED:
            self.objects.pop(where, None)
            fact = Fact(*where, old, None, change.revision, at)
        else:
            self.objects[where] = document
            fact = Fact(*where, old, document, change.revision, at)
        for checker in self._checkers:
            for text in checker.see(fact):
                self._broken(Violation(checker.promise, text, at))

    def next_change(self, prefix: str, after: int) -> int | None:
        """The first revision under a prefix after another; None if there is none yet."""
        revisions = self._order.get(prefix, [])
        place = bisect_right(revisions, after)
        return revisions[place] if place < len(revisions) else None

    def all(self, kind: str) -> Iterator[Raw]:
        return (found for where, found in self.objects.items() if where[0] == kind)

    def get(self, kind: str, namespace: str, name: str) -> Raw | None:
        return self.objects.get((kind, namespace, name))


def _prefix(key: str) -> str:
    """The key without namespace and name."""
    return "/".join(key.split("/")[:2]) + "/"


def status(document: Raw | None) -> Raw:
    return (document or {}).get("status") or {}


def uid_of(document: Raw | None) -> str:
    """Empty for None."""
    return str((document or {}).get("metadata", {}).get("uid", ""))


def is_active(lease: Raw | None) -> bool:
    """Whether a lease has an exporter and has not ended."""
    said = status(lease)
    return bool(said.get("exporterRef")) and not said.get("ended")
