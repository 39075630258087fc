"""What listings of a provider's machines mean."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.core.targets import backends
from bullpen.core.targets.backends import (
    LOST_AFTER,
    RENEW_BEFORE,
    SETTLE_MAX,
    BackendLimits,
    Inventory,
    Listing,
    Machine,
    MachineState,
    Quota,
)
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.kit.clock import EPOCH

SECOND = timedelta(seconds=1)
BEGUN = timedelta(hours=1)
NOTHING = Inventory(machines=())


def machine(name: str = "a", uid: str = "uid-1", *, number: int = 1, **more: object) -> Machine:
    made = Machine(
        id=f"m-{number}",
        key=("lab", name),
        owner_uid=uid,
        state=MachineState.RUNNING,
        created=EPOCH + number * SECOND,
        hourly_cost=2.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def exporter(uid: str = "uid-1") -> Instance:
    return Instance(key=("lab", "a"), owner_uid=uid, provisioner="p", phase=InstancePhase.RUNNING)


def seen(found: Machine, own: Instance | None, *, silent_for: timedelta = timedelta(0)) -> Instance:
    return backends.instance(found, own, provisioner="p", known=True, silent_for=silent_for)


def test_a_machine_that_has_ended_for_good_is_gone_at_once() -> None:
    known = backends.put(Listing(begun=BEGUN), machine())
    ended = Inventory(machines=(), gone=frozenset({machine().id}))
    assert backends.listed(known, ended, begun=BEGUN + SECOND).machines == ()


def test_a_machine_that_listings_lack_counts_as_existing_for_a_while() -> None:
    known = backends.put(Listing(begun=BEGUN), machine())
    first = backends.listed(known, NOTHING, begun=BEGUN + SECOND)
    assert first.machines == (machine(),)
    assert first.empty_since is None
    later = backends.listed(first, NOTHING, begun=BEGUN + SETTLE_MAX)
    assert later.machines == (machine(),)
    last = backends.listed(later, NOTHING, begun=BEGUN + SETTLE_MAX + SECOND)
    assert last.machines == ()

    back = backends.listed(
        later, Inventory(machines=(machine(),)), begun=BEGUN + SETTLE_MAX + SECOND
    )
    assert back.missing == {}, "once it is shown again, it is not missing"


def test_a_deleted_machine_is_gone_with_the_first_listing_that_lacks_it() -> None:
    ending = machine(state=MachineState.ENDING)
    known = backends.put(Listing(begun=BEGUN), ending)

    shown = backends.listed(known, Inventory(machines=(machine(),)), begun=BEGUN + SECOND)
    assert [each.state for each in shown.machines] == [MachineState.ENDING]
    assert backends.listed(known, NOTHING, begun=BEGUN + SECOND).machines == ()


def test_a_backend_holds_nothing_only_after_empty_listings_for_a_while() -> None:
    assert not backends.holds_nothing(Listing())
    empty = backends.listed(Listing(), NOTHING, begun=BEGUN)
    assert not backends.holds_nothing(empty)
    empty = backends.listed(empty, NOTHING, begun=BEGUN + SETTLE_MAX)
    assert backends.holds_nothing(empty)
    assert not backends.holds_nothing(backends.touched(empty))
    quiet = backends.silent(empty, "no answer", now=BEGUN + 2 * SETTLE_MAX)
    assert backends.holds_nothing(quiet), "silence is no news"


def test_silence_is_counted_from_the_first_call_without_an_answer() -> None:
    first = backends.silent(Listing(begun=BEGUN), "no", now=BEGUN + SECOND)
    second = backends.silent(first, "still no", now=BEGUN + 2 * SECOND)
    assert (second.silent_since, second.error) == (BEGUN + SECOND, "still no")
    assert backends.listed(second, NOTHING, begun=BEGUN + 3 * SECOND).silent_since is None


def test_the_oldest_machine_of_an_exporter_is_kept() -> None:
    old, new = machine(number=1), machine(number=2)
    other = machine("b", number=3)
    assert backends.surplus((new, old, other), {}) == (new,)
    assert backends.surplus((replace(old, state=MachineState.ENDING), new), {}) == ()


def test_machines_of_an_earlier_exporter_of_the_name_are_left_over() -> None:
    old, new = machine(uid="uid-1", number=1), machine(uid="uid-2", number=2)
    assert backends.surplus((old, new), {}) == ()
    assert backends.surplus((old, new), {("lab", "a"): "uid-2"}) == (old,)


@pytest.mark.parametrize(
    ("limits", "creating", "said"),
    [
        (BackendLimits(), 100, ""),
        (BackendLimits(instances=2), 0, ""),
        (BackendLimits(instances=2), 1, "2 of at most 2 instances exist (limits.maxInstances)"),
        (BackendLimits(hourly_cost=4.0), 0, ""),
        (BackendLimits(hourly_cost=4.0), 1, "another instance would cost 6.00 an hour"),
    ],
)
def test_limits_count_what_exists_and_what_is_being_created(
    limits: BackendLimits, creating: int, said: str
) -> None:
    found = backends.put(Listing(), machine())
    answer = backends.no_room(found, limits, creating=creating, hourly_cost=2.0)
    assert answer.startswith(said) if said else answer == ""


def test_a_used_up_quota_of_the_provider_is_not_tried() -> None:
    found = backends.listed(
        Listing(),
        Inventory(machines=(), quota=Quota(instances=5, used=4)),
        begun=BEGUN,
    )
    assert backends.no_room(found, BackendLimits(), creating=0, hourly_cost=0) == ""
    said = "4 of the 5 instances of the provider's quota are used"
    assert backends.no_room(found, BackendLimits(), creating=1, hourly_cost=0) == said


def test_a_machine_is_expired_when_it_is_as_old_as_the_limit() -> None:
    found = backends.put(Listing(), machine(created=EPOCH))
    limits, hours = BackendLimits(hours=2), timedelta(hours=2)
    assert backends.expired(found, BackendLimits(), used=(), now=EPOCH + 100 * hours) == ()
    assert backends.expired(found, limits, used=(), now=EPOCH + hours - SECOND) == ()
    assert backends.expired(found, limits, used=(), now=EPOCH + hours) == found.machines


def test_while_its_exporter_runs_a_target_is_not_lost_with_its_backend() -> None:
    booting = machine(state=MachineState.STARTING)
    assert seen(booting, None, silent_for=LOST_AFTER - SECOND).up
    assert seen(booting, None, silent_for=LOST_AFTER).reason is ExitReason.LOST
    assert seen(machine(), exporter(), silent_for=2 * LOST_AFTER).phase is InstancePhase.RUNNING


def test_the_reason_of_an_exporters_end_is_that_of_the_instance() -> None:
    ended = replace(
        exporter(), phase=InstancePhase.EXITED, reason=ExitReason.COMPLETED, detail="done"
    )
    found = seen(machine(state=MachineState.ENDING), ended)
    assert (found.reason, found.detail) == (ExitReason.COMPLETED, "done")


def test_an_exporter_of_another_owner_says_nothing_about_a_machine() -> None:
    assert seen(machine(), exporter("uid-2")).phase is InstancePhase.BOOTING


def test_an_exporter_without_a_machine_is_lost_only_if_that_is_confirmed() -> None:
    assert backends.without_machine(exporter(), confirmed=False) == exporter()
    lost = backends.without_machine(exporter(), confirmed=True)
    assert (lost.reason, lost.detail) == (ExitReason.LOST, "its machine is gone")


def test_a_token_of_a_creation_depends_on_lab_exporter_and_uid() -> None:
    tokens = {
        backends.client_token(lab, ("ns", name), uid)
        for lab in ("l", "m")
        for name in ("a", "b")
        for uid in ("1", "2")
    }
    assert len(tokens) == 8
    assert {len(token) for token in tokens} == {64}, "the most that EC2 takes"


def test_an_instance_has_the_providers_id_and_the_address_of_its_machine() -> None:
    found = machine(address="198.51.100.7")
    made = backends.instance(found, None, provisioner="p", known=True, silent_for=timedelta(0))
    assert (made.provider_id, made.addresses) == (found.id, ("198.51.100.7",))


def test_a_machine_past_its_end_is_expired_unless_an_exporter_stands_for_it() -> None:
    found = Listing(machines=(machine(expires=EPOCH),))
    limits = BackendLimits()
    assert backends.expired(found, limits, used=(), now=EPOCH - SECOND) == ()
    assert backends.expired(found, limits, used=(), now=EPOCH) == found.machines
    assert backends.expired(found, limits, used=("m-1",), now=EPOCH) == (), "the clock was set"
    ending = Listing(machines=(machine(expires=EPOCH, state=MachineState.ENDING),))
    assert backends.expired(ending, limits, used=(), now=EPOCH) == ()


def test_only_machines_in_use_whose_end_is_near_are_renewed() -> None:
    near, far = EPOCH + RENEW_BEFORE - SECOND, EPOCH + RENEW_BEFORE
    found = Listing(
        machines=(
            machine("a", number=1, expires=near),
            machine("b", number=2, expires=far),
            machine("c", number=3, expires=near, state=MachineState.ENDING),
            machine("d", number=4),
            machine("e", number=5, expires=near),
            machine("f", number=6, expires=EPOCH - SECOND, state=MachineState.STARTING),
        )
    )
    used = {"m-1", "m-2", "m-3", "m-4", "m-6"}
    due = backends.due_for_renewal(found, used=used, now=EPOCH)
    assert [each.id for each in due] == ["m-1", "m-6"]


@pytest.mark.parametrize(
    ("more", "placed", "phase", "reason"),
    [
        ({}, True, InstancePhase.EXITED, ExitReason.LOST),
        ({}, False, InstancePhase.EXITED, ExitReason.LOST),
        ({"lasting": True}, True, InstancePhase.EXITED, ExitReason.LOST),
        (
            {"lasting": True, "shut_down": True},
            True,
            InstancePhase.EXITED,
            ExitReason.COMPLETED,
        ),
        ({"lasting": True}, False, InstancePhase.STOPPED, None),
        ({"switchable": True}, True, InstancePhase.RUNNING, None),
        ({"switchable": True}, False, InstancePhase.EXITED, ExitReason.LOST),
        ({"switchable": True, "lasting": True}, False, InstancePhase.STOPPED, None),
    ],
)
@pytest.mark.parametrize("state", [MachineState.STOPPING, MachineState.STOPPED])
def test_what_a_stopped_machine_means_depends_on_who_keeps_or_switches_it(
    state: MachineState,
    more: dict[str, Any],
    placed: bool,
    phase: InstancePhase,
    reason: ExitReason | None,
) -> None:
    made = seen(machine(state=state, **more), exporter() if placed else None)
    assert (made.phase, made.reason) == (phase, reason)


def test_a_stopped_machine_ends_with_its_time_unless_it_is_kept_and_is_renewed_if_switchable() -> (
    None
):
    stopped = machine(state=MachineState.STOPPED, expires=EPOCH, created=EPOCH - timedelta(days=9))
    kept = replace(stopped, id="kept", lasting=True)
    off = replace(stopped, id="off", switchable=True)
    listing = Listing(machines=(stopped, kept, off))
    limits = BackendLimits(hours=24)
    assert backends.expired(listing, BackendLimits(), used=(), now=EPOCH) == (stopped, off)
    assert backends.expired(listing, limits, used=("off", "kept", "m-1"), now=EPOCH) == (
        stopped,
        off,
    )
    used = {each.id for each in listing.machines}
    assert backends.due_for_renewal(listing, used=used, now=EPOCH) == (off,)
