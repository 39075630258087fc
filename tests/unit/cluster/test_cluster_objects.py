"""How the cluster's client behaves when an API server behaves badly."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from aiohttp import web

from bullpen import errors
from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Secret
from bullpen.api.meta import ObjectMeta
from bullpen.cluster import transport, watches
from bullpen.cluster.objects import ClusterFeed, ClusterObjects, Scope
from bullpen.kit.clock import Backoff
from support.fake_server import answer, client, event, failure, fake_server, page


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a server that is told what to say."""
    monkeypatch.setattr(transport, "PAUSE_SECONDS_MAX", 0.0)


async def names(feed: ClusterFeed[Client], count: int) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    while len(found) < count:
        found += [(seen.value.metadata.name, seen.gone) for seen in await feed.next()]
    return found


class TestListing:
    async def test_goes_through_all_pages_at_one_revision(self) -> None:
        pages = (page(client("a", 1), revision=7, more="tok"), page(client("b", 2), revision=7))
        async with fake_server(*pages) as fake:
            async with ClusterObjects(fake.access(), manager="m") as objects:
                listing = await objects.list(Client)
            assert [item.metadata.name for item in listing.items] == ["a", "b"]
            assert listing.revision == 7
            assert [asked.query.get("continue") for asked in fake.asked] == [None, "tok"]

    async def test_a_page_that_came_too_late_must_be_begun_again(self) -> None:
        late = failure(410, "Expired", "The provided continue parameter is too old")
        async with (
            fake_server(page(client("a", 1), revision=7, more="tok"), late) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            with pytest.raises(errors.Gone):
                await objects.list(Client)

    async def test_what_makes_no_sense_does_not_hide_the_rest(self) -> None:
        odd = {**client("odd", 3), "metadata": {**client("odd", 3)["metadata"], "labels": 5}}
        async with (
            fake_server(page(odd, client("b", 2), revision=7)) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            listing = await objects.list(Client)
        assert [item.metadata.name for item in listing.items] == ["b"]

    async def test_is_limited_to_its_scope_and_getting_is_not(self) -> None:
        scopes: dict[type[Kind], Scope] = {
            Secret: Scope(namespace="own", fields="type=Opaque", labels="x")
        }
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
        answers = (page(revision=7), page(revision=7), answer(secret))
        async with (
            fake_server(*answers) as fake,
            ClusterObjects(fake.access(), manager="m", namespace="lab", scopes=scopes) as objects,
        ):
            await objects.list(Secret)
            await objects.list(Client)
            await objects.get(Secret, "elsewhere", "s")
        first, second, third = fake.asked
        assert first.path == "/api/v1/namespaces/own/secrets"
        assert first.query == {"limit": "500", "fieldSelector": "type=Opaque", "labelSelector": "x"}
        assert second.path == "/apis/jumpstarter.dev/v1alpha1/namespaces/lab/clients"
        assert third.path == "/api/v1/namespaces/elsewhere/secrets/s"


class TestWatching:
    async def test_goes_on_where_the_server_ended_it(self) -> None:
        first = [event("ADDED", "a", 8), event("MODIFIED", "a", 9)]
        async with (
            fake_server(first, [event("DELETED", "a", 10)]) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            feed = objects.watch(Client, since=7)
            assert await names(feed, 3) == [("a", False), ("a", False), ("a", True)]
            feed.close()
        assert [asked.query["resourceVersion"] for asked in fake.asked] == ["7", "9"]

    async def test_remembers_bookmarks(self) -> None:
        quiet = [{"type": "BOOKMARK", "object": client("", 90)}]
        async with (
            fake_server(quiet, [event("ADDED", "a", 91)]) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            feed = objects.watch(Client, since=7)
            assert list(await feed.next()) == []
            assert await names(feed, 1) == [("a", False)]
            feed.close()
        assert fake.asked[1].query["resourceVersion"] == "90"

    @pytest.mark.parametrize(
        "half",
        [
            pytest.param('{"type": "ADDED", "object": {"meta', id="where the connection is cut"),
            pytest.param(b'{"type": "ADDED", "object": {"meta', id="where a proxy ends it"),
        ],
    )
    async def test_half_a_line_is_told_again_whole(self, half: object) -> None:
        broken: list[object] = [event("ADDED", "a", 8), half]
        async with (
            fake_server(broken, [event("ADDED", "b", 9)]) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            feed = objects.watch(Client, since=7)
            assert await names(feed, 2) == [("a", False), ("b", False)]
            feed.close()
        assert fake.asked[1].query["resourceVersion"] == "8"

    @pytest.mark.parametrize(
        "gone",
        [
            pytest.param(failure(410, "Expired", "too old"), id="refused at once"),
            pytest.param(
                [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}],
                id="told in the stream",
            ),
            pytest.param(
                [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Gone"}}],
                id="told with a reason of its own",
            ),
        ],
    )
    async def test_a_past_that_is_gone_is_not_retried(self, gone: object) -> None:
        async with (
            fake_server(gone) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            feed = objects.watch(Client, since=7)
            with pytest.raises(errors.Gone):
                await feed.next()
            feed.close()
        assert len(fake.asked) == 1

    async def test_a_server_that_comes_back_is_noticed_and_one_that_does_not_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment = timedelta(milliseconds=1)
        monkeypatch.setattr(watches, "BACKOFF", Backoff(first=moment, cap=moment))
        down = [failure(503, "ServiceUnavailable") for _ in range(2 + watches.RESUMES_MAX)]
        async with (
            fake_server(*down[:2], [event("ADDED", "a", 8)], *down[2:]) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            feed = objects.watch(Client, since=7)
            assert await names(feed, 1) == [("a", False)]
            with pytest.raises(errors.Unavailable):
                await feed.next()
            feed.close()
        assert not fake.answers


class TestRefusals:
    @pytest.mark.parametrize(
        ("message", "advised"),
        [
            ('pods is forbidden: User "system:serviceaccount:a:b" cannot create resource', True),
            ('pods "a" is forbidden: exceeded quota: small, requested: pods=1', False),
            ("ValidatingAdmissionPolicy 'p' denied request: no", False),
        ],
        ids=["no role", "a quota", "an admission policy"],
    )
    def test_a_role_is_advised_only_where_it_helps(self, message: str, advised: bool) -> None:
        body = json.dumps({"kind": "Status", "reason": "Forbidden", "message": message}).encode()
        assert (transport.GRANT in transport.refusal(403, body).message) is advised

    @pytest.mark.parametrize(
        ("said", "meant", "words"),
        [
            pytest.param(
                failure(403, "Forbidden", 'clients is forbidden: User "x" cannot list'),
                errors.Forbidden,
                "bullpen manifests",
                id="a right that is missing, with what grants it",
            ),
            pytest.param(
                failure(403, "Forbidden", 'pods "a" is forbidden: exceeded quota: small'),
                errors.Forbidden,
                "exceeded quota: small",
                id="a quota",
            ),
            pytest.param(
                failure(404, "NotFound", "the server could not find the requested resource"),
                errors.NotFound,
                "bullpen crds",
                id="a kind nobody installed, with what installs it",
            ),
            pytest.param(failure(409, "Conflict"), errors.Conflict, "no", id="moved on"),
            pytest.param(failure(409, "AlreadyExists"), errors.AlreadyExists, "no", id="taken"),
            pytest.param(failure(422, "Invalid"), errors.Invalid, "no", id="against a rule"),
            pytest.param(
                web.Response(status=502, text="<html>bad gateway"),
                errors.Unavailable,
                "502",
                id="a proxy's own words",
            ),
            pytest.param(
                web.Response(status=504, text="late"), errors.TimedOut, "504", id="a proxy too late"
            ),
        ],
    )
    async def test_are_what_they_stand_for(
        self, said: web.Response, meant: type[errors.LabError], words: str
    ) -> None:
        async with (
            fake_server(said) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            with pytest.raises(meant) as refusal:
                await objects.get(Client, "lab", "a")
        assert words in refusal.value.message

    async def test_name_the_fields_that_are_wrong(self) -> None:
        wrong = {
            "reason": "Invalid",
            "message": "bad",
            "details": {"causes": [{"field": "spec.x", "message": "m", "reason": "FieldValue"}]},
        }
        async with (
            fake_server(answer(wrong, 422)) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            with pytest.raises(errors.Invalid) as refusal:
                await objects.get(Client, "lab", "a")
        assert refusal.value.causes[0].field == "spec.x"

    async def test_a_server_that_is_full_is_asked_again(self) -> None:
        full = [failure(429, "TooManyRequests", "later", Retry_After="7") for _ in range(2)]
        async with (
            fake_server(*full, answer(client("a", 1))) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            assert (await objects.get(Client, "lab", "a")).metadata.name == "a"
        counted = objects.requests
        assert counted["get", "clients.jumpstarter.dev", 429] == 2
        assert counted["get", "clients.jumpstarter.dev", 200] == 1

    async def test_a_server_that_stays_full_is_left_alone(self) -> None:
        full = [failure(429, "TooManyRequests", "later") for _ in range(transport.TURNED_AWAY_MAX)]
        async with (
            fake_server(*full) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            with pytest.raises(errors.TooManyRequests):
                await objects.get(Client, "lab", "a")
        assert len(fake.asked) == transport.TURNED_AWAY_MAX

    async def test_a_write_whose_fate_is_unknown_is_not_repeated(self) -> None:
        async with fake_server(["half an ans"]) as fake:
            async with ClusterObjects(fake.access(), manager="m") as objects:
                fresh = Client(metadata=ObjectMeta(name="a", namespace="lab"))
                with pytest.raises(errors.Unreachable):
                    await objects.create(fresh)
            assert len(fake.asked) == 1

    async def test_nobody_there_is_unreachable(self) -> None:
        async with fake_server() as fake:
            access = fake.access()
        async with ClusterObjects(access, manager="m") as objects:
            with pytest.raises(errors.Unreachable):
                await objects.get(Client, "lab", "a")


class TestCredentials:
    async def test_that_are_rejected_are_asked_for_again_once(self) -> None:
        rejected = failure(401, "Unauthorized")
        async with fake_server(rejected, answer(client("a", 1))) as fake:
            renewed = Renewed(["old", "new"])
            async with ClusterObjects(fake.access(renewed), manager="m") as objects:
                await objects.get(Client, "lab", "a")
        assert [asked.authorization for asked in fake.asked] == ["Bearer old", "Bearer new"]

    async def test_that_cannot_be_renewed_are_told_so(self) -> None:
        async with (
            fake_server(failure(401, "Unauthorized")) as fake,
            ClusterObjects(fake.access(), manager="m") as objects,
        ):
            with pytest.raises(errors.Unauthorized):
                await objects.get(Client, "lab", "a")


class Renewed:
    """Credentials with another token whenever the last one was rejected."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    async def authorization(self) -> str:
        return f"Bearer {self._tokens[0]}"

    def rejected(self) -> bool:
        self._tokens.pop(0)
        return True
