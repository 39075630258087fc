"""Whether a lease and an exporter hold each other, one sentence per state."""

from __future__ import annotations

import pytest

from bullpen.api.exporter import Exporter, ExporterStatus
from bullpen.api.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.leases.repair import Mend, mend_exporter, mend_lease


def exporter(held_by: str = "", *, uid: str = "u1", epoch: int = 3) -> Exporter:
    ref = LocalObjectReference(name=held_by) if held_by else None
    status = ExporterStatus(lease_ref=ref, lease_uid=uid if held_by else "", lease_epoch=epoch)
    return Exporter(metadata=ObjectMeta(name="e1", namespace="lab"), status=status)


def lease(on: str = "", *, uid: str = "u1", epoch: int = 3, ended: bool = False) -> Lease:
    ref = LocalObjectReference(name=on) if on else None
    return Lease(
        metadata=ObjectMeta(name="l1", namespace="lab", uid=uid),
        spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
        status=LeaseStatus(exporter_ref=ref, epoch=epoch if on else 0, ended=ended),
    )


@pytest.mark.parametrize(
    ("given_exporter", "given_lease", "expected"),
    [
        pytest.param(exporter(), None, Mend.NOTHING, id="nobody has it"),
        pytest.param(exporter("l1"), lease("e1"), Mend.NOTHING, id="both halves are written"),
        pytest.param(exporter("l1"), lease(), Mend.FINISH, id="a crash left the lease's half out"),
        pytest.param(exporter("l1"), None, Mend.FREE, id="its lease was deleted"),
        pytest.param(exporter("l1"), lease("e1", ended=True), Mend.FREE, id="its lease is over"),
        pytest.param(exporter("l1"), lease("e2"), Mend.FREE, id="its lease has another one"),
        pytest.param(
            exporter("l1"), lease(uid="u2"), Mend.FREE, id="a new lease only shares the name"
        ),
        pytest.param(
            exporter("l1"), lease("e1", uid="u2"), Mend.FREE, id="even one that thinks it has it"
        ),
    ],
)
def test_mend_exporter(given_exporter: Exporter, given_lease: Lease | None, expected: Mend) -> None:
    assert mend_exporter(given_exporter, given_lease) is expected


@pytest.mark.parametrize(
    ("given_lease", "given_exporter", "expected"),
    [
        pytest.param(lease("e1"), exporter("l1"), Mend.NOTHING, id="both halves are written"),
        pytest.param(lease("e1"), exporter(), Mend.RETAKE, id="the exporter forgot it"),
        pytest.param(lease("e1"), None, Mend.END_REMOVED, id="the exporter is gone"),
        pytest.param(
            lease("e1"), exporter(epoch=0), Mend.END_REMOVED, id="the exporter was made anew"
        ),
        pytest.param(
            lease("e1"), exporter(epoch=4), Mend.END_REMOVED, id="others had it in between"
        ),
        pytest.param(lease("e1"), exporter("l2"), Mend.END_TAKEN, id="somebody else has it"),
        pytest.param(lease("e1"), exporter("l1", uid="u2"), Mend.END_TAKEN, id="a namesake has it"),
    ],
)
def test_mend_lease(given_lease: Lease, given_exporter: Exporter | None, expected: Mend) -> None:
    assert mend_lease(given_lease, given_exporter) is expected
