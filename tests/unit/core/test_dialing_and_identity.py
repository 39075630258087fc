"""Who may be connected, and what callers are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.core.leases.dial import Verdict, gate
from bullpen.identity import subjects as identity
from bullpen.identity.subjects import Role
from bullpen.kit.clock import EPOCH

LEASE = Lease(
    metadata=ObjectMeta(name="l1", namespace="lab"),
    spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
    status=LeaseStatus(exporter_ref=LocalObjectReference(name="e1")),
)


def exporter(status: ExporterStatusValue | None) -> Exporter:
    return Exporter(
        metadata=ObjectMeta(name="e1", namespace="lab"),
        status=ExporterStatus(exporter_status=status, status_message="hook said no"),
    )


S = ExporterStatusValue


@pytest.mark.parametrize(
    ("status", "listening", "verdict"),
    [
        pytest.param(S.LEASE_READY, True, Verdict.PROCEED, id="ready and listening"),
        pytest.param(S.BEFORE_LEASE_HOOK, True, Verdict.PROCEED, id="a hook may be talked through"),
        pytest.param(None, True, Verdict.PROCEED, id="an old exporter never says anything"),
        pytest.param(S.LEASE_READY, False, Verdict.WAIT, id="not listening yet"),
        pytest.param(S.AVAILABLE, True, Verdict.WAIT, id="has not noticed the lease yet"),
        pytest.param(S.OFFLINE, False, Verdict.WAIT, id="away, but may come back"),
        pytest.param(
            S.BEFORE_LEASE_HOOK_FAILED, True, Verdict.FAILED_PRECONDITION, id="its hook failed"
        ),
    ],
)
def test_gate(status: S | None, listening: bool, verdict: Verdict) -> None:
    found = gate(LEASE, exporter(status), client="alice", listening=listening)
    assert found.verdict is verdict
    if verdict is Verdict.WAIT:
        assert "not ready" in found.message


def test_another_client_is_told_so_in_words_its_program_knows() -> None:
    found = gate(LEASE, exporter(S.LEASE_READY), client="bob", listening=True)
    assert found.verdict is Verdict.PERMISSION_DENIED
    assert "permission denied" in found.message


def test_an_ended_lease_cannot_be_dialled_even_by_its_owner() -> None:
    over = replace(LEASE, status=replace(LEASE.status, ended=True))
    found = gate(over, exporter(S.LEASE_READY), client="alice", listening=True)
    assert found.verdict is Verdict.FAILED_PRECONDITION
    assert "not ready" not in found.message


def test_a_removed_exporter_is_final() -> None:
    assert gate(LEASE, None, client="alice", listening=True).verdict is Verdict.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("username", "name"),
    [
        (
            "dex:test-client-oidc-provisioning@example.com",
            "test-client-oidc-provisioning-example-com",
        ),
        ("dex:Alice", "alice"),
        ("dex:__x..y__", "x-y"),
        ("dex:" + "a" * 100, "a" * 63),
    ],
)
def test_object_name(username: str, name: str) -> None:
    assert identity.object_name(username) == name


def test_a_migrated_object_keeps_its_old_subject() -> None:
    annotations = {identity.MIGRATED_NAMESPACE: "old", identity.MIGRATED_UID: "u0"}
    found = identity.subject(
        Role.CLIENT, namespace="new", name="alice", uid="u1", annotations=annotations
    )
    assert str(found) == "client:old:alice:u0"
    assert identity.usernames(found, "dex:alice") == {"internal:client:old:alice:u0", "dex:alice"}
    assert identity.secret_name(Role.EXPORTER, "e1") == "e1-exporter"


def test_a_lease_without_an_exporter_waits() -> None:
    waiting = replace(LEASE, status=LeaseStatus())
    found = gate(waiting, None, client="alice", listening=False)
    assert (found.verdict, found.message) == (
        Verdict.WAIT,
        "lease l1 has no exporter yet: not ready",
    )


def test_an_exporter_that_said_it_shuts_down_is_final_while_it_still_listens() -> None:
    going = exporter(S.OFFLINE)
    online = Condition(
        type="Online",
        status=ConditionStatus.FALSE,
        reason="StatusReported",
        message="bye",
        last_transition_time=EPOCH,
    )
    going = replace(going, status=replace(going.status, conditions=(online,)))
    found = gate(LEASE, going, client="alice", listening=True)
    assert found.verdict is Verdict.FAILED_PRECONDITION
    assert "is shutting down" in found.message
