"""What a provisioner thinks of members that another one looks after."""

from __future__ import annotations

import random

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.meta import ObjectMeta
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.core.conditions import condition
from bullpen.core.pools.members import Stage
from bullpen.core.targets.profiles import PROVISIONER
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.provisioners.fake import NAME, FakeProvisioner


def member(provisioner: str) -> Exporter:
    """One that has registered, and whose instance nobody here knows."""
    said = condition((), "Registered", status=True, reason="Register", generation=1, now=EPOCH)
    annotations = {PROVISIONER: provisioner}
    meta = ObjectMeta(name="m", namespace="lab", uid="u", annotations=annotations)
    return Exporter(metadata=meta, status=ExporterStatus(conditions=said))


@pytest.mark.parametrize(
    ("provisioner", "alone", "stage"),
    [
        pytest.param("other.example.com", False, Stage.UP, id="another process knows its instance"),
        pytest.param("other.example.com", True, Stage.EXITED, id="there is no other process"),
        pytest.param(NAME, False, Stage.EXITED, id="it is ours, and its instance is gone"),
    ],
)
def test_a_member_without_an_instance_is_lost_only_if_nobody_else_has_it(
    provisioner: str, alone: bool, stage: Stage
) -> None:
    ours = FakeProvisioner(random.Random(1))
    instance_view = InstanceView((ours,), clock=VirtualClock(), alone=alone)
    instance_view.replace(NAME, ())
    assert instance_view.backing(member(provisioner)).stage is stage
