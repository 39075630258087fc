"""Lists and watches of objects, one sentence per test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bullpen.api.paths import decode
from bullpen.errors import BadRequest, Gone, Invalid, TimedOut
from bullpen.kit.selectors import parse_fields, parse_labels
from bullpen.registry.options import Listed, PatchType
from bullpen.registry.watches import ObjectEvent, ObjectWatch
from bullpen.store.base import Store
from bullpen.store.history import Limits
from support.registry_helpers import EVENT, LEASE, NAMESPACE, SECRET, Lab, document, lease, secret
from support.store_helpers import OpenStore


@pytest.fixture
async def lab(store: Store) -> Lab:
    made = Lab(store)
    await made.registry.ensure_namespaces(["default", "other"])
    return made


async def five(lab: Lab) -> None:
    for name in "abcde":
        kind = "vowel" if name in "ae" else "consonant"
        await lab.create(SECRET, secret(name, metadata={"labels": {"kind": kind}}))


def names(listed: Listed) -> list[str]:
    return [decode(entry.value)["metadata"]["name"] for entry in listed.entries]


class TestList:
    async def test_is_of_one_namespace_or_of_all(self, lab: Lab) -> None:
        await lab.create(SECRET, secret("a"))
        await lab.create(SECRET, secret("b", metadata={"namespace": "other"}))
        assert names(lab.registry.list(SECRET, "default")) == ["a"]
        assert names(lab.registry.list(SECRET, None)) == ["a", "b"]
        assert names(lab.registry.list(NAMESPACE, "")) == ["default", "other"]

    async def test_says_which_revision_it_is(self, lab: Lab) -> None:
        await five(lab)
        assert lab.registry.list(SECRET, None).revision == lab.store.revision

    @pytest.mark.parametrize(
        ("labels", "fields", "found"),
        [
            pytest.param("kind=vowel", "", ["a", "e"], id="by label"),
            pytest.param("kind notin (vowel)", "", ["b", "c", "d"], id="by label set"),
            pytest.param("", "metadata.name=c", ["c"], id="by name"),
            pytest.param("", "metadata.name!=c", ["a", "b", "d", "e"], id="by another name"),
            pytest.param("", "metadata.namespace=other", [], id="by namespace"),
            pytest.param("kind=vowel", "metadata.name=c", [], id="by both"),
            pytest.param("", "type=Opaque", ["a", "b", "c", "d", "e"], id="by a field"),
            pytest.param("", "type!=Opaque", [], id="by a field's absence"),
        ],
    )
    async def test_selects(self, lab: Lab, labels: str, fields: str, found: list[str]) -> None:
        await five(lab)
        listed = lab.registry.list(
            SECRET,
            "default",
            labels=parse_labels(labels) if labels else None,
            fields=parse_fields(fields) if fields else None,
        )
        assert names(listed) == found

    async def test_selects_our_kinds_by_any_scalar(self, lab: Lab) -> None:
        await lab.create(LEASE, lease("a"))
        await lab.create(LEASE, lease("b", duration="2h"))
        for text, found in (
            ("spec.duration=2h", ["b"]),
            ("spec.clientRef.name=me,status.ended=false", ["a", "b"]),
            ("spec.selector=x", []),
        ):
            assert names(lab.registry.list(LEASE, None, fields=parse_fields(text))) == found

    async def test_selects_events_by_what_they_are_about(self, lab: Lab) -> None:
        about = {"kind": "Lease", "name": "a", "namespace": "default", "uid": "u"}
        for name, extra in (("x", {"source": {"component": "me"}}), ("y", {"reason": "Ended"})):
            await lab.create(EVENT, document(EVENT, name, involvedObject=about, **extra))
        text = "involvedObject.uid=u,involvedObject.name=a,source=me"
        assert names(lab.registry.list(EVENT, "default", fields=parse_fields(text))) == ["x"]

    @pytest.mark.parametrize(
        ("resource", "field"),
        [
            pytest.param(SECRET, "spec.x", id="of a built-in kind"),
            pytest.param(LEASE, "metadata.labels", id="of the metadata"),
            pytest.param(LEASE, "name", id="that nothing has"),
        ],
    )
    async def test_refuses_a_field_it_cannot_select_by(
        self, lab: Lab, resource: Any, field: str
    ) -> None:
        with pytest.raises(BadRequest) as refused:
            lab.registry.list(resource, None, fields=parse_fields(f"{field}=1"))
        assert refused.value.message == f"field label not supported: {field}"


class TestPaging:
    async def test_cuts_every_page_from_the_first_ones_snapshot(self, lab: Lab) -> None:
        await five(lab)
        first = lab.registry.list(SECRET, "default", limit=2)
        assert (names(first), first.remaining) == (["a", "b"], 3)
        await lab.delete(SECRET, "c")
        await lab.create(SECRET, secret("bb"))
        second = lab.registry.list(SECRET, "default", limit=2, continue_token=first.continue_token)
        assert (names(second), second.remaining) == (["c", "d"], 1)
        last = lab.registry.list(SECRET, "default", continue_token=second.continue_token)
        assert (names(last), last.continue_token, last.remaining) == (["e"], "", None)
        assert first.revision == second.revision == last.revision < lab.store.revision

    async def test_counts_only_what_matches(self, lab: Lab) -> None:
        await five(lab)
        labels = parse_labels("kind=consonant")
        first = lab.registry.list(SECRET, "default", labels=labels, limit=2)
        assert (names(first), first.remaining) == (["b", "c"], None)
        rest = lab.registry.list(
            SECRET, "default", labels=labels, limit=2, continue_token=first.continue_token
        )
        assert (names(rest), rest.continue_token) == (["d"], "")

    async def test_looks_further_when_matches_are_rare(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bullpen.registry.lists.SCANNED_AT_ONCE_MAX", 1)
        await five(lab)
        labels = parse_labels("kind=vowel")
        assert names(lab.registry.list(SECRET, None, labels=labels, limit=5)) == ["a", "e"]
        first = lab.registry.list(SECRET, None, labels=labels, limit=1)
        assert names(first) == ["a"]

    async def test_ends_with_gone_when_the_snapshot_was_compacted(
        self, open_store: OpenStore
    ) -> None:
        lab = Lab(await open_store(Limits(history_count_max=2)))
        await lab.registry.ensure_namespaces(["default"])
        await five(lab)
        first = lab.registry.list(SECRET, "default", limit=2)
        for name in "vwxyz":
            await lab.create(SECRET, secret(name))
        with pytest.raises(Gone) as refused:
            lab.registry.list(SECRET, "default", continue_token=first.continue_token)
        message = "The provided continue parameter is too old to display a consistent list result."
        assert refused.value.message.startswith(message)
        rest = lab.registry.list(
            SECRET, "default", continue_token=str(refused.value.facts["continue_token"])
        )
        assert names(rest) == list("cdevwxyz")
        with pytest.raises(Gone, match="The resourceVersion for the provided list is too old"):
            lab.registry.list(SECRET, "default", resource_version="1", match="Exact")

    @pytest.mark.parametrize("token", ["x", "e30", "!!", "eyJ2IjoxfQ"])
    async def test_refuses_a_token_it_did_not_make(self, lab: Lab, token: str) -> None:
        with pytest.raises(BadRequest, match="invalid continue token"):
            lab.registry.list(SECRET, None, continue_token=token)

    async def test_never_leaves_the_prefix(self, lab: Lab) -> None:
        """A token made for all namespaces says nothing about another one's secrets."""
        await five(lab)
        await lab.create(SECRET, secret("z", metadata={"namespace": "other"}))
        everywhere = lab.registry.list(SECRET, None, limit=1)
        crossed = lab.registry.list(SECRET, "other", continue_token=everywhere.continue_token)
        assert set(names(crossed)) <= {"z"}


