"""Begin, end and duration that clients ask for: what is stored, refused, and kept in the end.

Also the selectors and tags of requests, as leases keep them.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from bullpen.api.kinds.lease import TAGS_MAX, Lease
from bullpen.core.leases import lifecycle
from bullpen.errors import BadRequest
from bullpen.kit.clock import EPOCH
from bullpen.services.lease_requests import AWAY_MAX, DURATION_MAX, Edit, LeaseRequest
from support.lab_world import LabWorld

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
Moment = datetime | None
Span = timedelta | None


def hours(count: float) -> datetime:
    """A moment so long after the story began."""
    return EPOCH + count * HOUR


async def create(world: LabWorld, **fields: object) -> Lease:
    asked = {"selector": "board=x", "tags": {}, "lease_id": "l", **fields}
    return await world.leases.create(world.client(), LeaseRequest(**asked))  # type: ignore[arg-type]


async def ends(world: LabWorld, at: datetime) -> None:
    """The lease has its exporter until then, and no longer."""
    await asyncio.sleep((at - world.clock.now()).total_seconds() - 2)
    assert not world.lease("l").status.ended
    assert await world.ended("l", seconds=5) == "Expired"


def times_of(lease: Lease) -> tuple[Moment, Moment, Span]:
    return lease.spec.begin_time, lease.spec.end_time, lease.spec.duration


@pytest.mark.parametrize(
    ("begin", "end", "duration", "stored", "at"),
    [
        pytest.param(None, None, HOUR, (None, None, HOUR), 1, id="now, for an hour"),
        pytest.param(hours(2), None, HOUR, (hours(2), None, HOUR), 3, id="from then, for an hour"),
        pytest.param(
            hours(2), hours(3), None, (hours(2), hours(3), HOUR), 3, id="from then to then"
        ),
        pytest.param(None, hours(2), HOUR, (hours(1), hours(2), HOUR), 2, id="until"),
        pytest.param(hours(2), hours(3), HOUR, (hours(2), hours(3), HOUR), 3, id="all three"),
        pytest.param(hours(-1), None, 2 * HOUR, (hours(-1), None, 2 * HOUR), 1, id="already begun"),
    ],
)
def test_times_that_fit_are_completed_and_kept(
    begin: Moment, end: Moment, duration: Span, stored: tuple[Moment, Moment, Span], at: float
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            lease = await create(world, begin=begin, end=end, duration=duration)
            assert times_of(lease) == stored
            await ends(world, hours(at))

    LabWorld().run(story)


@pytest.mark.parametrize(
    ("begin", "end", "duration", "text"),
    [
        pytest.param(None, None, None, "above zero", id="nothing"),
        pytest.param(None, None, timedelta(0), "above zero", id="zero"),
        pytest.param(None, None, -HOUR, "above zero", id="negative"),
        pytest.param(hours(2), hours(1), None, "above zero", id="an end before the beginning"),
        pytest.param(hours(2), hours(2), None, "above zero", id="an end at the beginning"),
        pytest.param(hours(2), hours(3), 2 * HOUR, "contradict", id="three that do not fit"),
        pytest.param(None, None, DURATION_MAX + HOUR, "at most 3650 days", id="a century"),
        pytest.param(hours(-2), None, HOUR, "is in the past", id="over already"),
        pytest.param(hours(-1), None, HOUR, "is in the past", id="over just now"),
        pytest.param(hours(-2), hours(-1), None, "is in the past", id="between two moments gone"),
        pytest.param(EPOCH + AWAY_MAX + HOUR, None, HOUR, "3650 days from now", id="far ahead"),
        pytest.param(None, EPOCH - AWAY_MAX - HOUR, HOUR, "3650 days from now", id="long ago"),
    ],
)
def test_times_that_do_not_fit_are_refused_and_make_no_lease(
    begin: Moment, end: Moment, duration: Span, text: str
) -> None:
    async def story(world: LabWorld) -> None:
        with pytest.raises(BadRequest, match=text):
            await create(world, begin=begin, end=end, duration=duration)
        assert not list(world.views.leases.all())

    LabWorld().run(story)


@pytest.mark.parametrize(
    ("edit", "stored", "at"),
    [
        pytest.param(Edit(duration=2 * HOUR), (None, None, 2 * HOUR), 2, id="a longer duration"),
        pytest.param(
            Edit(duration=MINUTE * 40), (None, None, MINUTE * 40), 2 / 3, id="a shorter one"
        ),
        pytest.param(Edit(end=hours(3)), (None, hours(3), 3 * HOUR), 3, id="an end"),
        pytest.param(
            Edit(end=hours(0.75)), (None, hours(0.75), 0.75 * HOUR), 0.75, id="a sooner end"
        ),
    ],
)
def test_an_active_lease_that_is_changed_ends_at_its_new_time(
    edit: Edit, stored: tuple[Moment, Moment, Span], at: float
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await create(world, duration=HOUR)
            await world.assigned("l")
            begun = world.lease("l").status.begin_time
            await asyncio.sleep((hours(0.5) - world.clock.now()).total_seconds())
            changed = await world.leases.update(world.client(), "l", edit)
            begin, end, duration = times_of(changed)
            assert (begin, end) == stored[:2]
            assert duration is not None
            assert stored[2] is not None
            assert abs(duration - stored[2]) < timedelta(seconds=2)
            assert changed.status.begin_time == begun
            await ends(world, hours(at))

    LabWorld().run(story)


def test_a_new_duration_replaces_an_end_and_a_new_end_a_duration() -> None:
    async def story(world: LabWorld) -> None:
        await world.make_exporter()
        await create(world, begin=hours(2), end=hours(3))
        longer = await world.leases.update(world.client(), "l", Edit(duration=2 * HOUR))
        assert times_of(longer) == (hours(2), None, 2 * HOUR)
        sooner = await world.leases.update(world.client(), "l", Edit(end=hours(2.5)))
        assert times_of(sooner) == (hours(2), hours(2.5), HOUR / 2)
        moved = await world.leases.update(world.client(), "l", Edit(begin=hours(5), end=hours(7)))
        assert times_of(moved) == (hours(5), hours(7), 2 * HOUR)
        assert lifecycle.begins_at(moved.spec) == hours(5)
        same = await world.leases.update(world.client(), "l", Edit())
        assert times_of(same) == times_of(moved)
        with pytest.raises(BadRequest, match="above zero"):
            await world.leases.update(world.client(), "l", Edit(end=hours(4)))
        edit = Edit(begin=hours(5), end=hours(6), duration=3 * HOUR)
        with pytest.raises(BadRequest, match="contradict"):
            await world.leases.update(world.client(), "l", edit)
        assert times_of(world.lease("l")) == times_of(moved)

    LabWorld().run(story)


SELECTOR = "board=x,rack in (r1,r2),site notin (lab9),gpu,!old,rev!=3"


@pytest.mark.parametrize(
    ("labels", "served"),
    [
        ({}, True),
        ({"board": "y"}, False),
        ({"rack": "r3"}, False),
        ({"site": "lab9"}, False),
        ({"site": "lab8"}, True),
        ({"gpu": None}, False),
        ({"old": "yes"}, False),
        ({"rev": "3"}, False),
        ({"rev": "4"}, True),
    ],
    ids=str,
)
def test_a_selector_of_every_form_is_kept(labels: dict[str, str | None], served: bool) -> None:
    async def story(world: LabWorld) -> None:
        whole = {"board": "x", "rack": "r2", "gpu": "a", **labels}
        await world.make_exporter("e1", **{k: v for k, v in whole.items() if v is not None})
        await world.settle()
        async with world.player():
            await create(world, selector=SELECTOR, duration=HOUR)
            await world.settle()
            assert (world.lease("l").status.exporter_ref is not None) == served

    LabWorld().run(story)


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"selector": "a=b,a=c"}, "two values of 'a'"),
        ({"selector": "a>1"}, "not supported"),
        ({"tags": {"jumpstarter.dev": "c"}}, "reserved prefix"),
        ({"tags": {"": "c"}}, "tag ''"),
        ({"tags": {"a b": "c"}}, "tag 'a b'"),
        ({"tags": {"a": "b c"}}, "the value 'b c'"),
        ({"tags": {"idle-timeout": "soon"}}, "the value 'soon'"),
        ({"tags": {"idle-timeout": "9s"}}, "at least 10s"),
        ({"tags": {str(n): "x" for n in range(TAGS_MAX + 1)}}, "at most 10 tags"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_selectors_and_tags_that_no_lease_can_have_are_refused(
    fields: dict[str, object], refusal: str
) -> None:
    async def story(world: LabWorld) -> None:
        with pytest.raises(BadRequest, match=refusal):
            await create(world, duration=HOUR, **fields)
        assert not list(world.views.leases.all())

    LabWorld().run(story)


def test_as_many_tags_as_allowed_become_labels() -> None:
    async def story(world: LabWorld) -> None:
        tags = {f"t{n}": str(n) for n in range(TAGS_MAX - 1)} | {"idle-timeout": "10s"}
        made = await create(world, duration=HOUR, tags=tags)
        found = {k: v for k, v in made.metadata.labels.items() if k.startswith("metadata.")}
        assert found == {f"metadata.jumpstarter.dev/{k}": v for k, v in tags.items()}

    LabWorld().run(story)
