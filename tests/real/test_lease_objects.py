"""Leases, clients and exporters as objects: what kubectl does to them means the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from exporter_fake import running_fakes
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from jumpstarter_protocol import client_pb2, kubernetes_pb2

from bullpen.core.leases.sessions import PROBE_BYTES_MAX, PROBE_LENGTH_MAX
from bullpen.kit import times
from support.grpc_caller import calling
from support.lab_helpers import Lab, Refusal
from support.real_service import Service, eventually

pytestmark = pytest.mark.real

MANIFEST = """
apiVersion: jumpstarter.dev/v1alpha1
kind: Lease
metadata: {{name: {name}}}
spec:
  clientRef: {{name: {client}}}
  selector: {{matchLabels: {{board: {board}}}}}
  duration: 5m
"""


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice")


@pytest.fixture(scope="module")
def boards(lab: Lab) -> Iterator[dict[str, Path]]:
    configs = {name: lab.exporter(name, {"board": name}) for name in ("one", "two")}
    with lab.running(*configs.values()):
        yield configs


def apply(lab: Lab, name: str, *, board: str, client: str = "alice") -> None:
    manifest = MANIFEST.format(name=name, board=board, client=client)
    lab.service.kubectl("apply", "-f", "-", input=manifest)


def assigned(lab: Lab, lease: str) -> str:
    eventually(
        lambda: lab.get("leases", lease)["status"].get("exporterRef"), what=f"{lease} beginning"
    )
    return str(lab.get("leases", lease)["status"]["exporterRef"]["name"])


def ended_because(lab: Lab, lease: str) -> str:
    eventually(lambda: lab.get("leases", lease)["status"]["ended"], what=f"{lease} ending")
    return str(lab.get("leases", lease)["status"]["conditions"][-1]["reason"])


def free(lab: Lab, exporter: str) -> None:
    def done() -> bool:
        status = lab.get("exporters", exporter)["status"]
        return status["exporterStatus"] == "Available" and "leaseRef" not in status

    eventually(done, what=f"{exporter} being free")


def test_a_lease_made_with_kubectl_is_like_any_other(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    apply(lab, "by-hand", board="one")
    assert assigned(lab, "by-hand") == "one"
    columns = lab.service.kubectl("get", "lease.jumpstarter.dev", "by-hand").stdout.split()
    assert "alice" in columns
    done = lab.jmp(alice, "shell", "--lease", "by-hand", "--", "j", "power", "on")
    assert done.returncode == 0
    lab.service.kubectl("patch", "lease.jumpstarter.dev", "by-hand", "--type=merge", "-p",
                        '{"spec":{"release":true}}')  # fmt: skip
    assert ended_because(lab, "by-hand") == "Released"
    free(lab, "one")


def test_deleting_an_active_lease_frees_its_exporter_and_the_name(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    """A new lease of the old name is a new lease to the exporter too."""

    def begun() -> int:
        return boards["one"].with_suffix(".log").read_text().count("Starting new lease: gone")

    apply(lab, "gone", board="one")
    eventually(lambda: begun() == 1, what="the exporter beginning it")
    lab.service.kubectl("delete", "lease.jumpstarter.dev", "gone")
    apply(lab, "gone", board="one")
    assigned(lab, "gone")
    done = lab.jmp(alice, "shell", "--lease", "gone", "--", "j", "power", "on")
    assert done.returncode == 0
    assert begun() == 2
    lab.service.kubectl("delete", "lease.jumpstarter.dev", "gone")
    free(lab, "one")


def test_deleting_an_exporter_ends_its_lease_and_says_so(lab: Lab, alice: Path) -> None:
    config = lab.exporter("doomed", {"board": "doomed"})
    with lab.running(config) as (process,):
        apply(lab, "on-doomed", board="doomed")
        assigned(lab, "on-doomed")
        lab.service.kubectl("delete", "exporter", "doomed")
        assert ended_because(lab, "on-doomed") == "ExporterRemoved"
        assert lab.get("leases", "on-doomed")["status"]["exporterRef"] == {"name": "doomed"}
        eventually(
            lambda: "LeaseExporterRemoved" in lab.events("on-doomed"), what="an event about it"
        )
        over = lab.jmp(alice, "shell", "--lease", "on-doomed", "--", "true", check=False)
        assert over.returncode
        process.wait(120)
    # One made anew under the old name is another exporter.
    lab.create("exporters", "doomed", labels={"board": "doomed"})
    assert lab.get("leases", "on-doomed")["status"]["ended"] is True
    assert "leaseRef" not in lab.get("exporters", "doomed").get("status", {})


def test_deleting_a_client_ends_its_leases_and_its_access(
    lab: Lab, boards: dict[str, Path]
) -> None:
    config = lab.client("leaver")
    apply(lab, "of-leaver", board="two", client="leaver")
    assigned(lab, "of-leaver")
    lab.service.kubectl("delete", "client", "leaver")
    assert ended_because(lab, "of-leaver") == "ClientRemoved"
    free(lab, "two")
    refused = lab.jmp(config, "get", "leases", check=False)
    assert "there is no client leaver in namespace default" in refused.stderr
    old = config.read_text()
    again = lab.client("leaver")
    assert lab.jmp(again, "get", "leases").returncode == 0
    config.write_text(old)
    refused = lab.jmp(config, "get", "leases", check=False)
    assert "the token is not for client leaver" in refused.stderr


def test_deleting_the_secret_rotates_the_token_and_shuts_out_the_old_one(lab: Lab) -> None:
    config = lab.client("rotating")
    old = lab.token("clients", "rotating")
    lab.request("DELETE", "/api/v1/namespaces/default/secrets/rotating-client")
    eventually(lambda: lab.token("clients", "rotating") != old, what="a new token")
    refused = lab.jmp(config, "get", "leases", check=False)
    assert "the token was revoked" in refused.stderr


async def test_a_revoked_exporter_is_shut_out_at_once(lab: Lab) -> None:
    config = lab.exporter("revoked", {"board": "revoked"})
    async with calling(config, "Exporter") as caller:
        await caller.controller("Register")
        lab.request("DELETE", "/api/v1/namespaces/default/secrets/revoked-exporter")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.controller("ReportStatus", status=2)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_disabled_exporter_is_leased_by_nobody_who_does_not_insist(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    lab.patch("exporters", "two", {"spec": {"enabled": False}})
    apply(lab, "for-disabled", board="two")
    assert ended_because(lab, "for-disabled") == "AllDisabled"
    made = lab.jmp(
        *(alice, "create", "lease", "-n", "two", "--allow-disabled", "--duration", "5m"),
        *("-o", "name"),
    )
    lease = made.stdout.strip().rpartition("/")[2]
    assert assigned(lab, lease) == "two"
    lab.patch("leases", lease, {"spec": {"release": True}})
    lab.patch("exporters", "two", {"spec": {"enabled": True}})
    free(lab, "two")


def test_a_booked_lease_says_nothing_until_its_time_and_then_begins(
    lab: Lab, boards: dict[str, Path]
) -> None:
    begin = datetime.now(UTC) + timedelta(seconds=3)
    lab.create(
        "leases",
        "booked",
        spec={
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "two"}},
            "duration": "1m",
            "beginTime": begin.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    )
    assert lab.get("leases", "booked")["status"] == {"ended": False, "conditions": []}
    assert assigned(lab, "booked") == "two"
    assert datetime.now(UTC) >= begin.replace(microsecond=0)
    lab.delete("leases", "booked")
    free(lab, "two")


def test_what_jmp_books_is_kept_from_longer_leases_and_used_by_shorter_ones(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    begin = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def create(duration: str, *more: str) -> str:
        made = lab.jmp(
            *(alice, "create", "lease", "-l", "board=two", "--duration", duration, "-o", "name"),
            *more,
        )
        assert made.returncode == 0, made.stderr
        return made.stdout.strip().rpartition("/")[2]

    def pending(name: str) -> dict[str, Any]:
        found = lab.get("leases", name)["status"]["conditions"]
        return next(item for item in found if item["type"] == "Pending")

    booked = create("1h", "--begin-time", begin)
    long = create("3h")
    eventually(lambda: pending(long)["reason"] == "Booked", what="the long lease being told")
    assert f"booked from {begin}" in pending(long)["message"]
    done = lab.jmp(alice, "shell", "-l", "board=two", "--duration", "1m", "--", "j", "power", "on")
    assert done.returncode == 0, done.stderr
    lab.delete("leases", booked)
    assert assigned(lab, long) == "two", "nothing is booked any more"
    lab.delete("leases", long)
    free(lab, "two")


def test_sessions_are_written_down_and_probes_are_not(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    """A shell's own connection, and one for each ``j``; the probe before them is no session."""
    done = lab.jmp(alice, "shell", "-l", "board=one", "--", "sh", "-c", "j power on; j power off")
    assert done.returncode == 0
    name = done.stdout.partition("Acquiring lease ")[2].split()[0]

    counted = {"endTime", "bytesFromClient", "bytesFromExporter"}

    def ended() -> list[dict[str, Any]]:
        sessions = lab.get("leases", name)["status"].get("sessions", [])
        return [session for session in sessions if counted <= set(session)]

    def used() -> list[dict[str, Any]]:
        return [session for session in ended() if session["bytesFromClient"] > PROBE_BYTES_MAX]

    eventually(lambda: len(used()) == 3, what="the ends of three sessions")
    for session in used():
        assert session["client"] == "alice"
        assert session["bytesFromExporter"] > PROBE_BYTES_MAX
        assert session["startTime"] <= session["endTime"]
    assert len({session["stream"] for session in used()}) == 3
    # On a busy machine a probe may last so long that it was written down while it was open.
    for probe in (session for session in ended() if session not in used()):
        begun, end = (times.parse(probe[name]) for name in ("startTime", "endTime"))
        assert end - begun >= PROBE_LENGTH_MAX
    eventually(
        lambda: {"SessionStarted", "SessionEnded"} <= set(lab.events(name)),
        what="events about them",
    )


