"""The storage of lasting disks in the simulator: what it does wrong, and where it is planned."""

from __future__ import annotations

import asyncio
import random

import pytest

from bullpen.core.targets.disks import Create
from bullpen.errors import NoCapacity, StorageFailed, Unreachable
from bullpen.kit.clock import VirtualClock
from bullpen.sim import virtual_time
from bullpen.sim.lasting_storage import PATIENCE, LastingStorage
from bullpen.sim.plan import ADDED_LASTING, ONLY_LASTING, Act, Home, Size, plan

KEY = ("default", "root")
SEEDS = range(150)


def acts(size: Size) -> set[Act]:
    return {step.act for seed in SEEDS for step in plan(seed, Home.EMBEDDED, size).steps}


def test_runs_with_lasting_disks_meet_every_fault_of_their_storage_and_others_none() -> None:
    assert acts(Size.LASTING) >= ONLY_LASTING | ADDED_LASTING
    assert not acts(Size.USUAL) & (ONLY_LASTING | ADDED_LASTING)


def test_a_failed_call_may_have_been_carried_out_or_not() -> None:
    async def story() -> None:
        storage = LastingStorage(random.Random(1))
        storage.fails_until = asyncio.get_running_loop().time() + 60
        for number in range(20):
            with pytest.raises(StorageFailed):
                await storage.create(KEY, str(number), Create(size_bytes=1))
        assert 0 < len(storage.contents.stored) < 20
        storage.heal()
        await storage.create(KEY, "whole", Create(size_bytes=1))

    virtual_time.run(VirtualClock(), story())


def test_a_call_that_hangs_is_given_up_in_time() -> None:
    async def story() -> None:
        loop, storage = asyncio.get_running_loop(), LastingStorage(random.Random(1))
        began = loop.time()
        storage.hangs_until = began + 1
        with pytest.raises(Unreachable):
            await storage.look(KEY, "a")
        assert loop.time() - began <= PATIENCE

    virtual_time.run(VirtualClock(), story())


def test_a_full_storage_takes_no_content_and_still_deletes() -> None:
    async def story() -> None:
        storage = LastingStorage(random.Random(1))
        await storage.create(KEY, "a", Create(size_bytes=1))
        storage.full_until = asyncio.get_running_loop().time() + 60
        with pytest.raises(NoCapacity):
            await storage.create(KEY, "b", Create(size_bytes=1))
        with pytest.raises(NoCapacity):
            await storage.grow(KEY, "a", 2)
        await storage.delete(KEY, "a")
        assert not storage.contents.stored

    virtual_time.run(VirtualClock(), story())
