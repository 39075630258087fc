"""Which host an instance gets, and what is known of those on a host that does not answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.core.targets import hosts
from bullpen.core.targets.backends import LOST_AFTER
from bullpen.core.targets.hosts import Chosen, Full, HostView, Silent, Unsuitable
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase

NEW = ("lab", "new")
SECOND = timedelta(seconds=1)


def instance(name: str, *, up: bool = True) -> Instance:
    return Instance(
        key=("lab", name),
        owner_uid="uid-1",
        provisioner="hosts",
        phase=InstancePhase.RUNNING if up else InstancePhase.EXITED,
        reason=None if up else ExitReason.COMPLETED,
    )


def host(name: str, *names: str, **more: object) -> HostView:
    made = HostView(
        name=name,
        address="192.0.2.1",
        slots=2,
        listed=True,
        instances=tuple(instance(each) for each in names),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def silent(name: str, *names: str) -> HostView:
    return host(name, *names, silent_since=SECOND, error="it is off")


def test_the_host_with_the_fewest_instances_is_chosen() -> None:
    assert hosts.choose([host("a", "x"), host("b")], NEW) == Chosen("b")
    assert hosts.choose([host("b"), host("a")], NEW) == Chosen("a"), "by name among equals"


def test_what_is_being_started_has_a_slot_and_what_has_exited_has_none() -> None:
    starting = host("a", starting=frozenset({("lab", "x"), ("lab", "y")}))
    ended = host("b", "z", instances=(instance("z"), instance("y", up=False)))
    assert hosts.choose([starting, ended], NEW) == Chosen("b")
    assert isinstance(hosts.choose([starting], NEW), Full)


def test_slots_that_were_lowered_below_their_use_start_nothing() -> None:
    full = hosts.choose([host("a", "x", "y", slots=1)], NEW)
    assert full == Full("all 1 slots of a are taken")


def test_a_drained_host_and_one_without_the_labels_start_nothing() -> None:
    given = [host("a", drain=True), host("b", labels={"gpu": "no"})]
    assert hosts.choose(given, NEW) == Chosen("b")
    assert isinstance(hosts.choose(given, NEW, selector={"gpu": "yes"}), Unsuitable)
    assert isinstance(hosts.choose(given[:1], NEW), Unsuitable)


def test_a_silent_host_is_not_chosen_and_named_if_no_other_is_left() -> None:
    assert hosts.choose([silent("a"), host("b", "x")], NEW) == Chosen("b")
    found = hosts.choose([silent("a"), host("b", drain=True)], NEW)
    assert found == Silent("no host answers: host a: it is off")


@pytest.mark.parametrize(
    "before", [silent("a"), host("a", listed=False)], ids=["silent", "never asked"]
)
def test_an_instance_that_a_host_may_run_is_started_nowhere_else(before: HostView) -> None:
    found = hosts.choose([before, host("b")], NEW, recorded="a")
    assert isinstance(found, Silent)
    assert "host a may run it" in found.reason


def test_the_host_on_record_gets_it_again_unless_it_is_drained() -> None:
    assert hosts.choose([host("a", "x"), host("b")], NEW, recorded="a") == Chosen("a")
    drained = host("a", drain=True)
    assert hosts.choose([drained, host("b")], NEW, recorded="a") == Chosen("b")
    assert hosts.choose([host("b")], NEW, recorded="a") == Chosen("b"), "it was removed"


def test_an_instance_of_a_silent_host_stays_as_last_seen_and_is_lost_after_a_limit() -> None:
    running = instance("x")
    gone = silent("a", "x")
    assert hosts.seen(running, gone, silent_for=LOST_AFTER - SECOND) == running
    lost = hosts.seen(running, gone, silent_for=LOST_AFTER)
    assert (lost.phase, lost.reason) == (InstancePhase.EXITED, ExitReason.LOST)
    assert "host a has not answered for 600 s" in lost.detail
    ended = instance("x", up=False)
    assert hosts.seen(ended, gone, silent_for=LOST_AFTER) == ended, "it had ended before"


@pytest.mark.parametrize(
    ("endpoint", "address", "usable"),
    [
        ("127.0.0.1:8082", "192.0.2.1", False),
        ("localhost:8082", "bench-1", False),
        ("[::1]:8082", "192.0.2.1", False),
        ("bullpen-controller.lab.svc:8082", "192.0.2.1", False),
        ("127.0.0.1:8082", "127.0.0.1", True),
        ("lab.example.com:8082", "192.0.2.1", True),
    ],
)
def test_an_endpoint_of_this_machine_or_cluster_only_is_refused(
    endpoint: str, address: str, usable: bool
) -> None:
    problem = hosts.unusable_endpoint(endpoint, host("a", address=address))
    assert bool(problem) != usable
    assert usable or "endpoint" in problem


def test_all_problems_are_named_with_their_hosts() -> None:
    assert hosts.problems([host("a"), silent("b"), silent("c")]) == (
        "host b: it is off; host c: it is off"
    )
