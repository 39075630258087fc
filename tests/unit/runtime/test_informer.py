"""A cached view: it follows, it learns of one's own writes, and it never brings back the dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Listing, Objects, Seen
from bullpen.errors import Gone, Unavailable
from bullpen.runtime.faults import Faults
from bullpen.runtime.informer import Informer, key_of


def client(name: str = "a", revision: int = 1, *, uid: str = "u1", label: str = "") -> Client:
    labels = {"v": label} if label else {}
    meta = ObjectMeta(
        name=name, namespace="lab", uid=uid, resource_version=str(revision), labels=labels
    )
    return Client(metadata=meta)


class Source:
    """Objects whose list and changes a test writes by hand."""

    def __init__(self) -> None:
        self.items: tuple[Client, ...] = ()
        self.revision = 0
        self.queue: asyncio.Queue[list[Seen[Client]] | Exception] = asyncio.Queue()
        self.lists = 0
        self.since: list[int] = []
        self.list_fails: list[Exception] = []

    async def list(self, kind: type[Any]) -> Listing[Any]:
        self.lists += 1
        if self.list_fails:
            raise self.list_fails.pop()
        return Listing(self.items, self.revision)

    def watch(self, kind: type[Any], *, since: int) -> Source:
        self.since.append(since)
        return self

    async def next(self) -> Iterable[Seen[Client]]:
        found = await self.queue.get()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        return None


class Running:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.delays: list[int] = []
        self.seen: list[tuple[str | None, str | None]] = []

        def retry(failures: int) -> timedelta:
            self.delays.append(failures)
            return timedelta(0)

        self.view: Informer[Client] = Informer(cast(Objects, source), Client, retry=retry)
        self.view.listen(self._listen)

    def _listen(self, old: Client | None, new: Client | None) -> None:
        self.seen.append((_revision(old), _revision(new)))

    async def changes(self, *seen: Seen[Client] | Exception) -> None:
        """Let these happen, each list of changes at once, and wait until they are known."""
        for item in seen:
            self.source.queue.put_nowait(item if isinstance(item, Exception) else [item])
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def revisions(self) -> dict[str, str]:
        return {c.metadata.name: c.metadata.resource_version for c in self.view.all("lab")}


def _revision(value: Client | None) -> str | None:
    return value.metadata.resource_version if value else None


@contextlib.asynccontextmanager
async def running(*items: Client, revision: int = 5) -> AsyncIterator[Running]:
    source = Source()
    source.items, source.revision = items, revision
    found = Running(source)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(found.view.run())
        await found.view.synced()
        yield found
        task.cancel()


def put(value: Client) -> Seen[Client]:
    return Seen(value, gone=False)


def gone(value: Client) -> Seen[Client]:
    return Seen(value, gone=True)


async def test_it_lists_then_watches_from_there() -> None:
    async with running(client("a", 2), client("b", 4)) as found:
        assert found.revisions == {"a": "2", "b": "4"}
        assert found.source.since == [5]
        await found.changes(put(client("a", 6)), gone(client("b", 7)))
        assert found.revisions == {"a": "6"}
        assert found.seen == [(None, "2"), (None, "4"), ("2", "6"), ("4", None)]


async def test_a_write_of_ones_own_is_known_at_once_and_told_once() -> None:
    async with running(client("a", 2)) as found:
        found.view.observe(client("a", 6))
        assert found.revisions == {"a": "6"}
        await found.changes(put(client("a", 6)))
        assert found.seen == [(None, "2"), ("2", "6")]


async def test_an_older_write_learnt_late_changes_nothing() -> None:
    async with running(client("a", 2)) as found:
        await found.changes(put(client("a", 7)))
        found.view.observe(client("a", 6))
        assert found.revisions == {"a": "7"}


async def test_a_write_that_is_learnt_after_the_deletion_does_not_bring_the_object_back() -> None:
    """The write and the deletion were told in one go, before the writer heard of its own."""
    async with running(client("a", 2)) as found:
        found.source.queue.put_nowait([put(client("a", 6)), gone(client("a", 7))])
        await found.settle()
        found.view.observe(client("a", 6))
        assert found.revisions == {}


async def test_the_creation_of_a_new_one_after_a_deletion_is_learnt() -> None:
    async with running(client("a", 2)) as found:
        await found.changes(gone(client("a", 7)))
        found.view.observe(client("a", 8, uid="u2"))
        assert found.revisions == {"a": "8"}


async def test_another_object_of_the_same_name_is_one_gone_and_one_come() -> None:
    async with running(client("a", 2)) as found:
        found.seen.clear()
        found.source.items, found.source.revision = (client("a", 9, uid="u2"),), 9
        await found.changes(Gone("compacted"))
        assert found.seen == [("2", None), (None, "9")]


async def test_when_the_history_is_gone_it_lists_again_and_tells_the_difference() -> None:
    async with running(client("a", 2), client("b", 3)) as found:
        found.seen.clear()
        found.source.items, found.source.revision = (client("b", 3), client("c", 8)), 8
        await found.changes(Gone("compacted"))
        assert found.revisions == {"b": "3", "c": "8"}
        assert found.seen == [("2", None), (None, "8")]
        assert found.source.since == [5, 8]


async def test_what_was_written_after_the_list_was_read_stays() -> None:
    async with running(client("a", 2)) as found:
        found.view.observe(client("b", 9))
        found.source.revision = 8
        await found.changes(Gone("compacted"))
        assert found.revisions == {"a": "2", "b": "9"}


async def test_a_broken_watch_is_retried_ever_later_until_it_works_again() -> None:
    async with running(client("a", 2)) as found:
        await found.changes(Unavailable("away"), Unavailable("away"))
        assert found.delays == [1, 2]
        await found.changes(put(client("a", 6)))
        assert found.revisions == {"a": "6"}
        await found.changes(Unavailable("away"))
        assert found.delays == [1, 2, 1]


async def test_a_list_that_fails_keeps_what_was_known() -> None:
    async with running(client("a", 2)) as found:
        found.source.list_fails = [Unavailable("away")]
        await found.changes(Gone("compacted"))
        assert found.revisions == {"a": "2"}
        assert found.delays == [0, 2]
        assert found.source.lists == 3


async def test_a_history_that_is_gone_again_and_again_is_listed_ever_later() -> None:
    async with running(client("a", 2)) as found:
        await found.changes(*(Gone("compacted") for _ in range(3)))
        assert found.delays == [0, 1, 2]
        await found.changes(put(client("a", 6)), Gone("compacted"))
        assert found.delays == [0, 1, 2, 0]


async def test_namespaces_and_keys_are_those_of_what_is_there() -> None:
    async with running(client("a", 2)) as found:
        assert found.view.namespaces() == ("lab",)
        assert found.view.get("lab", "a") == client("a", 2)
        assert found.view.get("other", "a") is None
        assert key_of(client("a")) == ("lab", "a")
        assert found.view.live
        await found.changes(gone(client("a", 6)))
        assert found.view.namespaces() == ()


async def test_a_listener_that_raises_stops_neither_other_listeners_nor_other_objects() -> None:
    """A listener's OverflowError about one Lease used to end the whole process."""
    async with running(client("a", 2)) as found:
        faults: Faults = found.view._faults

        def raises(old: Client | None, new: Client | None) -> None:
            if new is not None and new.metadata.name == "odd":
                raise OverflowError("date value out of range")

        found.view._listeners.insert(0, raises)
        await found.changes(put(client("odd", 6)), put(client("b", 7)))
        assert found.revisions == {"a": "2", "odd": "6", "b": "7"}
        assert found.seen == [(None, "2"), (None, "6"), (None, "7")]
        assert [key.name for key in faults.all()] == ["odd"]
        found.view._listeners.remove(raises)
        await found.changes(put(client("odd", 8)))
        assert not faults.all()


async def test_a_watch_that_fails_unexpectedly_is_started_again() -> None:
    async with running(client("a", 2)) as found:
        found.source.items = (client("a", 2), client("b", 8))
        await found.changes(RuntimeError("a bug in the feed"))
        assert found.revisions == {"a": "2", "b": "8"}
        assert found.source.lists == 2


async def test_an_object_that_is_no_longer_selected_leaves_the_view_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Client, "selected", "!left-out")
    async with running(client("a", 3)) as it:
        meta = replace(client("a", 6).metadata, labels={"left-out": "yes"})
        it.view.observe(replace(client("a", 6), metadata=meta))
        assert it.revisions == {}
        meta = replace(meta, resource_version="7")
        it.view.observe(replace(client("a", 7), metadata=meta))
        assert it.revisions == {}
        assert it.seen == [(None, "3"), ("3", None)]