async def test_older_clients_calls_still_work(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    """What the 0.9 client does not call any more: RequestLease, GetLease, ListLeases, Release."""
    bob = lab.client("bob")
    selector = kubernetes_pb2.LabelSelector(
        match_labels={"board": "one"},
        match_expressions=[
            kubernetes_pb2.LabelSelectorRequirement(
                key="board", operator="In", values=["one", "two"]
            )
        ],
    )
    async with calling(alice) as caller, calling(bob) as other:
        made = await caller.controller("RequestLease", duration={"seconds": 60}, selector=selector)
        found = await caller.controller("GetLease", name=made.name)
        assert found.exporter_uuid == lab.get("exporters", "one")["metadata"]["uid"]
        assert found.selector.match_labels == {"board": "one"}
        assert [e.values for e in found.selector.match_expressions] == [["one", "two"]]
        assert found.duration.seconds == 60
        assert found.HasField("begin_time")
        assert found.conditions[-1].type == "Ready"
        assert list((await caller.controller("ListLeases")).names) == [made.name]
        assert list((await other.controller("ListLeases")).names) == []
        for method, field in (
            ("GetLease", "name"),
            ("ReleaseLease", "name"),
            ("Dial", "lease_name"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="permission denied"):
                await other.controller(method, **{field: made.name})
        await caller.controller("ReleaseLease", name=made.name)
        await caller.controller("ReleaseLease", name=made.name)
        assert list((await caller.controller("ListLeases")).names) == []
        with pytest.raises(grpc.aio.AioRpcError) as over:
            await caller.dial(made.name)
        assert over.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "expired" not in str(over.value.details()).lower()
    free(lab, "one")


async def test_an_exporter_gives_its_lease_back_and_no_other(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    async with calling(alice) as caller, calling(boards["two"], "Exporter") as two:
        lease = await caller.create_lease("board=one")
        await caller.acquired(lease)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await two.controller("ReleaseLease", name=lease)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await two.controller("ReleaseLease", name="nothing")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        async with calling(boards["one"], "Exporter") as one:
            await one.controller("ReleaseLease", name=lease)
            await one.controller("ReleaseLease", name=lease)
    assert ended_because(lab, lease) == "Released"
    free(lab, "one")


async def test_no_update_of_a_lease_passes_the_maximum_duration_of_its_policy(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    """An end 300 days off beside a duration of half an hour was once accepted."""
    policy = {
        "exporterSelector": {"matchLabels": {}},
        "policies": [{"from": [{"clientSelector": {}}], "maximumDuration": "1h"}],
    }
    lab.create("exporteraccesspolicies", "an-hour", spec=policy)
    try:
        async with calling(alice) as caller:
            name = await caller.create_lease("board=two", lasts=1800)
            lease = await caller.acquired(name)
            end = lease.effective_begin_time.ToDatetime() + timedelta(days=300)
            cases: tuple[dict[str, Any], ...] = (
                {"end_time": end, "duration": timedelta(minutes=30)},
                {"end_time": end},
                {"duration": timedelta(hours=2)},
            )
            for fields in cases:
                wanted = client_pb2.Lease(name=lease.name, **fields)
                with pytest.raises(grpc.aio.AioRpcError):
                    await caller.client("UpdateLease", lease=wanted)
            assert "endTime" not in lab.get("leases", name)["spec"]
            lab.patch("leases", name, {"spec": {"endTime": f"{end:%Y-%m-%dT%H:%M:%SZ}"}})
            eventually(
                lambda: (
                    "Limited"
                    in [c["type"] for c in lab.get("leases", name)["status"]["conditions"]]
                ),
                what="the lease saying that it is limited",
            )
            assert lab.get("leases", name)["status"]["maximumDuration"] == "1h0m0s"
            await caller.delete_lease(name)
    finally:
        lab.delete("exporteraccesspolicies", "an-hour")


async def test_request_lease_refuses_match_expressions_it_does_not_know(
    lab: Lab, alice: Path
) -> None:
    """Without them the lease would be for more than was asked."""
    expression = {"key": "board", "operator": "Near", "values": ["two"]}
    selector = {"match_labels": {"board": "two"}, "match_expressions": [expression]}
    async with calling(alice) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.controller("RequestLease", duration={"seconds": 60}, selector=selector)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "'Near' is not an operator" in str(refused.value.details())


async def test_health_and_reflection_answer(lab: Lab, alice: Path) -> None:
    async with calling(alice) as caller:
        health: Any = health_pb2_grpc.HealthStub(caller.channel)
        for name in ("", "jumpstarter.v1.ControllerService", "jumpstarter.client.v1.ClientService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
        call = reflection.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        call.cancel()
    names = {service.name for service in listed}
    assert {"jumpstarter.v1.ControllerService", "jumpstarter.client.v1.ClientService"} <= names


async def test_a_lasting_right_takes_an_exporter_from_a_spot_lease(
    lab: Lab, service: Service
) -> None:
    """And from one only, although the other would do as well."""
    space = "spot"
    service.kubectl("create", "namespace", space)
    guest = lab.client("guest", labels={"team": "guests"}, namespace=space)
    owner = lab.client("owner", labels={"team": "owners"}, namespace=space)
    boards = [lab.exporter(f"s{n}", {"board": "x"}, namespace=space) for n in range(2)]
    for name, rule in (("guests", {"spotAccess": True}), ("owners", {"priority": 5})):
        allowed = {"from": [{"clientSelector": {"matchLabels": {"team": name}}}], **rule}
        spec = {"exporterSelector": {}, "policies": [allowed]}
        lab.create("exporteraccesspolicies", name, namespace=space, spec=spec)
    async with (
        running_fakes(*boards) as fakes,
        calling(guest) as visitor,
        calling(owner) as resident,
        asyncio.timeout(30),
    ):
        guests = [await visitor.create_lease("board=x") for _ in range(2)]
        for lease in guests:
            await visitor.acquired(lease)
        wanted = await resident.create_lease("board=x")
        await resident.acquired(wanted)
        reasons = [
            lab.get("leases", lease, space)["status"]["conditions"][-1]["reason"]
            for lease in guests
        ]
        assert sorted(reasons) == ["Evicted", "Ready"]
        assert not [wrong for fake in fakes for wrong in fake.wrongs]


def test_what_the_api_must_refuse_about_leases_is_refused(lab: Lab) -> None:
    good = {"clientRef": {"name": "alice"}, "selector": {"matchLabels": {"a": "b"}}}
    for spec in (
        {"clientRef": {"name": "alice"}, "duration": "1m"},
        {**good, "duration": "0s"},
        {**good, "duration": "soon"},
        {"selector": {"matchLabels": {"a": "b"}}, "duration": "1m"},
    ):
        with pytest.raises(Refusal) as refused:
            lab.create("leases", "bad", spec=spec)
        assert refused.value.status == 422
