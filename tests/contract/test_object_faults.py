"""One object that cannot be processed: it is reported, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import decode, encode
from bullpen.controllers.faults import PROCESSED
from bullpen.controllers.labs import Labs
from bullpen.core import conditions
from bullpen.core.leases import lifecycle, scheduler
from bullpen.core.leases.requests import Lab
from support.lab_world import SPACE, LabWorld


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def _raises_for(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def odd(first: Any, *arguments: Any, **options: Any) -> Any:
        value = first if isinstance(first, Lease) else arguments[0]
        if value.metadata.name == name:
            raise OverflowError("date value out of range")
        return function(first, *arguments, **options)

    return odd


def _schedule_without(name: str) -> Callable[..., Any]:
    def odd(lab: Lab) -> Any:
        if any(request.name == name for request in lab.requests):
            raise OverflowError("date value out of range")
        return real(lab)

    real = scheduler.schedule
    return odd


@pytest.mark.parametrize("place", ["due_to_end", "request", "schedule"])
def test_a_lease_that_a_pass_fails_on_keeps_no_other_lease_waiting(
    world: LabWorld,
    monkeypatch: pytest.MonkeyPatch,
    unexpected_errors: list[str],
    place: str,
) -> None:
    if place == "due_to_end":
        monkeypatch.setattr(lifecycle, place, _raises_for("odd", lifecycle.due_to_end))
    elif place == "request":
        monkeypatch.setattr(Labs, place, _raises_for("odd", Labs.request))
    else:
        monkeypatch.setattr(scheduler, place, _schedule_without("odd"))

    async def story(world: LabWorld) -> None:
        async with world.player("e1"), world.player("e2"):
            await world.make_lease("odd")
            await world.settle()
            await world.make_lease("sound")
            assert await world.assigned("sound") in ("e1", "e2")
            await world.until(lambda: _processed(world.lease("odd")) is False)
            assert conditions.get(world.lease("odd").status.conditions, "Ready") is None or (
                world.lease("odd").status.conditions[-1].type == "Ready"
            )
            await world.settle()
            found = (await world.objects.list(Event)).items
            said = [event.message for event in found if event.reason == "InternalError"]
            assert said
            assert all("OverflowError: date value out of range" in text for text in said)
            monkeypatch.undo()
            assert await world.assigned("odd") in ("e1", "e2")
            await world.until(lambda: _processed(world.lease("odd")) is True)

    world.run(story)
    assert unexpected_errors
    unexpected_errors.clear()


def _processed(lease: Lease) -> bool | None:
    found = conditions.get(lease.status.conditions, PROCESSED)
    return None if found is None else str(found.status) == "True"


def test_a_stored_object_that_cannot_be_read_hides_no_other(
    world: LabWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """As a newer or damaged version may have left it; admission would refuse it today."""

    async def story(world: LabWorld) -> None:
        await world.make_exporter("odd")
        await world.make_exporter("sound")
        key = world.registry.resources.of(Exporter).key(SPACE, "odd")
        head = world.registry.store.head(key)
        assert head is not None
        document = decode(head.value)
        document["spec"] = 7
        with pytest.raises(Exception, match="cannot be read"):
            codec.decode(Exporter, document)
        await world.registry.store.put(key, lambda _: encode(document), expect=head.revision)
        listing = await world.objects.list(Exporter)
        assert [item.metadata.name for item in listing.items] == ["sound"]
        async with world.service(), world.player("sound"):
            await world.make_lease("one")
            assert await world.assigned("one") == "sound"

    world.run_without_service(story)
    records = [r for r in caplog.records if r.message == "object cannot be read and is left out"]
    assert records
    assert all(getattr(record, "key", None) == (SPACE, "odd") for record in records)
