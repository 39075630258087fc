"""Jumpstarter's calls, as its programs make them: every field of a question and of an answer."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from jumpstarter_protocol import client_pb2, jumpstarter_pb2, kubernetes_pb2

from bullpen.errors import BadRequest, Forbidden, NotFound
from bullpen.services.peers import Peer
from support.lab_world import SPACE, LabWorld

PARENT = f"namespaces/{SPACE}"
HOUR = timedelta(hours=1)
AVAILABLE, LEASE_READY = 2, 4
"""Of ``ExporterStatus``."""


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def span(value: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(value)
    return message


def moment(value: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(value)
    return message


def when(message: Any) -> datetime:
    found: datetime = message.ToDatetime(tzinfo=UTC)
    return found


async def create(
    world: LabWorld, *, by: str = "alice", lease_id: str = "", parent: str = PARENT, **fields: Any
) -> Any:
    asked = client_pb2.Lease(**{"selector": "board=x", "duration": span(HOUR), **fields})
    request = client_pb2.CreateLeaseRequest(parent=parent, lease_id=lease_id, lease=asked)
    return await world.client_calls.CreateLease(world.client(by), request)


async def get(world: LabWorld, name: str, by: str = "alice") -> Any:
    request = client_pb2.GetLeaseRequest(name=name)
    return await world.client_calls.GetLease(world.client(by), request)


async def leases(world: LabWorld, **fields: Any) -> Any:
    request = client_pb2.ListLeasesRequest(parent=PARENT, **fields)
    return await world.client_calls.ListLeases(world.client(), request)


async def update(world: LabWorld, name: str, by: str = "alice", **fields: Any) -> Any:
    request = client_pb2.UpdateLeaseRequest(lease=client_pb2.Lease(name=name, **fields))
    return await world.client_calls.UpdateLease(world.client(by), request)


async def exporters(world: LabWorld, **fields: Any) -> Any:
    request = client_pb2.ListExportersRequest(parent=PARENT, **fields)
    return await world.client_calls.ListExporters(world.client(), request)


def test_a_lease_is_answered_with_all_that_is_known_of_it(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.settle()
            now = world.clock.now()
            made = await create(world, lease_id="mine", tags={"build": "7"})
            assert made.name == f"{PARENT}/leases/mine"
            assert made.client == f"{PARENT}/clients/alice"
            assert made.exporter == f"{PARENT}/exporters/e1"
            assert made.selector == "board=x"
            assert made.duration.ToTimedelta() == HOUR
            assert dict(made.tags) == {"build": "7"}
            assert abs(when(made.effective_begin_time) - now) < timedelta(seconds=2)
            assert not made.allow_disabled
            assert not made.exporter_name
            assert not made.HasField("begin_time")
            assert not made.HasField("end_time")
            assert not made.HasField("effective_end_time")
            ready = {c.type: c.status for c in made.conditions}
            assert ready["Ready"] == "True"
            assert made == await get(world, made.name)
            await asyncio.sleep(60)
            later = await get(world, made.name)
            assert later.effective_duration.ToTimedelta() >= timedelta(seconds=59)

    world.run(story)


def test_an_ended_lease_says_from_when_to_when_it_was_used(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            made = await create(world)
            await asyncio.sleep(60)
            request = client_pb2.DeleteLeaseRequest(name=made.name)
            await world.client_calls.DeleteLease(world.client(), request)
            await world.ended(made.name.rpartition("/")[2])
            await asyncio.sleep(60)
            over = await get(world, made.name)
            used = when(over.effective_end_time) - when(over.effective_begin_time)
            assert timedelta(seconds=59) <= used <= timedelta(seconds=62)
            assert over.effective_duration.ToTimedelta() == used
            assert not (await leases(world)).leases
            (listed,) = (await leases(world, only_active=False)).leases
            assert listed == over

    world.run(story)


def test_a_booked_lease_says_when_it_begins_and_ends(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            begin = world.clock.now().replace(microsecond=0) + HOUR
            booked = await create(
                world, begin_time=moment(begin), end_time=moment(begin + 2 * HOUR), duration=None
            )
            assert when(booked.begin_time) == begin
            assert when(booked.end_time) == begin + 2 * HOUR
            assert booked.duration.ToTimedelta() == 2 * HOUR
            assert not booked.exporter
            assert not booked.HasField("effective_begin_time")
            assert booked.effective_duration.ToTimedelta() == timedelta(0)
            with pytest.raises(BadRequest, match="contradict"):
                await update(world, booked.name, begin_time=moment(begin + HOUR))
            end = moment(begin + 3 * HOUR)
            later = await update(world, booked.name, begin_time=moment(begin + HOUR), end_time=end)
            assert when(later.begin_time) == begin + HOUR
            assert when(later.end_time) == begin + 3 * HOUR
            assert later.duration.ToTimedelta() == 2 * HOUR

    world.run(story)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"parent": "default"}, "is not of the form", id="no namespace"),
        pytest.param({"parent": "namespaces/other"}, "does not belong", id="another namespace"),
        pytest.param({"selector": ""}, "selector", id="nothing asked for"),
        pytest.param({"duration": Duration(seconds=2**60)}, "duration", id="a duration of ages"),
        pytest.param({"begin_time": Timestamp(seconds=2**60)}, "begin_time", id="no time"),
        pytest.param({"duration": Duration(seconds=0)}, "duration", id="no duration"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field(
    world: LabWorld, fields: dict[str, Any], problem: str
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            with pytest.raises((BadRequest, Forbidden), match=problem):
                await create(world, **fields)

    world.run(story)


def test_a_lease_is_changed_by_what_is_present_and_handed_to_others(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            made = await create(world)
            longer = await update(world, made.name, duration=span(2 * HOUR))
            assert longer.duration.ToTimedelta() == 2 * HOUR
            assert longer.client == f"{PARENT}/clients/alice"
            begun = when(made.effective_begin_time)
            until = await update(world, made.name, end_time=moment(begun + 3 * HOUR))
            assert when(until.end_time) == begun + 3 * HOUR
            handed = await update(world, made.name, client=f"{PARENT}/clients/bob")
            assert handed.client == f"{PARENT}/clients/bob"
            with pytest.raises(Forbidden):
                await update(world, made.name, duration=span(HOUR))
            with pytest.raises(BadRequest, match="is not of the form"):
                await update(world, "leases/x", duration=span(HOUR))

    world.run(story)


def test_lists_have_filters_and_pages(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        for name in ("e1", "e2", "e3"):
            await world.make_exporter(name, board="x", place=name)
        await world.settle()
        found = await exporters(world)
        assert [e.name for e in found.exporters] == [
            f"{PARENT}/exporters/e{number}" for number in (1, 2, 3)
        ]
        assert not found.next_page_token
        first = await exporters(world, page_size=2)
        assert len(first.exporters) == 2
        rest = await exporters(world, page_size=2, page_token=first.next_page_token)
        assert [e.name for e in rest.exporters] == [f"{PARENT}/exporters/e3"]
        assert not rest.next_page_token
        (one,) = (await exporters(world, filter="place=e2")).exporters
        assert dict(one.labels) == {"board": "x", "place": "e2"}
        names = [
            (await create(world, lease_id=name, tags={"build": name})).name
            for name in ("a", "b", "c")
        ]
        assert [lease.name for lease in (await leases(world)).leases] == names
        (tagged,) = (await leases(world, tag_filter="build=b")).leases
        assert tagged.name == names[1]
        page = await leases(world, page_size=1)
        assert [lease.name for lease in page.leases] == names[:1]
        assert page.next_page_token

    world.run(story)


def test_an_exporter_is_answered_with_its_state(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async def read(name: str = "e1") -> Any:
            request = client_pb2.GetExporterRequest(name=f"{PARENT}/exporters/{name}")
            return await world.client_calls.GetExporter(world.client(), request)

        async with world.player() as player:
            await world.settle()
            free = await read()
            assert free.online
            assert free.enabled
            assert free.status == AVAILABLE
            await create(world)
            await world.settle()
            assert (await read()).status == LEASE_READY
            assert player.heard[-1].leased
        with pytest.raises(NotFound):
            await read("e2")

    world.run(story)


def test_an_older_client_gets_its_lease_by_the_older_calls(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        calls, alice = world.controller_calls, world.client()
        async with world.player():
            await world.settle()
            selector = kubernetes_pb2.LabelSelector(
                match_labels={"board": "x"},
                match_expressions=[
                    kubernetes_pb2.LabelSelectorRequirement(
                        key="place", operator="NotIn", values=["cellar"]
                    )
                ],
            )
            asked = jumpstarter_pb2.RequestLeaseRequest(selector=selector, duration=span(HOUR))
            name = (await calls.RequestLease(alice, asked)).name
            question = jumpstarter_pb2.GetLeaseRequest(name=name)
            found = await calls.GetLease(alice, question)
            assert found.exporter_uuid == world.exporter().metadata.uid
            assert found.duration.ToTimedelta() == HOUR
            assert dict(found.selector.match_labels) == {"board": "x"}
            (rule,) = found.selector.match_expressions
            assert (rule.key, rule.operator, list(rule.values)) == ("place", "NotIn", ["cellar"])
            assert found.HasField("begin_time")
            assert not found.HasField("end_time")
            with pytest.raises(Forbidden, match="another client"):
                await calls.GetLease(world.client("bob"), question)
            mine = await calls.ListLeases(alice, jumpstarter_pb2.ListLeasesRequest())
            assert list(mine.names) == [name]
            other = await calls.ListLeases(world.client("bob"), jumpstarter_pb2.ListLeasesRequest())
            assert not other.names
            gone = jumpstarter_pb2.ReleaseLeaseRequest(name=name)
            await calls.ReleaseLease(alice, gone)
            await world.ended(name)
            await calls.ReleaseLease(alice, gone)
            over = await calls.GetLease(alice, question)
            assert over.HasField("end_time")

    world.run(story)


def test_an_exporter_registers_reports_and_hears_of_its_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        calls = world.controller_calls
        await world.make_exporter("e1")
        await world.settle()
        report = jumpstarter_pb2.DriverInstanceReport(uuid="0", labels={"a": "b"})
        request = jumpstarter_pb2.RegisterRequest(labels={"l": "m"}, reports=[report])
        answer = await calls.Register(world.exporter(), request)
        assert answer.uuid == world.exporter().metadata.uid
        status = jumpstarter_pb2.ReportStatusRequest(status=AVAILABLE, message="here")
        await calls.ReportStatus(world.exporter(), status)
        heard: list[Any] = []
        hear = heard.append

        async def listen() -> None:
            stream = calls.Status(world.exporter(), jumpstarter_pb2.StatusRequest(), Peer())
            async with contextlib.aclosing(stream) as answers:
                async for each in answers:
                    hear(each)

        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(listen())
            await world.settle()
            assert [each.leased for each in heard] == [False]
            lease = (await create(world, lease_id="mine")).name
            await world.settle()
            assert (heard[-1].leased, heard[-1].lease_name) == (True, "mine")
            assert heard[-1].client_name == "alice"
            ready = jumpstarter_pb2.ReportStatusRequest(status=LEASE_READY, message="go")
            await calls.ReportStatus(world.exporter(), ready)
            over = jumpstarter_pb2.ReportStatusRequest(status=AVAILABLE, release_lease=True)
            await calls.ReportStatus(world.exporter(), over)
            await world.ended(lease.rpartition("/")[2])
            await world.settle()
            assert not heard[-1].leased
            listening.cancel()
        leaving = jumpstarter_pb2.UnregisterRequest(reason="lunch")
        await calls.Unregister(world.exporter(), leaving)
        await world.settle()
        conditions = {c.type: c for c in world.exporter().status.conditions}
        assert conditions["Registered"].status.value == "False"
        assert "lunch" in conditions["Registered"].message
        assert not world.exporter().status.devices

    world.run(story)
