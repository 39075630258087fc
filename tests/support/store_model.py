"""A store so naive that it is obviously right: it keeps every state it ever had."""

from __future__ import annotations

from dataclasses import dataclass, field

from bullpen.store.base import Change, Entry, Page, Verb
from bullpen.store.history import Limits

State = dict[str, Entry]


@dataclass
class Model:
    """What was accepted, in order. A store is at some revision of it."""

    limits: Limits
    states: list[State] = field(default_factory=lambda: [{}])
    changes: list[Change] = field(default_factory=list)

    @property
    def head(self) -> State:
        return self.states[-1]

    def put(self, key: str, value: bytes) -> None:
        before = self.head.get(key)
        revision = len(self.states)
        verb = Verb.UPDATED if before else Verb.CREATED
        self.states.append({**self.head, key: Entry(key, value, revision)})
        self.changes.append(Change(revision, key, verb, value, before.value if before else None))

    def delete(self, key: str, value: bytes) -> None:
        before = self.head[key]
        revision = len(self.states)
        self.states.append({k: entry for k, entry in self.head.items() if k != key})
        self.changes.append(Change(revision, key, Verb.DELETED, value, before.value))

    def oldest(self, revision: int) -> int:
        """How far back a store at ``revision`` remembers."""
        oldest = revision
        while oldest and self._fits(self.changes[oldest - 1 : revision]):
            oldest -= 1
        return oldest

    def between(self, prefix: str, since: int, until: int) -> list[Change]:
        return [change for change in self.changes[since:until] if change.key.startswith(prefix)]

    def scan(self, prefix: str, after: str, limit: int | None, at: int) -> Page:
        state = self.states[at]
        keys = sorted(key for key in state if key.startswith(prefix) and key > after)
        page = keys[:limit]
        return Page(tuple(state[key] for key in page), at, len(keys) - len(page))

    def _fits(self, changes: list[Change]) -> bool:
        kept = [change.previous for change in changes if change.previous is not None]
        kept += [change.value for change in changes if change.verb is Verb.DELETED]
        return (
            len(changes) <= self.limits.history_count_max
            and sum(map(len, kept)) <= self.limits.history_bytes_max
        )