class TestResourceVersion:
    async def test_exact_is_the_past(self, lab: Lab) -> None:
        await five(lab)
        then = str(lab.store.revision)
        await lab.delete(SECRET, "a")
        listed = lab.registry.list(SECRET, None, resource_version=then, match="Exact")
        assert (names(listed), listed.revision) == (list("abcde"), int(then))
        assert names(lab.registry.list(SECRET, None, resource_version=then, limit=1)) == ["a"]

    @pytest.mark.parametrize("version", ["0", "1"])
    async def test_not_older_than_is_now(self, lab: Lab, version: str) -> None:
        await five(lab)
        listed = lab.registry.list(SECRET, None, resource_version=version, match="NotOlderThan")
        assert listed.revision == lab.store.revision
        assert lab.registry.list(SECRET, None, resource_version=version).entries

    async def test_of_the_future_is_refused(self, lab: Lab) -> None:
        with pytest.raises(TimedOut, match="Too large resource version: 999, current: "):
            lab.registry.list(SECRET, None, resource_version="999")

    @pytest.mark.parametrize(
        ("parameters", "error"),
        [
            pytest.param({"match": "Exact"}, Invalid, id="a match without a version"),
            pytest.param(
                {"match": "Exact", "resource_version": "0"}, Invalid, id="exactly any version"
            ),
            pytest.param(
                {"match": "Roughly", "resource_version": "1"}, Invalid, id="an unknown match"
            ),
            pytest.param({"resource_version": "x"}, BadRequest, id="a version that is none"),
            pytest.param(
                {"resource_version": "1", "continue_token": "x"},
                BadRequest,
                id="a version with a token",
            ),
            pytest.param(
                {"match": "Exact", "continue_token": "x"}, Invalid, id="a match with a token"
            ),
            pytest.param({"limit": -1}, BadRequest, id="a negative limit"),
        ],
    )
    async def test_makes_no_sense(
        self, lab: Lab, parameters: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            lab.registry.list(SECRET, None, **parameters)


def told(events: tuple[ObjectEvent, ...]) -> list[tuple[str, str]]:
    return [(event.type, decode(event.value)["metadata"]["name"]) for event in events]


async def read(watch: ObjectWatch, count: int) -> list[ObjectEvent]:
    found: list[ObjectEvent] = []
    while len(found) < count:
        found += await watch.next()
    return found


class TestWatch:
    async def test_begins_with_the_current_state(self, lab: Lab) -> None:
        await lab.create(SECRET, secret("a"))
        await lab.create(SECRET, secret("b"))
        watch = lab.registry.watch(SECRET, "default")
        assert watch.position == lab.store.revision
        assert told(await watch.next()) == [("ADDED", "a"), ("ADDED", "b")]
        await lab.delete(SECRET, "a")
        assert told(await watch.next()) == [("DELETED", "a")]

    async def test_tells_apart_the_initial_state_for_those_who_mark_its_end(self, lab: Lab) -> None:
        await lab.create(SECRET, secret("a"))
        watch = lab.registry.watch(SECRET, "default", since=1, initial=True)
        assert told(watch.initial()) == [("ADDED", "a")]
        assert watch.initial() == ()
        await lab.create(SECRET, secret("b"))
        assert told(await watch.next()) == [("ADDED", "b")]

    async def test_resumes_behind_a_revision(self, lab: Lab) -> None:
        await lab.create(SECRET, secret("a"))
        since = lab.store.revision
        await lab.create(SECRET, secret("b", metadata={"namespace": "other"}))
        await lab.create(SECRET, secret("c"))
        watch = lab.registry.watch(SECRET, "default", since=since)
        events = await read(watch, 1)
        assert told(tuple(events)) == [("ADDED", "c")]
        assert [event.revision for event in events] == [since + 2]
        assert watch.position == lab.store.revision

    async def test_stamps_each_event_with_its_own_revision(self, lab: Lab) -> None:
        watch = lab.registry.watch(SECRET, "default")
        await lab.create(SECRET, secret("a", metadata={"labels": {"x": "1"}}))
        await lab.patch(SECRET, "a", PatchType.MERGE, {"data": {"k": "eA=="}})
        await lab.delete(SECRET, "a")
        events = await read(watch, 3)
        assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        for event in events:
            assert decode(event.value)["metadata"]["resourceVersion"] == str(event.revision)

    async def test_adds_what_begins_to_match_and_deletes_what_ceases_to(self, lab: Lab) -> None:
        watch = lab.registry.watch(SECRET, "default", labels=parse_labels("on=yes"))
        await lab.create(SECRET, secret("a"))
        for state in ("yes", "yes", "no", "no", "yes"):
            patch = {"metadata": {"labels": {"on": state}, "annotations": {"n": state}}}
            await lab.patch(SECRET, "a", PatchType.MERGE, patch)
            again = {"metadata": {"annotations": {"again": str(lab.store.revision)}}}
            await lab.patch(SECRET, "a", PatchType.MERGE, again)
        await lab.delete(SECRET, "a")
        events = await read(watch, 7)
        expected = ["ADDED", "MODIFIED", "MODIFIED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
        assert [event.type for event in events] == expected
        ceased = decode(events[3].value)
        assert ceased["metadata"]["labels"] == {"on": "yes"}
        assert ceased["metadata"]["resourceVersion"] == str(events[3].revision)

    async def test_says_nothing_of_what_never_matched(self, lab: Lab) -> None:
        watch = lab.registry.watch(SECRET, "default", fields=parse_fields("metadata.name=a"))
        await lab.create(SECRET, secret("b"))
        await lab.delete(SECRET, "b")
        await lab.create(SECRET, secret("a"))
        assert told(await watch.next()) == [("ADDED", "a")]

    async def test_goes_on_waiting_when_a_change_does_not_match(self, lab: Lab) -> None:
        watch = lab.registry.watch(SECRET, "default", fields=parse_fields("metadata.name=a"))
        waiting = asyncio.create_task(watch.next())
        for name in ("b", "c", "d", "a"):
            await asyncio.sleep(0)
            await lab.create(SECRET, secret(name))
        assert told(await waiting) == [("ADDED", "a")]

    async def test_decodes_nothing_that_was_written_lately(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(value: bytes) -> None:
            raise AssertionError(f"decoded {value!r}, which the writer knew already")

        monkeypatch.setattr("bullpen.registry.lists.labels_of", refuse)
        monkeypatch.setattr("bullpen.registry.lists.decode", refuse)
        monkeypatch.setattr("bullpen.registry.commits.decode", refuse)
        plain = [lab.registry.watch(SECRET, "default") for _ in range(10)]
        picky = [
            lab.registry.watch(SECRET, "default", labels=parse_labels("a=b")) for _ in range(10)
        ]
        deep = [
            lab.registry.watch(SECRET, "default", fields=parse_fields("type=Opaque"))
            for _ in range(10)
        ]
        await lab.create(SECRET, secret("a", metadata={"labels": {"a": "b"}}))
        for watch in (*plain, *picky, *deep):
            assert len(await watch.next()) == 1

    async def test_from_before_what_is_kept_is_gone(self, open_store: OpenStore) -> None:
        lab = Lab(await open_store(Limits(history_count_max=2)))
        await lab.registry.ensure_namespaces(["default"])
        await five(lab)
        with pytest.raises(Gone, match="too old resource version: 1 "):
            lab.registry.watch(SECRET, "default", since=1)

    async def test_from_another_servers_future_is_gone(self, lab: Lab) -> None:
        with pytest.raises(Gone, match="too large resource version: 999"):
            lab.registry.watch(SECRET, "default", since=999)

    async def test_loses_nothing_when_a_reader_gives_up_waiting(self, lab: Lab) -> None:
        watch = lab.registry.watch(SECRET, "default", since=lab.store.revision)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await watch.next()
        await lab.create(SECRET, secret("a"))
        assert told(await watch.next()) == [("ADDED", "a")]
        watch.close()
        watch.close()
