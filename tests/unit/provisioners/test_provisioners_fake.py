"""The fake fails as often as it is told to, and always in the same way for the same seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from bullpen.errors import Unreachable
from bullpen.provisioners.base import (
    Connection,
    ExitReason,
    InstancePhase,
    InstanceSpec,
    Key,
    Profile,
)
from bullpen.provisioners.fake import NAME, FakeProvisioner, Faults

COUNT = 200


def spec(number: int) -> InstanceSpec:
    return InstanceSpec(
        key=("lab", f"{number:03}"),
        owner_uid="uid",
        profile=Profile(provisioner=NAME),
        connection=Connection(endpoint="", token="", ca_pem=""),
    )


async def story(seed: int, faults: Faults) -> list[str]:
    """Everything that happens to ``COUNT`` instances, in order."""
    fake = FakeProvisioner(random.Random(seed), faults=faults)
    told: list[Key] = []
    fake.listen(told.append)
    lines: list[str] = []
    for number in range(COUNT):
        try:
            await fake.ensure(spec(number))
        except Unreachable:
            lines.append(f"{number} unreachable")
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    fake.faults = Faults()
    lines += [f"{i.key[1]} {i.phase.name} {i.reason}" for i in await fake.observe_all()]
    return lines + [name for _, name in told]


async def test_the_same_seed_tells_the_same_story() -> None:
    faults = Faults(unreachable=0.2, start_failed=0.2, crashed=0.2, crash_seconds_max=0.0)

    assert await story(1, faults) == await story(1, faults)
    assert await story(1, faults) != await story(2, faults)


async def test_faults_are_about_as_frequent_as_asked_for() -> None:
    faults = Faults(unreachable=0.5, start_failed=0.25)
    words = Counter(" ".join(line.split()[1:]) for line in await story(3, faults))

    assert COUNT * 0.4 < words["unreachable"] < COUNT * 0.6
    assert COUNT * 0.05 < words[f"EXITED {ExitReason.START_FAILED}"] < COUNT * 0.2
    assert words["RUNNING None"] > COUNT * 0.25


async def test_without_faults_nothing_fails() -> None:
    words = Counter(" ".join(line.split()[1:]) for line in await story(4, Faults()))

    assert words["RUNNING None"] == COUNT


async def test_what_is_removed_while_it_boots_never_runs() -> None:
    fake = FakeProvisioner(random.Random(1), faults=Faults(stop_seconds=(0.01, 0.01)))
    phases: list[InstancePhase] = []
    await fake.ensure(spec(1))
    removing = asyncio.ensure_future(fake.remove(spec(1).key))
    while not removing.done():
        phases += [instance.phase for instance in await fake.observe_all()]
        await asyncio.sleep(0.001)

    assert set(phases) == {InstancePhase.BOOTING}
    assert await fake.observe_all() == ()


async def test_a_lease_needs_something_that_runs() -> None:
    fake = FakeProvisioner(random.Random(1))
    await fake.ensure(spec(1))

    with pytest.raises(AssertionError, match="only what runs"):
        fake.begin_lease(spec(1).key)
    fake.end_lease(spec(1).key)
    fake.crash(("lab", "absent"))
