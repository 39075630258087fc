"""Any sequence of calls leaves a store where the naive model says it should be."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bullpen.errors import AlreadyExists, Conflict, Gone, NotFound, Unavailable
from bullpen.store.base import ABSENT, Change, Entry, Store, Watch
from bullpen.store.history import Limits
from bullpen.store.journaled import MemoryStore
from bullpen.store.sqlite import SqliteStore
from support.store_model import Model

pytestmark = pytest.mark.slow

# Small enough that every sequence of some length compacts, by count and by bytes.
LIMITS = Limits(history_count_max=8, history_bytes_max=120)

# Few enough that keys are updated, deleted and created again.
KEYS = ("g/p/a/1", "g/p/a/2", "g/p/a/23", "g/p/b/1", "g/pp/a/1", "h/p//1", "g/p", "x")
PREFIXES = ("", "g/", "g/p", "g/p/", "g/p/a/", "g/p/a/2", "h/p//", "none/")

keys = st.sampled_from(KEYS)
prefixes = st.sampled_from(PREFIXES)
ages = st.integers(-1, 12)
"""How many revisions ago; below zero is the future."""


class Reader:
    """A watch, and what it should have returned so far."""

    def __init__(self, watch: Watch, prefix: str, since: int) -> None:
        self.watch = watch
        self.prefix = prefix
        self.since = since
        self.seen: list[Change] = []

    async def catch_up(self, store: Store, model: Model) -> None:
        """Read all there is. More may become durable meanwhile."""
        while self.watch.position < store.revision:
            self.seen += await self.watch.next()
        assert self.watch.position == store.revision
        assert self.seen == model.between(self.prefix, self.since, store.revision)


class StoreMachine(RuleBasedStateMachine):
    store: Store

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model = Model(LIMITS)
        self.pending: list[Awaitable[Entry]] = []
        self.readers: list[Reader] = []
        self.store = self.runner.run(self.open())

    async def open(self) -> Store:
        return MemoryStore(limits=LIMITS)

    @rule(key=keys, size=st.integers(0, 40), stale=st.integers(0, 4))
    def put(self, key: str, size: int, stale: int) -> None:
        head = self.model.head.get(key)
        value = bytes(size)
        if stale == 1 and head:
            self.refuses(AlreadyExists, key, ABSENT)
        elif stale == 2:
            self.refuses(Conflict if head else NotFound, key, len(self.model.states))
        else:
            self.accept(self.call_put(key, value, head.revision if head else ABSENT))
            self.model.put(key, value)

    @rule(key=keys, size=st.integers(0, 40))
    def delete(self, key: str, size: int) -> None:
        head = self.model.head.get(key)
        if head is None:
            return
        self.accept(self.call_delete(key, bytes(size), head.revision))
        self.model.delete(key, bytes(size))

    @rule()
    def settle(self) -> None:
        entries = self.runner.run(self.gather())
        newest = self.model.changes[len(self.model.changes) - len(entries) :]
        assert [(e.revision, e.value) for e in entries] == [(c.revision, c.value) for c in newest]
        assert self.store.revision == len(self.model.changes)

    @rule(prefix=prefixes, after=st.sampled_from(("", *KEYS)), limit=st.none() | st.integers(0, 5))
    def scan_now(self, prefix: str, after: str, limit: int | None) -> None:
        expected = self.model.scan(prefix, after, limit, self.store.revision)
        assert self.store.scan(prefix, after=after, limit=limit) == expected

    @rule(
        prefix=prefixes,
        after=st.sampled_from(("", *KEYS)),
        limit=st.none() | st.integers(0, 5),
        age=ages,
    )
    def scan_then(self, prefix: str, after: str, limit: int | None, age: int) -> None:
        at = max(0, self.store.revision - age)
        if error := self.unreachable(at):
            with pytest.raises(error):
                self.store.scan(prefix, after=after, limit=limit, at=at)
        else:
            expected = self.model.scan(prefix, after, limit, at)
            assert self.store.scan(prefix, after=after, limit=limit, at=at) == expected

    @rule(prefix=prefixes, age=ages)
    def watch(self, prefix: str, age: int) -> None:
        since = max(0, self.store.revision - age)
        if error := self.unreachable(since):
            with pytest.raises(error):
                self.store.watch(prefix, since=since)
        else:
            self.readers.append(Reader(self.store.watch(prefix, since=since), prefix, since))

    # What is drawn must not depend on how far the disk is, which differs from run
    # to run: hence numbers instead of preconditions.
    @rule(number=st.integers(0, 5))
    def read(self, number: int) -> None:
        for reader in self.readers[number:][:1]:
            self.catch_up(reader)

    @rule(number=st.integers(0, 5))
    def stop_watching(self, number: int) -> None:
        for reader in self.readers[number:][:1]:
            self.readers.remove(reader)
            reader.watch.close()

    @invariant()
    def the_durable_state_is_the_one_of_its_revision(self) -> None:
        revision = self.store.revision
        state = self.model.states[revision]
        assert {key: self.store.get(key) for key in KEYS} == {key: state.get(key) for key in KEYS}
        assert self.store.oldest == self.model.oldest(revision)

    @invariant()
    def the_head_is_what_was_accepted_last(self) -> None:
        head = self.model.head
        assert {key: self.store.head(key) for key in KEYS} == {key: head.get(key) for key in KEYS}

    def teardown(self) -> None:
        self.settle()
        for reader in self.readers:
            self.catch_up(reader)
        self.runner.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def catch_up(self, reader: Reader) -> None:
        self.runner.run(reader.catch_up(self.store, self.model))

    def unreachable(self, revision: int) -> type[Gone] | type[Unavailable] | None:
        if revision > self.store.revision:
            return Unavailable
        return Gone if revision < self.model.oldest(self.store.revision) else None

    def accept(self, write: Awaitable[Entry]) -> None:
        self.pending.append(write)

    def refuses(self, error: type[Exception], key: str, expect: int) -> None:
        with pytest.raises(error):
            self.call_put(key, b"", expect)

    def call_put(self, key: str, value: bytes, expect: int) -> Awaitable[Entry]:
        async def call() -> list[Awaitable[Entry]]:
            return [self.store.put(key, lambda _: value, expect=expect)]

        return self.runner.run(call())[0]

    def call_delete(self, key: str, value: bytes, expect: int) -> Awaitable[Entry]:
        async def call() -> list[Awaitable[Entry]]:
            return [self.store.delete(key, lambda _: value, expect=expect)]

        return self.runner.run(call())[0]

    async def gather(self) -> list[Entry]:
        pending, self.pending = self.pending, []
        return await asyncio.gather(*pending)


def every_other_is_cold(key: str, value: bytes) -> bool:
    return sum(value) % 2 == 0


class SqliteMachine(StoreMachine):
    async def open(self) -> Store:
        path = self.directory / "store.db"
        return await SqliteStore.open(path, limits=LIMITS, cold=every_other_is_cold)

    @rule()
    def restart(self) -> None:
        """Everything is as it was, and every watcher resumes from where it stood."""
        self.settle()
        for reader in self.readers:
            self.catch_up(reader)
        self.runner.run(self.store.close())
        self.store = self.runner.run(self.open())
        for reader in self.readers:
            reader.watch = self.store.watch(reader.prefix, since=self.store.revision)


TestMemoryModel = StoreMachine.TestCase
TestMemoryModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

TestSqliteModel = SqliteMachine.TestCase
TestSqliteModel.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
