"""Pools from the outside: what is applied, what happens, and what must never happen.

Upstream's ExporterSet controller has twenty known gaps. A test here is named after each
that can be shown without a machine. 12, 13, 14, 19 and the reset of 6 need the real
thing: ``tests/real/test_gaps_real.py`` and ``tests/real/test_qemu_lessees.py``.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.exporter_template import Driver, Template, TemplateMetadata, TemplateSpec
from bullpen.api.kinds.accesspolicy import (
    ExporterAccessPolicy,
    ExporterAccessPolicySpec,
    From,
    Policy,
)
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.exporterset import ExporterSet, RecycleStrategy
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualtargetclass import BindingMode, ReclaimPolicy, VirtualTargetClass
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.controllers.targets.instance_reconciler import LANE_MAX
from bullpen.core import conditions
from bullpen.core.pools.members import REVISION
from bullpen.errors import Invalid, NotFound
from bullpen.provisioners.base import ExitReason
from bullpen.provisioners.fake import Faults
from bullpen.registry.objects import RegistryObjects
from support.pool_world import BOOT, LABELS, NAMESPACE, World

SECOND = timedelta(seconds=1)
INSTANT = Faults()


async def warm(world: World, count: int = 2, **spec: Any) -> None:
    """A pool that keeps so many warm, and has them."""
    await world.make_class()
    await world.make_set(min_available_replicas=count, **spec)
    await world.until(lambda: world.available(count))


# What a pool is for


def test_two_warm_targets_always() -> None:
    async def story(world: World) -> None:
        await warm(world)
        await world.ask("job")
        await world.until(lambda: world.got("job"), seconds=1, what="a warm one at once")
        await world.until(lambda: world.available(2), seconds=6, what="the buffer filled again")
        assert world.status().leased_replicas == 1

    World().run(story)


def test_ten_pipelines_that_ask_at_once_get_ten() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=0)
        for number in range(10):
            await world.ask(f"job-{number}")
        await world.until(lambda: all(world.got(f"job-{n}") for n in range(10)), seconds=5)
        assert len({world.got(f"job-{n}") for n in range(10)}) == 10

    World().run(story)


def test_at_night_there_are_none_that_nobody_asked_for() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(scale_down_cooldown=timedelta(minutes=2))
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        await world.release("job")
        await world.until(lambda: not world.names() and not world.instances(), seconds=5)

    World().run(story)


def test_each_lessee_gets_a_target_nobody_used_before() -> None:
    async def story(world: World) -> None:
        await warm(world, 1, max_replicas=2)
        used = []
        for number in range(6):
            await world.ask(f"job-{number}")
            await world.until(lambda n=number: world.got(f"job-{n}"))  # type: ignore[misc]
            used.append(world.held(f"job-{number}"))
            await world.release(f"job-{number}")
        assert len(set(used)) == 6

    World().run(story)


def test_a_target_that_its_provider_is_about_to_end_is_replaced_and_its_lessee_told() -> None:
    async def story(world: World) -> None:
        await warm(world, 2, max_replicas=4, scale_down_cooldown=timedelta(hours=1))
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        held = world.got("job")
        (idle, *_) = [name for name in world.names() if name != held]
        before = world.held("job")
        for name in (held, idle):
            world.provisioner.give_notice((NAMESPACE, name), "spot interruption")

        def told() -> str:
            lease = world.views.leases.get(NAMESPACE, "job")
            found = lease and conditions.get(lease.status.conditions, "Interrupted")
            return f"{found.status} {found.reason} {found.message}" if found else ""

        await world.until(lambda: told().startswith("True TargetEnds"))
        assert "spot interruption; save your work" in told()
        await world.until(lambda: world.available(2), what="others in the place of both")
        assert world.held("job") == before, "the lease goes on as long as its target does"
        disabled = world.views.exporters.get(NAMESPACE, held)
        assert disabled is not None
        assert not disabled.spec.enabled

    World().run(story)


def test_a_used_target_is_never_offered_again_however_quick_the_next_lease_is() -> None:
    """Both leases wait before the first is over; the second must not get the same one."""

    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=1)
        await world.ask("first")
        await world.until(lambda: world.got("first"))
        first = world.held("first")
        await world.ask("second")
        await world.release("first")
        await world.until(lambda: world.got("second"), seconds=10)
        assert world.held("second") != first

    World().run(story)


def test_the_target_that_has_been_ready_for_longest_is_handed_out_first() -> None:
    async def story(world: World) -> None:
        await warm(world, 1, max_replicas=2, scale_down_cooldown=timedelta(hours=1))
        await world.ask("first")
        await world.until(lambda: world.got("first") == "qemu-0" and world.available(1))
        await world.release("first")
        await world.until(lambda: world.names() == ["qemu-1"])
        await world.edit_set(min_available_replicas=2)
        await world.until(lambda: world.names() == ["qemu-0", "qemu-1"] and world.available(2))
        await world.ask("second")
        await world.until(lambda: world.got("second"), seconds=1)
        assert world.got("second") == "qemu-1"

    World().run(story)


def test_a_member_that_still_boots_is_not_surplus() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(scale_down_cooldown=timedelta(seconds=20))
        await world.ask("job")
        await world.until(lambda: world.names())
        await world.release("job")
        await world.always(lambda: world.names() == ["qemu-0"], seconds=55)
        await world.until(lambda: world.available(1), seconds=10)
        await world.always(lambda: world.names() == ["qemu-0"], seconds=15)
        await world.until(lambda: not world.names(), seconds=10)

    World(faults=Faults(boot_seconds=(60, 60))).run(story)


def test_after_a_restart_nothing_goes_before_a_whole_cooldown_was_watched() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await warm(world, 2, scale_down_cooldown=timedelta(minutes=5))
            await world.edit_set(min_available_replicas=0)
            await world.until(lambda: world.status().surplus)
        await world.sleep(3600)
        async with world.service():
            await world.always(lambda: len(world.names()) == 2, seconds=290)
            await world.until(lambda: not world.names(), seconds=20)

    World().run_without_service(story)


def test_a_lost_connection_is_not_a_boot() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        boot = world.status().typical_boot
        assert boot is not None
        await world.sleep(18 * 60)
        world.players.mute = lambda name: True
        world.players._hang_up((NAMESPACE, "qemu-0"))
        await world.until(lambda: world.status().ready_replicas == 0, seconds=5)
        world.players.mute = lambda name: False
        world.provisioner._tell((NAMESPACE, "qemu-0"))
        await world.until(lambda: world.available(1), seconds=5)
        await world.sleep(5)
        assert world.status().typical_boot == boot

    World().run(story)


# Upstream's gaps


def test_gap_01_scale_from_zero_keeps_the_lease_waiting_and_serves_it() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set()
        await world.ask("job")
        await world.until(lambda: "1 of 1 starting" in world.waits("job"), seconds=1)
        pending = conditions.get(world.lease("job").status.conditions, "Pending")
        assert pending is not None
        await world.until(lambda: world.got("job"), seconds=5)
        assert not world.lease("job").status.ended

    World().run(story)


def test_gap_01_a_pool_whose_last_member_drains_still_keeps_a_lease_waiting() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        (member,) = world.members()
        await world.objects.update(replace(member, spec=ExporterSpec(enabled=False)))
        await world.ask("job")
        await world.until(lambda: world.got("job"), seconds=10)
        assert world.got("job") != member.metadata.name

    World().run(story)


def test_gap_02_one_lease_makes_one_member_however_long_it_boots() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=0)
        await world.ask("job")
        await world.until(lambda: world.names())
        await world.always(lambda: len(world.names()) == 1, seconds=100)
        assert world.status().created == 1

    World(faults=Faults(boot_seconds=(120, 120))).run(story)


def test_gap_03_binding_mode_waits_for_the_first_consumer() -> None:
    async def story(world: World) -> None:
        await world.make_class(binding_mode=BindingMode.WAIT_FOR_FIRST_CONSUMER)
        await world.make_set(min_replicas=2, min_available_replicas=2)
        await world.always(lambda: not world.names(), seconds=30)
        assert world.reason("Available") == "OnDemand"
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        assert world.status().created == 1

    World().run(story)


def test_gap_03_reclaim_policy_reaches_the_instance() -> None:
    async def story(world: World) -> None:
        await world.make_class(reclaim_policy=ReclaimPolicy.RETAIN)
        await world.make_set(min_replicas=1)
        await world.until(lambda: world.instances())
        (machine,) = world.provisioner._machines.values()
        assert machine.spec.profile.retain

    World().run(story)


def test_gap_04_a_template_that_does_not_match_its_selector_is_refused() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        with pytest.raises(Invalid, match=r"must satisfy spec\.selector"):
            await world.make_set(template=Template(metadata=TemplateMetadata(labels={"a": "b"})))

    World().run(story)


def test_gap_04_labels_that_registration_takes_away_are_put_back() -> None:
    labels = {"jumpstarter.dev/board": "qemu"}

    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(labels=labels, min_available_replicas=2, max_replicas=0)
        await world.until(lambda: world.available(2))
        await world.ask("job", labels=labels)
        await world.until(lambda: world.got("job"), seconds=1)
        await world.sleep(30)
        assert world.status().created == 3

    World().run(story)


def test_gap_05_a_boot_that_never_ends_is_given_up_and_replaced() -> None:
    async def story(world: World) -> None:
        world.players.mute = lambda name: name == "qemu-0"
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.available(1), seconds=190)
        assert world.names() == ["qemu-1"]
        (failed,) = await world.events("MemberFailed")
        assert "BootTimeout: not registered within 180 s" in failed.message

    World().run(story)


def test_the_class_says_how_long_a_boot_may_take_and_can_change_its_mind() -> None:
    async def story(world: World) -> None:
        world.players.mute = lambda name: name == "qemu-0"
        await world.make_class(boot_timeout=timedelta(minutes=20))
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.names() == ["qemu-0"], seconds=5)
        (member,) = world.members()
        await world.always(lambda: world.names() == ["qemu-0"], seconds=1100)

        await world.edit_class(boot_timeout=timedelta(minutes=19))
        await world.until(lambda: world.available(1), seconds=60)
        assert world.names() == ["qemu-1"]
        (failed,) = await world.events("MemberFailed")
        assert "BootTimeout: not registered within 1140 s" in failed.message
        (successor,) = world.members()
        assert successor.metadata.labels[REVISION] == member.metadata.labels[REVISION]

    World().run(story)


def test_gap_05_a_member_that_stays_offline_is_replaced() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.sleep(20)
        world.players.mute = lambda name: name == "qemu-0"
        world.players._hang_up((NAMESPACE, "qemu-0"))
        await world.until(lambda: world.status().ready_replicas == 0, seconds=5)
        await world.always(lambda: world.names() == ["qemu-0"], seconds=20)
        await world.until(lambda: world.available(1), seconds=20)
        assert world.names() == ["qemu-1"]

    World().run(story)


def test_gap_05_a_member_that_comes_back_is_kept() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        world.players.mute = lambda name: True
        world.players._hang_up((NAMESPACE, "qemu-0"))
        await world.sleep(10)
        assert world.status().ready_replicas == 0
        world.players.mute = lambda name: False
        world.provisioner._tell((NAMESPACE, "qemu-0"))
        await world.until(lambda: world.available(1), seconds=5)
        await world.always(lambda: world.names() == ["qemu-0"], seconds=60)

    World().run(story)


def test_gap_06_a_reused_member_serves_many_leases_and_is_replaced_when_it_dies() -> None:
    async def story(world: World) -> None:
        await warm(world, 1, recycle_strategy=RecycleStrategy.IN_PLACE_REUSE, max_replicas=1)
        for number in range(3):
            await world.ask(f"job-{number}")
            await world.until(lambda n=number: world.got(f"job-{n}") == "qemu-0")  # type: ignore[misc]
            await world.release(f"job-{number}")
        await world.until(lambda: world.available(1))
        before = world.uids()
        machine = world.provisioner._machines[NAMESPACE, "qemu-0"]
        world.provisioner._exit(machine, ExitReason.RESET_FAILED, "the disk was not empty")
        await world.until(lambda: len(world.uids() - before) == 1, seconds=10)
        (said,) = await world.events("MemberCrashed")
        assert "ResetFailed: the disk was not empty" in said.message

    World().run(story)


def test_changed_labels_and_annotations_reach_members_in_place_and_replace_nobody() -> None:
    async def story(world: World) -> None:
        await warm(world, 2)
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        await world.until(lambda: world.available(2))
        before = world.uids()
        template = TemplateMetadata(labels={**LABELS, "site": "b"}, annotations={"note": "new"})
        await world.edit_set(template=Template(metadata=template))

        def updated() -> bool:
            metas = [member.metadata for member in world.members()]
            return all(
                meta.labels.get("site") == "b" and meta.annotations.get("note") == "new"
                for meta in metas
            )

        await world.until(updated)
        await world.edit_set(template=Template(metadata=TemplateMetadata(labels=LABELS)))
        await world.until(lambda: all("site" not in m.metadata.labels for m in world.members()))
        assert all("note" not in m.metadata.annotations for m in world.members())
        await world.sleep(60)
        assert world.uids() == before
        assert world.condition("Synced").status == "True"

    World().run(story)


def test_slow_removals_in_one_pool_do_not_delay_starts_in_another() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set("slow", min_replicas=40, max_replicas=40)
        await world.until(lambda: world.available(40, "slow"))
        stuck = asyncio.Event()
        remove, asked = world.provisioner.remove, set[str]()

        async def never(key: tuple[str, str]) -> None:
            asked.add(key[1])
            if key[1].startswith("slow"):
                await stuck.wait()
            await remove(key)

        world.provisioner.remove = never  # type: ignore[method-assign]
        await world.remove(ExporterSet, "slow")
        await world.until(lambda: len(asked) >= LANE_MAX)
        await world.make_set("other", min_available_replicas=3)
        await world.until(lambda: world.available(3, "other"), seconds=10)
        assert len(asked) == LANE_MAX
        stuck.set()
        await world.until(lambda: not world.names("slow"), seconds=60)

    World().run(story)


def test_failing_resets_back_off_like_failing_starts_until_one_succeeds() -> None:
    async def story(world: World) -> None:
        await warm(world, 1, recycle_strategy=RecycleStrategy.IN_PLACE_REUSE, max_replicas=1)

        async def serve(job: str, *, clean: bool) -> None:
            await world.ask(job)
            await world.until(lambda: world.got(job), seconds=120)
            machine = world.provisioner._machines[NAMESPACE, world.got(job)]
            await world.release(job)
            if not clean:
                world.provisioner._exit(machine, ExitReason.RESET_FAILED, "files are left")

        began = world.clock.now()
        for number in range(8):
            await serve(f"bad-{number}", clean=False)
            await world.until(lambda: not world.available(1))
        assert world.clock.now() - began > timedelta(seconds=60), "the pauses grow"
        said = "8 resets failed in a row (ResetFailed: files are left)"
        await world.until(lambda: world.condition("Degraded").message == said)
        assert world.reason("Degraded") == "StartStopped"
        await serve("good", clean=True)
        await world.until(lambda: world.condition("SetHealthy").status == "True", seconds=60)
        assert world.reason("Degraded") != "StartStopped"

    World().run(story)


def test_gap_07_failing_to_start_backs_off_stops_and_probes_with_one() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=2, max_replicas=0)
        await world.until(lambda: world.reason("Degraded") == "StartStopped", seconds=60)
        created = world.status().created
        assert created <= 10
        assert "StartFailed: it did not boot" in world.condition("Degraded").message
        assert world.condition("SetHealthy").status == "False"
        await world.sleep(600)
        assert world.status().created - created <= 15, "about one a minute"
        world.provisioner.faults = INSTANT
        await world.until(lambda: world.available(2), seconds=70)
        await world.until(lambda: world.condition("SetHealthy").status == "True", seconds=15)

    World(faults=Faults(start_failed=1.0)).run(story)


def test_gap_07_a_member_that_crashes_as_soon_as_it_is_up_backs_off_too() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.sleep(600)
        assert world.status().created <= 25
        assert world.reason("Degraded") == "StartStopped"

    World(faults=Faults(crashed=1.0, crash_seconds_max=3.0)).run(story)


class Racing(RegistryObjects):
    """Objects in which somebody takes an exporter the moment before it is deleted."""

    raced = 0

    async def delete(self, value: Any) -> None:
        if isinstance(value, Exporter) and not self.raced and value.spec.enabled is False:
            self.raced += 1
            status = replace(value.status, lease_epoch=1)
            await self.update_status(replace(value, status=status))
        await super().delete(value)


def test_gap_08_what_was_taken_between_the_look_and_the_deletion_is_not_deleted() -> None:
    async def story(world: World) -> None:
        racing = Racing(world.registry, manager="bullpen")
        world.objects = racing
        async with world.service():
            await warm(world, 1)
            before = world.status().decisions
            await world.edit_set(min_available_replicas=0, scale_down_cooldown=timedelta(0))
            await world.until(lambda: racing.raced)
            await world.until(lambda: not world.names(), seconds=5)
            done = [d.action for d in world.status().decisions[len(before) :]]
            assert done == ["Drain", "Delete"], "the deletion that was refused is not in the ledger"

    World().run_without_service(story)


def test_gap_08_scale_down_disables_then_confirms_then_deletes() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        seen: list[tuple[bool, bool]] = []
        world.views.exporters.listen(
            lambda old, new: seen.append((new.spec.enabled, _deleting(new))) if new else None
        )
        await world.edit_set(min_available_replicas=0, scale_down_cooldown=SECOND)
        await world.until(lambda: not world.names(), seconds=10)
        assert list(dict.fromkeys(seen)) == [(False, False), (False, True)]

    World().run(story)


def test_gap_08_a_drained_member_that_a_lease_has_serves_it_to_the_end() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        (member,) = world.members()
        await world.ask("job")
        await world.until(lambda: world.got("job") == member.metadata.name)
        (leased,) = [e for e in world.members() if e.metadata.name == member.metadata.name]
        await world.objects.update(replace(leased, spec=ExporterSpec(enabled=False)))
        await world.always(lambda: member.metadata.name in world.instances(), seconds=600)
        await world.release("job")
        await world.until(lambda: member.metadata.name not in world.instances(), seconds=5)

    World().run(story)


def test_gap_09_leases_stay_readable_after_their_member_is_gone() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        await world.release("job")
        await world.until(lambda: world.got("job") not in world.names())
        await world.sleep(60)
        assert world.lease("job").status.ended
        assert world.got("job") == "qemu-0"

    World().run(story)


def test_gap_10_a_class_edit_rolls_out_to_idle_members_one_by_one() -> None:
    async def story(world: World) -> None:
        await warm(world, 3)
        await world.ask("job")
        await world.until(lambda: world.got("job") and world.available(3))
        old = world.uids() - {world.held("job")}
        lowest = 3
        await world.edit_class(reclaim_policy=ReclaimPolicy.RETAIN)

        def rolled_out() -> bool:
            nonlocal lowest
            lowest = min(lowest, world.status().available_replicas)
            return not old & world.uids()

        await world.until(rolled_out, seconds=60)
        await world.until(lambda: world.available(3))
        assert lowest >= 2
        assert world.got("job") in world.names(), "a leased member is left alone"
        assert all(m.spec.profile.retain for k, m in _machines(world) if k != world.got("job"))

    World().run(story)


def test_gap_10_a_rotated_token_replaces_the_member_that_has_the_old_one() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.remove(Secret, "qemu-0-exporter")
        await world.until(lambda: world.names() == ["qemu-1"], seconds=10)

    World().run(story)


def test_gap_11_wrong_parameters_are_a_condition_that_names_the_path() -> None:
    async def story(world: World) -> None:
        await world.make_class(parameters={"speed": 9})
        await world.make_set(min_available_replicas=2, parameters={"color": "red"})
        await world.until(lambda: world.status().conditions)
        await world.always(lambda: not world.names(), seconds=30)
        said = world.condition("Degraded")
        assert said.reason == "InvalidParameters"
        assert "spec.parameters.color: Forbidden" in said.message
        assert "VirtualTargetClass fake: spec.parameters.speed: Forbidden" in said.message
        await world.edit_class(parameters={})
        await world.edit_set(parameters={})
        await world.until(lambda: world.available(2))
        assert world.condition("Degraded").status == "False"

    World().run(story)


def test_gap_15_scaling_moves_the_ceiling_at_once() -> None:
    async def story(world: World) -> None:
        await warm(world, 4)
        await world.edit_set(max_replicas=2, min_available_replicas=2)
        await world.until(lambda: len(world.names()) == 2, seconds=5)
        (event,) = [e for e in await world.events("ScaleDown") if "AboveCeiling" in e.message]
        assert "the ceiling is 2" in event.message

    World().run(story)


def test_gap_16_a_burst_is_served_in_one_step_up_to_the_room_there_is() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=4)
        for number in range(6):
            await world.ask(f"job-{number}")
        await world.until(lambda: world.status().leased_replicas == 4, seconds=6)
        ups = [d.count for d in world.status().decisions if d.action == "Create"]
        assert sum(ups) == 4

    World().run(story)


def test_gap_16_leases_a_pool_cannot_serve_do_not_grow_it() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set()
        denied = ExporterAccessPolicySpec(
            exporter_selector=LabelSelector(),
            policies=(
                Policy(from_=(From(client_selector=LabelSelector(match_labels={"team": "b"})),)),
            ),
        )
        policy = ExporterAccessPolicy(
            metadata=ObjectMeta(name="p", namespace=NAMESPACE), spec=denied
        )
        await world.objects.create(policy)
        await world.ask("denied")
        await world.ask("pinned", labels={}, exporter_ref=LocalObjectReference(name="qemu-0"))
        await world.ask("other", labels={"board": "rpi4"})
        await world.always(lambda: not world.names(), seconds=10)
        assert world.lease("denied").status.ended

    World().run(story)


def test_gap_16_a_booked_lease_finds_its_target_warm_when_it_begins() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set()
        begin = world.clock.now() + timedelta(minutes=10)
        await world.ask("booked", begin_time=begin)
        await world.always(lambda: not world.names(), seconds=570)
        await world.until(lambda: world.available(1), seconds=25)
        assert world.clock.now() < begin
        await world.until(lambda: world.got("booked"), seconds=25)
        assert (world.lease("booked").status.begin_time or begin) - begin < SECOND
        assert world.status().created == 1

    World().run(story)


def test_gap_17_the_ceiling_is_said_when_leases_wait_for_a_release() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=1)
        await world.ask("first")
        await world.until(lambda: world.got("first"))
        await world.ask("second")
        await world.until(lambda: world.condition("ScalingLimited").status == "True", seconds=2)
        await world.until(lambda: "waiting for a release" in world.waits("second"), seconds=2)
        await world.release("first")
        await world.until(lambda: world.got("second"), seconds=10)
        await world.until(lambda: world.condition("ScalingLimited").status == "False", seconds=2)

    World().run(story)


def test_gap_17_sets_that_share_labels_count_their_own_members_only() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set("a", min_replicas=1)
        await world.make_set("b", min_replicas=2)
        await world.until(lambda: world.available(1, "a") and world.available(2, "b"))
        assert world.status("a").pods_running == 1
        assert world.status("b").pods_running == 2
        await world.objects.create(
            Exporter(metadata=ObjectMeta(name="shelf", namespace=NAMESPACE, labels=LABELS))
        )
        await world.sleep(10)
        assert world.status("a").replicas == 1, "an exporter nobody made is nobody's"

    World().run(story)


def test_gap_18_deleting_the_set_removes_every_instance() -> None:
    async def story(world: World) -> None:
        await warm(world, 3)
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: not world.names() and not world.instances(), seconds=10)

    World(faults=Faults(stop_seconds=(1.0, 2.0))).run(story)


def test_gap_18_deleting_set_and_class_together_removes_every_instance() -> None:
    async def story(world: World) -> None:
        await warm(world, 3)
        await world.remove(VirtualTargetClass, "fake")
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: not world.names() and not world.instances(), seconds=10)

    World().run(story)


def test_gap_20_the_whole_surplus_goes_after_one_cooldown() -> None:
    async def story(world: World) -> None:
        await warm(world, 4, scale_down_cooldown=timedelta(minutes=5))
        await world.edit_set(min_available_replicas=1)
        await world.always(lambda: len(world.names()) == 4, seconds=290)
        await world.until(lambda: len(world.names()) == 1, seconds=15)

    World().run(story)


# Sharing


def test_one_lease_never_grows_two_pools() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set("a")
        await world.make_set("b")
        for number in range(3):
            await world.ask(f"job-{number}")
        await world.until(lambda: all(world.got(f"job-{n}") for n in range(3)))
        assert world.status("a").created + world.status("b").created == 3

    World().run(story)


def test_a_pool_that_cannot_start_leaves_its_leases_to_another() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_class("broken", parameters={"no": "such"})
        await world.make_set("a", virtual_target_class_name="broken")
        await world.make_set("b")
        await world.ask("job")
        await world.until(lambda: world.got("job").startswith("b-"), seconds=10)

    World().run(story)


def test_a_free_board_on_the_shelf_is_taken_before_a_pool_grows() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set()
        shelf = Exporter(metadata=ObjectMeta(name="shelf", namespace=NAMESPACE, labels=LABELS))
        board = await world.objects.create(shelf)
        await world.players._register(board)
        world.connections.opened((NAMESPACE, "shelf"))
        world.lab.presence_changed((NAMESPACE, "shelf"))
        await world.sleep(1)
        await world.ask("job")
        await world.until(lambda: world.got("job") == "shelf", seconds=2)
        await world.sleep(5)
        assert world.status().created == 0

    World().run(story)


# Failures by class


def test_a_member_killed_while_idle_is_replaced() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.sleep(30)
        world.provisioner.crash((NAMESPACE, "qemu-0"))
        await world.until(lambda: world.names() == ["qemu-1"] and world.available(1), seconds=6)
        assert world.condition("Degraded").status == "False", "one crash is no trend"

    World().run(story)


def test_a_member_killed_while_leased_ends_the_lease_and_is_replaced() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        world.provisioner.crash((NAMESPACE, world.got("job")))
        await world.until(lambda: world.lease("job").status.ended, seconds=5)
        found = conditions.get(world.lease("job").status.conditions, "Ready")
        assert found is not None
        assert found.reason == "ExporterRemoved"
        await world.until(lambda: world.available(1) and len(world.names()) == 1)

    World().run(story)


def test_without_capacity_the_pool_holds_and_goes_on_when_there_is_room() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=0)
        for number in range(4):
            await world.ask(f"job-{number}")
        await world.until(lambda: world.status().leased_replicas == 2, seconds=6)
        held = [n for n in range(4) if not world.got(f"job-{n}")]
        await world.until(lambda: world.reason("Degraded") == "NoCapacity", seconds=2)
        await world.until(lambda: "2 of at most 2 instances" in world.waits(f"job-{held[0]}"))
        await world.sleep(300)
        assert world.status().created == 3, "one is held, and it holds instead of churning"
        served = next(n for n in range(4) if n not in held)
        await world.release(f"job-{served}")
        await world.until(lambda: world.got(f"job-{held[0]}") or world.got(f"job-{held[1]}"))

    World(instances_max=2).run(story)


def test_a_backend_that_does_not_answer_is_waited_for() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        world.provisioner.faults = Faults(unreachable=1.0)
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.names())
        await world.until(lambda: world.reason("Degraded") == "Unreachable", seconds=5)
        await world.sleep(600)
        assert world.names() == ["qemu-0"]
        world.provisioner.faults = INSTANT
        await world.until(lambda: world.available(1), seconds=10)

    World().run(story)


def test_a_class_that_is_missing_is_said_and_nothing_churns() -> None:
    async def story(world: World) -> None:
        await world.make_set(min_available_replicas=2)
        await world.until(lambda: world.status().conditions)
        assert world.reason("Available") == "VirtualTargetClassNotFound"
        assert "spec.virtualTargetClassName" in world.condition("Available").message
        await world.ask("job")
        await world.until(lambda: "VirtualTargetClass fake does not exist" in world.waits("job"))
        await world.make_class()
        await world.until(lambda: world.got("job") and world.available(2))

    World().run(story)


def test_a_class_that_goes_leaves_what_runs_alone() -> None:
    async def story(world: World) -> None:
        await warm(world, 2)
        await world.remove(VirtualTargetClass, "fake")
        await world.until(lambda: world.reason("Degraded") == "VirtualTargetClassNotFound")
        await world.always(lambda: world.available(2), seconds=60)
        await world.make_class()
        await world.until(lambda: world.condition("Degraded").status == "False")
        assert world.names() == ["qemu-0", "qemu-1"], "the same class again is no new revision"

    World().run(story)


def test_a_class_of_another_provisioner_is_said() -> None:
    async def story(world: World) -> None:
        await world.make_class(provisioner="mars.jumpstarter.dev")
        await world.make_set(min_replicas=1)
        await world.until(lambda: world.status().conditions)
        said = world.condition("Degraded")
        assert said.reason == "ProvisionerNotFound"
        assert "spec.provisioner: mars.jumpstarter.dev is not available" in said.message
        assert not world.names()

    World().run(story)


def test_two_drivers_of_one_name_never_reach_a_member() -> None:
    twice = TemplateSpec(drivers=(Driver(name="a", type="x.Y"), Driver(name="a", type="x.Z")))
    template = Template(metadata=TemplateMetadata(labels=LABELS), spec=twice)

    async def story(world: World) -> None:
        await world.make_class()
        with suppress(Invalid):
            await world.make_set(min_replicas=1, template=template)
            await world.until(lambda: world.status().conditions)
            assert "several drivers are named a" in world.condition("Degraded").message
        assert not world.names()

    World().run(story)


def test_a_name_that_somebody_else_has_is_left_to_them() -> None:
    async def story(world: World) -> None:
        theirs = Exporter(metadata=ObjectMeta(name="qemu-0", namespace=NAMESPACE))
        await world.objects.create(theirs)
        await warm(world, 1)
        assert world.names() == ["qemu-1"]

    World().run(story)


# Restarts and leftovers


def test_a_restart_of_the_service_drops_no_lease_and_no_member() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await warm(world, 2)
            await world.ask("job")
            await world.until(lambda: world.got("job") and world.available(2))
            before = world.names()
        await world.sleep(5)
        async with world.service():
            await world.always(lambda: world.names() == before, seconds=120)
            assert not world.lease("job").status.ended
            assert world.available(2)

    World().run_without_service(story)


def test_what_exited_while_the_service_was_away_is_replaced() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await warm(world, 2)
        world.provisioner.crash((NAMESPACE, "qemu-0"))
        async with world.service():
            await world.until(
                lambda: world.available(2) and world.names() == ["qemu-1", "qemu-2"], seconds=10
            )

    World().run_without_service(story)


def test_instances_nobody_owns_are_removed_at_the_start() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await warm(world, 2)
        for member in world.members():
            bare = replace(member, metadata=replace(member.metadata, finalizers=()))
            await world.objects.update(bare)
            with suppress(NotFound):
                newest = await world.objects.get(Exporter, NAMESPACE, member.metadata.name)
                await world.objects.delete(newest)
        async with world.service():
            await world.until(lambda: world.instances() == ["qemu-2", "qemu-3"], seconds=10)

    World().run_without_service(story)


def test_a_member_that_is_deleted_by_hand_is_replaced() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.remove(Exporter, "qemu-0")
        await world.until(lambda: world.instances() == ["qemu-1"] and world.available(1))

    World().run(story)


def test_a_deleted_exporter_does_not_wait_for_ever_for_a_dead_backend() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        world.provisioner.faults = Faults(unreachable=1.0)
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: not world.names(), seconds=700)
        assert await world.events("InstanceLeft")
        assert world.instances() == ["qemu-0"]
        world.provisioner.faults = INSTANT
        await world.until(lambda: not world.instances(), seconds=120, what="the sweep")

    World().run(story)


def test_leases_that_wait_for_a_set_that_is_deleted_are_refused() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set()
        await world.ask("job")
        await world.until(lambda: world.waits("job"))
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: world.lease("job").status.ended, seconds=5)

    World(faults=Faults(boot_seconds=(300, 300))).run(story)


# Quiet and discreet


def test_a_pool_at_rest_writes_nothing() -> None:
    async def story(world: World) -> None:
        await warm(world, 2)
        await world.sleep(120)
        before = world.registry.store.revision
        await world.sleep(3600)
        assert world.registry.store.revision == before or await _only_events(world, before)

    World().run(story)


async def _only_events(world: World, before: int) -> bool:
    """Old events are swept; nothing else may have moved."""
    kinds: tuple[type[Any], ...] = (Exporter, ExporterSet, Lease, Secret)
    for kind in kinds:
        for value in (await world.objects.list(kind)).items:
            if int(value.metadata.resource_version) > before:
                return False
    return True


def test_credentials_reach_the_instance_and_nothing_else() -> None:
    password = "hunter2-hunter2"

    async def story(world: World) -> None:
        vault = Secret(
            metadata=ObjectMeta(name="vault", namespace=NAMESPACE),
            data={"password": base64.b64encode(password.encode()).decode()},
        )
        await world.make_class(credentials_secret_ref=LocalObjectReference(name="vault"))
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.status().conditions)
        assert world.reason("Degraded") == "SecretNotFound"
        await world.objects.create(vault)
        await world.until(lambda: world.available(1))
        ((_, machine),) = _machines(world)
        assert machine.spec.credentials == {"password": password.encode()}
        assert password not in repr(machine.spec)
        secret = machine.spec.connection.token
        for told in (*await world.events(), *world.members(), *world.views.sets.all()):
            assert password not in repr(told)
            assert secret not in repr(told)

    World().run(story)


def test_every_act_is_in_the_ledger_with_its_rule_and_numbers() -> None:
    async def story(world: World) -> None:
        await warm(world, 1)
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        await world.release("job")
        await world.until(lambda: world.got("job") not in world.names())
        await world.until(lambda: len(world.status().decisions) == 3)
        rules = [(d.action, d.rule) for d in world.status().decisions]
        assert rules == [
            ("Create", "MinAvailable"),
            ("Create", "MinAvailable"),
            ("Delete", "Spent"),
        ]
        assert "1 leased, 0 waiting, 0 idle" in world.status().decisions[1].message

    World().run(story)


# Anything can happen


def checks(world: World, served: dict[str, str]) -> Iterator[str]:
    """What must hold at every moment, named; ``served`` is whom each member had so far."""
    for found in world.views.sets.all():
        ceiling, count = found.spec.max_replicas, len(world.names(found.metadata.name))
        if ceiling and count > ceiling:
            yield f"{found.metadata.name} has {count} members, the ceiling is {ceiling}"
    for exporter in world.views.exporters.all():
        lease, name = exporter.status.lease_uid, exporter.metadata.name
        if lease and served.setdefault(exporter.metadata.uid, lease) != lease:
            yield f"{name} served {served[exporter.metadata.uid]} and {lease}"


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_goes_wrong_the_promises_hold_and_in_the_end_all_is_well(seed: int) -> None:
    chaos = Faults(
        unreachable=0.05,
        start_failed=0.15,
        crashed=0.2,
        boot_seconds=(0.5, 5.0),
        stop_seconds=(0.0, 2.0),
        crash_seconds_max=120,
    )

    async def story(world: World) -> None:
        await world.make_class()
        cooldown = timedelta(seconds=20)
        await world.make_set("a", max_replicas=5, scale_down_cooldown=cooldown)
        await world.make_set(
            "b", max_replicas=3, min_available_replicas=1, scale_down_cooldown=cooldown
        )
        broken: list[str] = []
        served: dict[str, str] = {}
        watch = lambda old, new: broken.extend(checks(world, served))  # noqa: E731
        world.views.exporters.listen(watch)
        world.views.leases.listen(watch)
        for number in range(25):
            await world.ask(f"job-{number}", duration=timedelta(minutes=2))
            await world.sleep(world.chance.uniform(0, 8))
            if number % 3 == 0:
                await world.release(f"job-{world.chance.randrange(number + 1)}")
        await world.sleep(60)
        assert not broken, broken[0]
        world.provisioner.faults = BOOT
        for number in range(25):
            await world.release(f"job-{number}")
        await world.until(
            lambda: not world.names("a") and world.available(1, "b"), seconds=300, what="rest"
        )
        await world.until(lambda: world.instances() == world.names("b"), seconds=120)
        assert not broken, broken[0]
        assert not world.provisioner._machines.keys() - {(NAMESPACE, n) for n in world.names("b")}

    World(seed=seed, faults=chaos).run(story)


def _machines(world: World) -> list[tuple[str, Any]]:
    return [(key[1], machine) for key, machine in sorted(world.provisioner._machines.items())]


def _deleting(exporter: Exporter) -> bool:
    return exporter.metadata.deletion_timestamp is not None
