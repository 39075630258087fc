"""The dashboard's answers: sign-in, protection of writes, rights, the stream, lease actions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import ENDED_LABEL, Lease, LeaseSpec, LeaseStatus
from bullpen.api.kinds.providerconfig import (
    ProviderConfig,
    ProviderConfigSpec,
    ProviderConfigStatus,
    ProviderHost,
)
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.dashboard import ended_leases, feed
from bullpen.dashboard.feed import Changes
from bullpen.kit import times
from support.dashboard_world import (
    ADMIN_TOKEN,
    API,
    STRANGER_TOKEN,
    VIEW_TOKEN,
    Browser,
    DashboardWorld,
    Story,
    client_token,
)

NOBODY: dict[str, object] = {"user": None, "cluster": False, "issuers": []}
"""The session of a browser that is not signed in."""

LEASES = "objects/apis/jumpstarter.dev/v1alpha1/namespaces/default/leases"


def told(story: Story) -> None:
    DashboardWorld().run(story)


# Pages


def test_a_browser_at_the_root_is_sent_to_the_dashboard_and_kubectl_is_not() -> None:
    async def story(world: DashboardWorld) -> None:
        html = {"accept": "text/html,application/xhtml+xml"}
        sent = await world.request("GET", "/", headers=html)
        assert (sent.status, sent.headers["location"]) == (302, "/dashboard/")
        kubectl = {"accept": "application/json", "authorization": f"Bearer {ADMIN_TOKEN}"}
        found = await world.request("GET", "/", headers=kubectl)
        assert "paths" in found.document

    told(story)


def test_every_answer_forbids_frames_inline_scripts_and_other_hosts() -> None:
    async def story(world: DashboardWorld) -> None:
        for path in ("/dashboard/", "/dashboard/targets", f"{API}session", f"{API}nothing"):
            headers = (await world.request("GET", path)).headers
            policy = headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy
            assert "script-src 'self'" in policy
            assert "default-src 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"

    told(story)


# Signing in


def test_a_link_signs_in_once_and_the_cookie_is_out_of_reach_for_scripts_and_sites() -> None:
    async def story(world: DashboardWorld) -> None:
        secret = world.sessions.issue_link(ADMIN_TOKEN)
        browser = Browser(world)
        answer = await browser.open_link(secret)
        assert answer.status == 201
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-bullpen-8080=")
        for part in ("Path=/", "Secure", "HttpOnly", "SameSite=Strict", "Max-Age=43200"):
            assert part in cookie
        assert (await browser.call("GET", "session")).document["user"] == "admin"
        again = await Browser(world).open_link(secret)
        assert again.status == 401

    told(story)


@pytest.mark.parametrize("token", [ADMIN_TOKEN, VIEW_TOKEN, client_token("alice")])
def test_a_token_of_a_kubeconfig_or_client_signs_in(token: str) -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(token)
        assert (await browser.call("GET", "session")).status == 200

    told(story)


def test_nobody_is_signed_in_without_a_valid_token_and_failures_are_recorded() -> None:
    async def story(world: DashboardWorld) -> None:
        assert (await Browser(world).sign_in("guess")).status == 401
        assert (await world.request("GET", f"{API}stream")).status == 401
        assert {event.code for event in world.audit.events} == {401}
        assert "guess" not in repr(world.audit.events)

    told(story)


def test_a_session_ends_with_the_token_it_was_made_from() -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(client_token("alice"))
        async with browser.stream() as events:
            assert (await events.next())[0] == "snapshot"
            world.authenticators[0]._users.clear()  # the token is revoked
            assert (await events.next())[0] == "signed-out"
        assert (await browser.call("GET", "session")).document == {
            "user": None,
            "cluster": False,
            "issuers": [],
        }
        assert (await browser.call("GET", "matches")).status == 401

    told(story)


def test_signing_out_ends_the_session_at_the_server() -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(ADMIN_TOKEN)
        assert (await browser.call("DELETE", "session")).status == 200
        assert (await browser.call("GET", "session")).document == {
            "user": None,
            "cluster": False,
            "issuers": [],
        }
        assert (await browser.call("GET", "matches")).status == 401

    told(story)


def test_a_command_gets_a_link_for_the_owner_of_its_token() -> None:
    async def story(world: DashboardWorld) -> None:
        headers = {"authorization": f"Bearer {client_token('alice')}"}
        answer = await world.request("POST", f"{API}links", headers=headers)
        browser = Browser(world)
        await browser.open_link(answer.document["path"].partition("#link=")[2])
        assert (await browser.call("GET", "session")).document["user"] == "alice"

    told(story)


# Writes


@pytest.mark.parametrize(
    "headers",
    [
        {"x_bullpen_csrf": None},
        {"x_bullpen_csrf": "wrong"},
        {"origin": None},
        {"origin": "https://evil.example"},
        {"origin": "http://lab:8080"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_a_write_that_no_page_of_the_session_sends_is_refused(
    headers: dict[str, str | None],
) -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(ADMIN_TOKEN)
        for method, path in (("POST", "leases"), ("DELETE", "session"), ("POST", LEASES)):
            answer = await browser.call(method, path, {}, **headers)
            assert (answer.status, answer.document["reason"]) == (403, "Forbidden")

    told(story)


def test_another_site_can_use_up_no_link() -> None:
    async def story(world: DashboardWorld) -> None:
        secret = world.sessions.issue_link(ADMIN_TOKEN)
        headers = {"x-bullpen-link": secret, "origin": "https://evil.example"}
        assert (await world.request("POST", f"{API}session", headers=headers)).status == 403
        assert (await Browser(world).open_link(secret)).status == 201

    told(story)


# Rights


def test_a_stranger_sees_nothing_a_viewer_everything_a_client_its_namespace() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.make_exporter("here")
        await world.make_exporter("there", namespace="other")
        await asyncio.sleep(1)
        seen = {}
        for token in (STRANGER_TOKEN, VIEW_TOKEN, client_token("alice")):
            async with (await world.browser(token)).stream() as events:
                _, data = await events.next()
                seen[token] = {row["name"] for row in data["rows"].get("target", ())}
        assert seen == {
            STRANGER_TOKEN: set(),
            VIEW_TOKEN: {"here", "there"},
            client_token("alice"): {"here"},
        }

    told(story)


def test_what_is_passed_to_the_api_server_is_decided_there() -> None:
    async def story(world: DashboardWorld) -> None:
        viewer, client = await world.browser(VIEW_TOKEN), await world.browser(client_token("bob"))
        assert (await viewer.call("GET", LEASES)).document["kind"] == "LeaseList"
        secrets = "objects/api/v1/namespaces/default/secrets"
        assert (await viewer.call("GET", secrets)).status == 403
        assert (await client.call("GET", LEASES)).status == 403
        assert (await viewer.call("GET", "objects/metrics")).status == 403
        assert (await viewer.call("GET", f"{LEASES}?watch=true")).status == 400

    told(story)


def test_who_may_read_a_clients_token_may_act_as_that_client() -> None:
    async def story(world: DashboardWorld) -> None:
        for token, expected in ((ADMIN_TOKEN, 2), (VIEW_TOKEN, 0), (client_token("bob"), 1)):
            browser = await world.browser(token)
            clients = (await browser.call("GET", "session")).document["clients"]
            assert len(clients) == expected, token

    told(story)


def test_an_administrator_is_offered_the_client_of_the_service_first() -> None:
    """Who signs in with the printed link leases as that client."""

    async def story(world: DashboardWorld) -> None:
        for name in ("aaron", "default", "zoe"):
            meta = ObjectMeta(name=name, namespace="default")
            await world.objects.create(Client(metadata=meta))
        await asyncio.sleep(1)
        admin = await world.browser(ADMIN_TOKEN)
        clients = (await admin.call("GET", "session")).document["clients"]
        assert [each["name"] for each in clients] == ["default", "aaron", "alice", "bob", "zoe"]

    told(story)


# The stream


def test_a_target_that_does_not_come_back_after_its_lease_says_so() -> None:
    async def story(world: DashboardWorld) -> None:
        made = await world.make_exporter("e1")
        said = Condition(
            type="Stuck",
            status=ConditionStatus.TRUE,
            reason="NotAvailable",
            message="for 5 min",
            last_transition_time=world.clock.now(),
        )
        status = replace(made.status, conditions=(*made.status.conditions, said))
        await world.objects.update_status(replace(made, status=status))
        await asyncio.sleep(1)
        async with (await world.browser(VIEW_TOKEN)).stream() as events:
            _, data = await events.next()
            (row,) = data["rows"]["target"]
            assert (row["stuck"], row["message"]) == (True, "for 5 min")

    told(story)


def test_the_stream_begins_with_a_snapshot_and_goes_on_with_changes() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.make_exporter("e1")
        await asyncio.sleep(1)
        async with (await world.browser(VIEW_TOKEN)).stream() as events:
            kind, data = await events.next()
            assert kind == "snapshot"
            assert [row["name"] for row in data["rows"]["target"]] == ["e1"]
            await world.make_exporter("e2", online=False)
            kind, data = await events.next()
            assert kind == "changes"
            assert [(r["name"], r["state"]) for r in data["rows"]["target"]] == [("e2", "offline")]
            found = world.lab.views.exporters.get("default", "e2")
            assert found is not None
            await world.objects.delete(found)
            _, data = await events.next()
            assert data["gone"] == [["target", "default", "e2"]]

    told(story)


def test_a_reader_that_comes_back_gets_only_what_it_missed() -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(VIEW_TOKEN)
        await world.make_exporter("e1")
        await asyncio.sleep(1)
        async with browser.stream() as events:
            await events.next()
            last = events.last_id
        await world.make_exporter("e2")
        await asyncio.sleep(1)
        async with browser.stream(last) as events:
            kind, data = await events.next()
        assert kind == "changes"
        assert [row["name"] for row in data["rows"]["target"]] == ["e2"]
        async with browser.stream(f"another-process-{last.rpartition('-')[2]}") as events:
            assert (await events.next())[0] == "snapshot"
        client = await world.browser(client_token("alice"))
        async with client.stream(last) as events:
            assert (await events.next())[0] == "snapshot", "other rights, other rows"

    told(story)


def test_a_reader_that_missed_more_changes_than_are_kept_starts_over() -> None:
    changes = Changes(limit=3)
    for name in ("a", "b", "a", "c"):
        changes.add(("target", "default", name))
    assert changes.since(4) == []
    assert changes.since(2) == [("target", "default", "a"), ("target", "default", "c")]
    assert changes.since(0) is None
    assert changes.since(5) is None


def test_a_large_snapshot_comes_in_parts_and_misses_no_change_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "PART_ROWS", 2)

    async def story(world: DashboardWorld) -> None:
        names = [f"e{number}" for number in range(5)]
        for name in names:
            await world.make_exporter(name)
        await asyncio.sleep(1)
        async with (await world.browser(VIEW_TOKEN)).stream() as events:
            _, first = await events.next()
            assert (first["first"], first["last"], events.last_id) == (True, False, "")
            found = world.lab.views.exporters.get("default", names[-1])
            assert found is not None
            await world.objects.delete(found)
            await world.make_exporter("late")
            _, second = await events.next()
            _, third = await events.next()
            assert third["last"]
            assert events.last_id
            parts = [part["rows"].get("target", ()) for part in (first, second, third)]
            rows = [row["name"] for part in parts for row in part]
            assert rows[:4] == names[:4]
            _, changes = await events.next()
            assert ["target", "default", names[-1]] in changes["gone"]
            assert [row["name"] for row in changes["rows"]["target"]] == ["late"]

    told(story)


def test_a_quiet_stream_shows_signs_of_life() -> None:
    async def story(world: DashboardWorld) -> None:
        browser = await world.browser(VIEW_TOKEN)
        headers = {"cookie": browser.cookie}
        response = await world.respond("GET", f"{API}stream", headers=headers)
        assert not isinstance(response.body, bytes)
        await anext(response.body)
        assert await anext(response.body) == feed.ALIVE

    told(story)


def test_providers_are_seen_by_those_who_may_list_them_and_without_their_parameters() -> None:
    async def story(world: DashboardWorld) -> None:
        spec = ProviderConfigSpec(provisioner="ec2.jumpstarter.dev", parameters={"secret": "s"})
        made = await world.objects.create(
            ProviderConfig(metadata=ObjectMeta(name="aws", namespace="default"), spec=spec)
        )
        host = ProviderHost(name="h1", slots=2, used=1, answering=True)
        await world.objects.update_status(
            replace(made, status=ProviderConfigStatus(hourly_cost="0.25", hosts=(host,)))
        )
        await asyncio.sleep(1)
        for token, sees in (
            (ADMIN_TOKEN, True),
            (VIEW_TOKEN, True),
            (client_token("alice"), False),
        ):
            browser = await world.browser(token)
            session = await browser.call("GET", "session")
            assert session.document["providers"] is sees
            async with browser.stream() as events:
                _, data = await events.next()
            found = data["rows"].get("provider", [])
            assert [row["hourlyCost"] for row in found] == ["0.25"] * sees
            assert [row["hosts"][0]["used"] for row in found] == [1] * sees
            assert "secret" not in repr(data)

    told(story)


# Leases


def test_a_client_creates_extends_transfers_and_releases_its_lease() -> None:
    async def story(world: DashboardWorld) -> None:
        alice = await world.browser(client_token("alice"))
        await world.make_exporter("e1")
        body = {"namespace": "default", "client": "alice", "selector": "board=x", "duration": "1h"}
        made = await alice.call("POST", "leases", body)
        assert made.status == 201, made.body
        name = made.document["metadata"]["name"]
        path = f"leases/default/{name}"
        changed = await alice.call("PATCH", path, {"duration": "2h"})
        assert changed.status == 200, changed.body
        duration = (await world.lease(name)).spec.duration
        assert duration is not None
        assert duration.total_seconds() == 7200
        assert (await alice.call("DELETE", path)).status == 200
        assert (await world.lease(name)).spec.release
        recorded = [e.target.name for e in world.audit.events if e.target is not None]
        assert recorded == [name, name, name]

    told(story)


def test_a_lease_is_booked_for_later() -> None:
    async def story(world: DashboardWorld) -> None:
        begin = world.clock.now().replace(microsecond=0) + timedelta(hours=3)
        body = {"namespace": "default", "selector": "board=x", "begin": times.text(begin)}
        for token, client in ((client_token("alice"), "alice"), (ADMIN_TOKEN, "bob")):
            browser = await world.browser(token)
            made = await browser.call("POST", "leases", {**body, "client": client})
            assert made.status == 201, made.body
            lease = await world.lease(made.document["metadata"]["name"])
            assert (lease.spec.begin_time, lease.spec.client_ref.name) == (begin, client)
            wrong = await browser.call(
                "POST", "leases", {**body, "client": client, "begin": "soon"}
            )
            assert (wrong.status, b"begin" in wrong.body) == (400, True)

    told(story)


def test_a_client_cannot_touch_the_lease_of_another() -> None:
    async def story(world: DashboardWorld) -> None:
        alice, bob = [await world.browser(client_token(name)) for name in ("alice", "bob")]
        await world.make_exporter("e1")
        body = {"namespace": "default", "client": "alice", "selector": "board=x"}
        name = (await alice.call("POST", "leases", body)).document["metadata"]["name"]
        assert (await bob.call("DELETE", f"leases/default/{name}")).status == 403
        assert (await bob.call("PATCH", f"leases/default/{name}", {"client": "bob"})).status == 403
        assert (await bob.call("POST", "leases", body)).status == 403, "as alice"
        assert not (await world.lease(name)).spec.release

    told(story)


def test_a_claim_is_seen_and_released_by_its_client_and_by_those_who_may_write_it() -> None:
    async def story(world: DashboardWorld) -> None:
        for name in ("first", "second"):
            await world.objects.create(claim(name))
        await asyncio.sleep(1)
        alice, bob, admin, viewer, stranger = [
            await world.browser(token)
            for token in (
                client_token("alice"),
                client_token("bob"),
                ADMIN_TOKEN,
                VIEW_TOKEN,
                STRANGER_TOKEN,
            )
        ]
        for browser in (alice, bob, admin, viewer):
            async with browser.stream() as events:
                (row, _) = (await events.next())[1]["rows"]["claim"]
                assert (row["name"], row["client"], row["phase"]) == ("first", "alice", "waiting")
                assert row["requests"] == ["dut: 2 board", "peer: board or all can"]
                assert row["constraints"] == ["same site", "different rack of dut if possible"]
                assert row["message"]
        async with stranger.stream() as events:
            assert (await events.next())[1]["rows"] == {}
        path = "claims/default/first"
        assert (await stranger.call("DELETE", path)).status == 404
        for browser in (bob, viewer):
            assert (await browser.call("DELETE", path)).status == 403
            assert (await browser.call("PATCH", path, {"duration": "2h"})).status == 403
        assert (await alice.call("PATCH", path, {"duration": "2h"})).status == 200
        assert (await admin.call("PATCH", path, {"client": "bob"})).status == 200
        found = await world.objects.get(DeviceClaim, "default", "first")
        assert found.spec.duration == timedelta(hours=2)
        assert (await alice.call("DELETE", path)).status == 403, "it is bob's now"
        assert (await bob.call("DELETE", path)).status == 200
        async with alice.stream() as events:
            rows = (await events.next())[1]["rows"]["claim"]
        assert [row["name"] for row in rows] == ["second"]
        targets = [event.target for event in world.audit.events if event.verb == "delete"]
        assert targets[-1] is not None
        assert (targets[-1].resource, targets[-1].name) == ("deviceclaims", "first")

    told(story)


def claim(name: str) -> DeviceClaim:
    def asked(kind: str, **form: Any) -> Any:
        return {"deviceClassName": kind, **form}

    every = asked("can", name="c", allocationMode="All")
    document = {
        "apiVersion": DeviceClaim.api_version,
        "kind": DeviceClaim.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clientRef": {"name": "alice"},
            "duration": "1h",
            "requests": [
                {"name": "dut", "exactly": asked("board", count=2)},
                {"name": "peer", "firstAvailable": [asked("board", name="b"), every]},
            ],
            "constraints": [
                {"matchAttribute": "site"},
                {"distinctAttribute": "rack", "requests": ["dut"], "prefer": True},
            ],
        },
    }
    return codec.decode(DeviceClaim, document)


def test_an_administrator_leases_for_a_client_and_ends_leases_as_kubectl_would() -> None:
    async def story(world: DashboardWorld) -> None:
        admin, viewer = await world.browser(ADMIN_TOKEN), await world.browser(VIEW_TOKEN)
        await world.make_exporter("e1")
        body = {"namespace": "default", "client": "bob", "selector": "board in (x, y)"}
        assert (await viewer.call("POST", "leases", body)).status == 403
        made = await admin.call("POST", "leases", body)
        assert made.status == 201, made.body
        name = made.document["metadata"]["name"]
        assert (await world.lease(name)).spec.client_ref.name == "bob"
        for change in ({"duration": "90m"}, {"client": "alice"}):
            assert (await admin.call("PATCH", f"leases/default/{name}", change)).status == 200
        assert (await admin.call("DELETE", f"leases/default/{name}")).status == 200
        assert (await world.lease(name)).spec.release
        assert [e.user.name for e in world.audit.events if e.verb == "patch"] == ["admin"] * 3

    told(story)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"namespace": "default", "client": "alice"}, "selector"),
        ({"namespace": "default", "client": "alice", "selector": "x="}, ""),
        ({"namespace": "default", "client": "alice", "selector": "a=b", "duration": "1"}, "dura"),
        ({"namespace": "default", "client": "alice", "what": 1}, "what"),
        ([], "object"),
    ],
)
def test_a_form_that_makes_no_sense_is_answered_with_what_is_wrong(body: object, said: str) -> None:
    async def story(world: DashboardWorld) -> None:
        alice = await world.browser(client_token("alice"))
        answer = await alice.call("POST", "leases", body)
        assert answer.status in (201, 400), answer.body
        if said:
            assert answer.status == 400
            assert said in answer.document["message"]

    told(story)


def test_a_selector_is_matched_while_it_is_typed() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.make_exporter("e1")
        await world.make_exporter("e2", online=False)
        await world.make_exporter("e3", labels={"board": "y"})
        await asyncio.sleep(1)
        alice = await world.browser(client_token("alice"))
        found = await alice.call("GET", "matches?namespace=default&selector=board%3Dx")
        assert (found.document["total"], found.document["free"]) == (2, 1)
        bad = await alice.call("GET", "matches?namespace=default&selector=board+in")
        assert bad.status == 400
        stranger = await world.browser(STRANGER_TOKEN)
        none = await stranger.call("GET", "matches?namespace=default&selector=board%3Dx")
        assert none.document["total"] == 0

    told(story)


def test_the_timeline_and_the_page_of_a_target_show_ended_leases() -> None:
    async def story(world: DashboardWorld) -> None:
        alice = await world.browser(client_token("alice"))
        await world.make_exporter("e1")
        for name, target in (("had-one", LocalObjectReference(name="e1")), ("had-none", None)):
            meta = ObjectMeta(name=name, namespace="default", labels={ENDED_LABEL: "true"})
            spec = LeaseSpec(
                client_ref=LocalObjectReference(name="bob"),
                exporter_ref=LocalObjectReference(name="e1"),
            )
            made = await world.objects.create(Lease(metadata=meta, spec=spec))
            status = LeaseStatus(exporter_ref=target, ended=True)
            await world.objects.update_status(replace(made, status=status))
        begin = world.clock.now() + timedelta(hours=2)
        await world.objects.create(
            Lease(
                metadata=ObjectMeta(name="later", namespace="default"),
                spec=LeaseSpec(
                    client_ref=LocalObjectReference(name="bob"),
                    exporter_ref=LocalObjectReference(name="e1"),
                    end_time=begin + timedelta(hours=1),
                    duration=timedelta(hours=1),
                ),
            )
        )
        await asyncio.sleep(0.1)
        found = (await alice.call("GET", "timeline?namespace=default")).document["leases"]
        assert [(x["name"], x["target"], x["phase"]) for x in found] == [("had-one", "e1", "ended")]
        async with alice.stream() as events:
            _, data = await events.next()
            (open_,) = data["rows"]["lease"]
            assert (open_["name"], open_["phase"], open_["wanted"]) == (
                "later",
                "scheduled",
                "name=e1",
            )
            assert open_["begin"] == times.text(begin)
        detail = (await alice.call("GET", "targets/default/e1")).document
        assert [x["name"] for x in detail["history"]] == ["had-one"]
        assert (await alice.call("GET", "timeline?namespace=other")).status == 404

    told(story)


def test_ended_leases_are_read_once_and_followed_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: DashboardWorld) -> None:
        readings = 0
        pages = world.objects.pages

        def counted(kind: Any, **options: Any) -> Any:
            nonlocal readings
            readings += kind is Lease
            return pages(kind, **options)

        monkeypatch.setattr(world.objects, "pages", counted)
        alice = await world.browser(client_token("alice"))
        monkeypatch.setattr(ended_leases, "LEASES_MAX", 2)
        await world.make_exporter("e1", online=False)
        ended: list[str] = []
        for number in range(4):
            ended.append(f"l{number}")
            meta = ObjectMeta(name=ended[-1], namespace="default")
            spec = LeaseSpec(
                client_ref=LocalObjectReference(name="alice"),
                exporter_ref=LocalObjectReference(name="e1"),
            )
            await world.objects.create(Lease(metadata=meta, spec=spec))
            await asyncio.sleep(1)
            made = await world.lease(ended[-1])
            status = LeaseStatus(
                exporter_ref=LocalObjectReference(name="e1"),
                ended=True,
                end_time=world.clock.now(),
            )
            await world.objects.update_status(replace(made, status=status))
            await asyncio.sleep(1)
            lease = await world.lease(ended[-1])
            assert ENDED_LABEL in lease.metadata.labels, "the view does not hold it any more"
            found = (await alice.call("GET", "timeline?namespace=default")).document["leases"]
            assert [row["name"] for row in found] == ended[-2:]
        assert readings == 1
        await asyncio.sleep(world.lab.settings.retention.total_seconds())
        alice = await world.browser(client_token("alice"))
        assert (await alice.call("GET", "timeline?namespace=default")).document["leases"] == []

    told(story)


def test_the_page_of_a_target_is_shown_to_who_may_see_the_target() -> None:
    async def story(world: DashboardWorld) -> None:
        await world.make_exporter("e1")
        await asyncio.sleep(1)
        viewer = await world.browser(VIEW_TOKEN)
        detail = (await viewer.call("GET", "targets/default/e1")).document
        assert {found["type"] for found in detail["conditions"]} == {"Registered", "Online"}
        assert (await viewer.call("GET", "targets/default/nothing")).status == 404
        stranger = await world.browser(STRANGER_TOKEN)
        assert (await stranger.call("GET", "targets/default/e1")).status == 404

    told(story)
