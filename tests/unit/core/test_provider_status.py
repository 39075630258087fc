"""What the status of a ProviderConfig says, and when its backend is listed again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.providerconfig import (
    ProviderConfig,
    ProviderConfigSpec,
    ProviderConfigStatus,
    ProviderLimits,
)
from bullpen.api.meta import ObjectMeta
from bullpen.core.conditions import get
from bullpen.core.targets import backends, provider_status
from bullpen.core.targets.backends import (
    BackendLimits,
    HostLoad,
    HostState,
    Inventory,
    Listing,
    Machine,
    MachineState,
    Quota,
)
from bullpen.core.targets.provider_status import POLL, POLL_BUSY, RECORD, ProviderView
from bullpen.kit.clock import EPOCH

LISTED = Listing(begun=timedelta(hours=1))


def machine(state: MachineState) -> Machine:
    return Machine(
        id="m", key=("lab", "a"), owner_uid="u", state=state, created=EPOCH, hourly_cost=0.125
    )


def status(listing: Listing, *finalizers: str) -> ProviderConfigStatus:
    config = ProviderConfig(
        metadata=ObjectMeta(name="east", namespace="lab", generation=3, finalizers=finalizers),
        spec=ProviderConfigSpec(provisioner="p"),
    )
    seen = ProviderView(config=config, listing=listing)
    return provider_status.status(seen, now=EPOCH)


def test_a_backend_that_answers_is_reachable() -> None:
    found = status(backends.put(LISTED, machine(MachineState.RUNNING)), RECORD)
    assert (found.instances, found.hourly_cost, found.observed_generation) == (1, "0.12", 3)
    reachable, used = (get(found.conditions, name) for name in ("Reachable", "InUse"))
    assert reachable is not None
    assert (reachable.status, reachable.reason) == ("True", "Listed")
    assert used is not None
    assert (used.status, used.reason) == ("True", "MayHoldInstances")
    assert used.message == "instances: 1; the object is kept until there are none"


def test_machines_without_their_exporter_are_orphans() -> None:
    listing = backends.put(LISTED, machine(MachineState.RUNNING))
    config = ProviderConfig(spec=ProviderConfigSpec(provisioner="p"))
    for owners, count in (({}, 1), ({("lab", "a"): "other"}, 1), ({("lab", "a"): "u"}, 0)):
        seen = ProviderView(config=config, listing=listing, owners=owners)
        assert provider_status.status(seen, now=EPOCH).orphans == count


def test_the_quota_of_the_provider_is_shown() -> None:
    inventory = Inventory(machines=(), quota=Quota(instances=8, used=3))
    found = status(backends.listed(Listing(), inventory, begun=timedelta(0)))
    assert found.quota is not None
    assert (found.quota.instances, found.quota.used) == (8, 3)
    assert status(LISTED).quota is None


def test_the_load_of_a_host_is_reported_in_steps_and_does_not_flutter() -> None:
    """Each report is a write, and a write is a reason to look again."""
    reported: list[tuple[int | None, int | None]] = []
    config = ProviderConfig(spec=ProviderConfigSpec(provisioner="p"))
    for cpu, memory in ((34, 57), (35, 61), (44, 55), (45, 70), (38, 69), (230, 71)):
        host = HostState(
            name="one", address="a", slots=1, used=0, drain=False, answers=True, error="",
            load=HostLoad(cpu=cpu, memory=memory),
        )  # fmt: skip
        seen = ProviderView(config=config, listing=replace(LISTED, hosts=(host,)))
        config = replace(config, status=provider_status.status(seen, now=EPOCH))
        (shown,) = config.status.hosts
        reported.append((shown.cpu_percent, shown.memory_percent))
    assert reported == [(30, 60), (30, 60), (40, 60), (40, 70), (40, 70), (230, 70)]
    silent = replace(host, load=None)
    seen = ProviderView(config=config, listing=replace(LISTED, hosts=(silent,)))
    (shown,) = provider_status.status(seen, now=EPOCH).hosts
    assert (shown.cpu_percent, shown.memory_percent) == (None, None)


def test_one_that_does_not_answer_says_why() -> None:
    found = status(backends.silent(LISTED, "no route", now=timedelta(hours=2)))
    reachable = get(found.conditions, "Reachable")
    assert reachable is not None
    assert (reachable.status, reachable.reason) == ("False", "NotAnswering")
    assert (reachable.message, found.last_error) == ("no route", "no route")


def test_nothing_is_said_about_cost_before_the_first_listing() -> None:
    found = status(Listing())
    reachable = get(found.conditions, "Reachable")
    assert reachable is not None
    assert (reachable.status, reachable.reason) == ("False", "NotListedYet")
    assert found.hourly_cost == ""


def test_a_backend_is_listed_more_often_while_a_machine_starts_or_ends() -> None:
    assert provider_status.next_listing(LISTED) == POLL
    for state, expected in (
        (MachineState.RUNNING, POLL),
        (MachineState.STARTING, POLL_BUSY),
        (MachineState.ENDING, POLL_BUSY),
    ):
        listing = backends.put(LISTED, machine(state))
        assert provider_status.next_listing(listing) == expected


def test_the_record_is_a_finalizer_beside_those_of_others() -> None:
    meta = ObjectMeta(name="east", finalizers=("example.com/other",))
    kept = provider_status.recorded(meta, kept=True)
    assert kept.finalizers == ("example.com/other", RECORD)
    assert provider_status.recorded(kept, kept=True) is kept
    assert provider_status.recorded(kept, kept=False) == meta


def test_limits_of_the_object_are_those_of_the_backend() -> None:
    given = ProviderLimits(max_instances=3, max_hours=8, max_hourly_cost="12.50")
    assert provider_status.limits(given) == BackendLimits(instances=3, hours=8, hourly_cost=12.5)
    assert provider_status.limits(ProviderLimits()) == BackendLimits()


def test_the_settings_on_record_are_in_effect_until_the_record_is_erased() -> None:
    spec = ProviderConfigSpec(provisioner="a", endpoint="https://x", parameters={"region": "one"})
    before = ProviderConfig(metadata=ObjectMeta(name="east"), spec=spec)
    place = provider_status.place_of(spec)
    kept = provider_status.recorded(before.metadata, kept=True, place=place)
    moved = replace(spec, parameters={"region": "two"}, limits=ProviderLimits(max_instances=3))
    config = ProviderConfig(metadata=kept, spec=moved)
    assert provider_status.in_effect(config) == replace(moved, parameters={"region": "one"})
    assert provider_status.pending(config) == ("parameters",)
    assert provider_status.pending(replace(config, spec=spec)) == ()
    erased = provider_status.recorded(kept, kept=False)
    assert erased == before.metadata
    assert provider_status.in_effect(replace(config, metadata=erased)) == moved


@pytest.mark.parametrize("text", ["", "{", "[]", '{"provisioner": "a"}', '{"parameters": 1}'])
def test_a_place_that_was_damaged_by_hand_counts_for_nothing(text: str) -> None:
    meta = ObjectMeta(name="east", annotations={provider_status.PLACE: text})
    config = ProviderConfig(metadata=meta, spec=ProviderConfigSpec(provisioner="a"))
    assert provider_status.in_effect(config) == config.spec


def test_conditions_say_what_is_left_over_and_which_limit_is_reached() -> None:
    listing = backends.put(LISTED, machine(MachineState.RUNNING))

    def conditions(limits: ProviderLimits, owner: str) -> dict[str, tuple[str, str, str]]:
        spec = ProviderConfigSpec(provisioner="p", limits=limits)
        config = ProviderConfig(spec=spec)
        seen = ProviderView(config=config, listing=listing, owners={("lab", "a"): owner})
        found = provider_status.status(seen, now=EPOCH).conditions
        return {each.type: (each.status, each.reason, each.message) for each in found}

    usual = conditions(ProviderLimits(max_instances=2, max_hourly_cost="0.13"), "u")
    assert usual["Orphans"] == ("False", "AllOwned", "")
    assert usual["LimitReached"] == ("False", "RoomLeft", "")
    left = conditions(ProviderLimits(max_instances=1), "other")
    assert left["Orphans"] == ("True", "BeingDeleted", "instances that no Exporter stands for: 1")
    assert left["LimitReached"][:2] == ("True", "NothingIsCreated")
    assert "1 of at most 1 instances exist" in left["LimitReached"][2]
    dear = conditions(ProviderLimits(max_hourly_cost="0.12"), "u")
    assert "cost 0.12 an hour, at most 0.12" in dear["LimitReached"][2]
