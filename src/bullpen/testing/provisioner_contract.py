"""What every provisioner promises, one sentence per test.

Subclass ``ProvisionerContract`` in a test module of your own package:

    class TestTurtles(ProvisionerContract):
        plugin = turtles.PLUGIN

A provisioner that is not a recipe overrides ``bench`` instead.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio

from bullpen.errors import NoCapacity, Refused
from bullpen.provisioners.base import ExitReason, Host, InstancePhase, Plugin
from bullpen.testing.benches import INSTANCES_MAX, Bench, Watcher, local_bench
from bullpen.testing.controller_stub import TOKEN

BOOTING, RUNNING, EXITED, STOPPED = InstancePhase


@pytest.mark.asyncio
class ProvisionerContract:
    plugin: ClassVar[Plugin | None] = None
    parameters: ClassVar[Mapping[str, object]] = {}
    """Parameters of the instances; a provisioner without required ones needs none."""

    def bench(self, directory: Path) -> AbstractAsyncContextManager[Bench]:
        """The provisioner with capacity for ``INSTANCES_MAX``; by default its recipe, run here."""
        assert self.plugin is not None, "name your Plugin, or override bench"
        assert self.plugin.recipe is not None, "a provider overrides bench: see attended_bench"
        recipe = self.plugin.recipe(Host(arch=platform.machine()))
        return local_bench(directory, recipe, self.plugin.preload)

    @pytest_asyncio.fixture
    async def watcher(self, tmp_path: Path) -> AsyncIterator[Watcher]:
        async with self.bench(tmp_path) as bench:
            yield Watcher(bench, self.parameters)

    async def test_an_instance_is_accepted_at_once_and_runs_later(self, watcher: Watcher) -> None:
        accepted = await watcher.bench.provisioner.ensure(watcher.spec("a"))

        assert (accepted.key, accepted.owner_uid) == (("lab", "a"), "uid-1")
        assert accepted.provisioner == watcher.bench.provisioner.name
        assert accepted.phase is BOOTING
        assert ("lab", "a") in watcher.told
        assert (await watcher.until("a", RUNNING)).reason is None

    async def test_asking_again_is_asking_once(self, watcher: Watcher) -> None:
        spec = watcher.spec("a")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(watcher.bench.provisioner.ensure(spec))
        running = await watcher.until("a", RUNNING)

        assert await watcher.bench.provisioner.ensure(spec) == running
        assert await watcher.bench.provisioner.observe_all() == (running,)

    async def test_an_absent_one_is_removed_and_retired_with_success(
        self, watcher: Watcher
    ) -> None:
        await watcher.bench.provisioner.remove(("lab", "never"))
        await watcher.bench.provisioner.stop(("lab", "never"))
        await watcher.bench.provisioner.retire(("lab", "never"))

        assert await watcher.bench.provisioner.observe_all() == ()

    async def test_a_removed_one_is_gone_and_its_name_is_free(self, watcher: Watcher) -> None:
        await watcher.running("a")
        watcher.told.clear()
        await watcher.bench.provisioner.remove(("lab", "a"))

        assert await watcher.instance("a") is None
        assert ("lab", "a") in watcher.told
        assert (await watcher.running("a", owner="uid-2")).owner_uid == "uid-2"

    async def test_many_may_remove_it_at_once(self, watcher: Watcher) -> None:
        await watcher.running("a")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(watcher.bench.provisioner.remove(("lab", "a")))

        assert await watcher.instance("a") is None

    async def test_a_stopped_one_is_started_by_asking_for_it(self, watcher: Watcher) -> None:
        """Whether its machine is kept meanwhile is up to the provisioner."""
        lasting = watcher.spec("a", single_use=False, lasting=True)
        await watcher.bench.provisioner.ensure(lasting)
        before = await watcher.until("a", RUNNING)
        await watcher.bench.provisioner.stop(lasting.key)

        stopped = await watcher.instance("a")
        assert stopped is None or stopped.phase is STOPPED
        await watcher.bench.provisioner.ensure(lasting)
        again = await watcher.until("a", RUNNING)
        if stopped is not None:
            assert again.provider_id == before.provider_id != "", "it is the machine that was kept"
        await watcher.bench.provisioner.stop(lasting.key)
        await watcher.bench.provisioner.remove(lasting.key)
        assert await watcher.instance("a") is None, "a stopped one is removed too"

    async def test_one_that_boots_can_be_removed(self, watcher: Watcher) -> None:
        await watcher.bench.provisioner.ensure(watcher.spec("a"))
        await watcher.bench.provisioner.remove(("lab", "a"))

        assert await watcher.instance("a") is None
        await watcher.running("b")
        assert await watcher.instance("a") is None, "it did not start after all"

    async def test_one_that_dies_is_told_and_stays_listed_until_it_is_removed(
        self, watcher: Watcher
    ) -> None:
        await watcher.running("a")
        watcher.bench.crash(("lab", "a"))
        exited = await watcher.until("a", EXITED)

        assert exited.reason is ExitReason.CRASHED
        assert exited.detail
        assert await watcher.bench.provisioner.ensure(watcher.spec("a")) == exited, "not restarted"
        await watcher.bench.provisioner.remove(("lab", "a"))
        assert await watcher.instance("a") is None

    async def test_a_single_use_one_ends_with_its_lease(self, watcher: Watcher) -> None:
        await watcher.running("a")
        await watcher.bench.begin_lease(("lab", "a"))
        assert (await watcher.until("a", RUNNING)).reason is None
        await watcher.bench.end_lease(("lab", "a"))

        assert (await watcher.until("a", EXITED)).reason is ExitReason.COMPLETED

    async def test_one_that_is_used_again_outlives_its_leases(self, watcher: Watcher) -> None:
        await watcher.running("a", single_use=False)
        for _ in range(2):
            await watcher.bench.begin_lease(("lab", "a"))
            await watcher.bench.end_lease(("lab", "a"))
        await watcher.bench.begin_lease(("lab", "a"))

        assert (await watcher.until("a", RUNNING)).reason is None

    async def test_a_retired_one_without_a_lease_ends_now(self, watcher: Watcher) -> None:
        await watcher.running("a", single_use=False)
        await watcher.bench.provisioner.retire(("lab", "a"))

        assert (await watcher.until("a", EXITED)).reason is ExitReason.COMPLETED
        await watcher.bench.provisioner.retire(("lab", "a"))

    async def test_a_retired_one_ends_after_its_lease_and_not_before(
        self, watcher: Watcher
    ) -> None:
        await watcher.running("a", single_use=False)
        await watcher.bench.begin_lease(("lab", "a"))
        await watcher.bench.provisioner.retire(("lab", "a"))
        await watcher.running("b")
        assert (await watcher.until("a", RUNNING)).reason is None
        await watcher.bench.end_lease(("lab", "a"))

        assert (await watcher.until("a", EXITED)).reason is ExitReason.COMPLETED

    async def test_one_that_boots_can_be_retired(self, watcher: Watcher) -> None:
        await watcher.bench.provisioner.ensure(watcher.spec("a"))
        await watcher.bench.provisioner.retire(("lab", "a"))

        assert (await watcher.until("a", EXITED)).reason is ExitReason.COMPLETED

    async def test_another_owners_instance_is_returned_and_left_alone(
        self, watcher: Watcher
    ) -> None:
        running = await watcher.running("a", owner="uid-1")

        assert await watcher.bench.provisioner.ensure(watcher.spec("a", owner="uid-2")) == running

    async def test_a_full_backend_says_so_and_has_room_when_one_exits(
        self, watcher: Watcher
    ) -> None:
        for number in range(INSTANCES_MAX):
            await watcher.running(f"a{number}")
        with pytest.raises(NoCapacity, match=str(INSTANCES_MAX)):
            await watcher.bench.provisioner.ensure(watcher.spec("b"))
        assert await watcher.instance("b") is None
        watcher.bench.crash(("lab", "a0"))
        await watcher.until("a0", EXITED)

        await watcher.running("b")

    async def test_wrong_parameters_are_named_by_path_and_refused(self, watcher: Watcher) -> None:
        provisioner = watcher.bench.provisioner

        (cause,) = provisioner.check(watcher.spec("a", colour="blue").profile)
        assert cause.field == "parameters.colour"
        assert provisioner.check(watcher.spec("a").profile) == ()
        with pytest.raises(Refused, match=r"parameters\.colour"):
            await provisioner.ensure(watcher.spec("a", colour="blue"))
        assert await watcher.instance("a") is None

    async def test_all_are_listed_in_order_of_their_keys(self, watcher: Watcher) -> None:
        for name in ("c", "a", "b"):
            await watcher.bench.provisioner.ensure(watcher.spec(name))

        found = await watcher.bench.provisioner.observe_all()
        assert [instance.key[1] for instance in found] == ["a", "b", "c"]

    async def test_no_secret_is_shown(self, watcher: Watcher) -> None:
        spec = replace(watcher.spec("a"), credentials={"password": TOKEN.encode()})
        assert spec.connection.token == TOKEN
        accepted = await watcher.bench.provisioner.ensure(spec)

        assert TOKEN not in repr(spec)
        assert TOKEN not in repr(accepted)

    async def test_new_credentials_leave_a_running_one_running(self, watcher: Watcher) -> None:
        provisioner = watcher.bench.provisioner
        absent = replace(watcher.spec("never"), credentials={"key": b"new"})
        await provisioner.update_credentials(absent)
        running = await watcher.running("a")
        for content in ({"key": b"new"}, {"other": b"newer"}, {}):
            await provisioner.update_credentials(replace(watcher.spec("a"), credentials=content))

        assert await provisioner.observe_all() == (running,)
