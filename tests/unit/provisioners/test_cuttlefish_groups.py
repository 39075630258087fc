"""The names of groups of Cuttlefish devices, and what a class may describe."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.targets.backends import MachineState
from bullpen.provisioners.cuttlefish import groups
from bullpen.provisioners.cuttlefish.parameters import CuttlefishParameters
from bullpen.provisioners.cuttlefish.plugin import provider
from bullpen.testing.fake_cuttlefish import DEVICE, GROUP

CREATED = datetime(2026, 11, 19, 21, 0, 7, tzinfo=UTC)
KUBERNETES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
COSTS = st.sampled_from(("", "0", "12", "0.25", "3.000001"))


@given(lab=KUBERNETES, namespace=KUBERNETES, name=KUBERNETES, uid=KUBERNETES, cost=COSTS)
def test_names_are_legal_and_say_whose_a_device_is(
    lab: str, namespace: str, name: str, uid: str, cost: str
) -> None:
    group = groups.group_name(lab=lab, key=(namespace, name), uid=uid)
    device = groups.device_name(created=CREATED, suffix="x7k2m", hourly_cost=cost)
    assert GROUP.fullmatch(group)
    assert DEVICE.fullmatch(device)
    shown = {"group": group, "name": device, "status": "Running", "adb_port": 6521}
    found = groups.machine(shown, lab=lab, host="127.0.0.1")
    assert found is not None
    assert (found.key, found.owner_uid, found.created) == ((namespace, name), uid, CREATED)
    assert (found.address, found.hourly_cost) == ("127.0.0.1:6521", float(cost or 0))
    assert groups.machine(shown, lab=f"{lab}x", host="127.0.0.1") is None


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("Preparing", MachineState.STARTING),
        ("Stopped", MachineState.STARTING),
        ("Unreachable", MachineState.STARTING),
        ("Running", MachineState.RUNNING),
        ("Prepare Failed", MachineState.FAILED),
        ("Cancelled", MachineState.FAILED),
    ],
)
def test_the_states_of_cvd(status: str, state: MachineState) -> None:
    group = groups.group_name(lab="lab", key=("ns", "a"), uid="uid")
    shown = {"group": group, "name": "t1_x", "status": status, "adb_port": 6520}
    found = groups.machine(shown, lab="lab", host="::1")
    assert found is not None
    assert found.state is state


def test_a_request_has_our_names_and_the_rest_as_it_was_given() -> None:
    given: dict[str, Any] = {
        "instances": [{"vm": {"cpus": 2}}],
        "common": {"host_package": "p"},
        "netsim_bt": False,
    }
    made = groups.request(CuttlefishParameters(env_config=given), group="g", device="t1_x")
    assert made == {
        "instances": [{"vm": {"cpus": 2}, "name": "t1_x"}],
        "common": {"host_package": "p", "group_name": "g"},
        "netsim_bt": False,
    }


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "parameters.envConfig.instances"),
        ({"instances": [{}, {}]}, "parameters.envConfig.instances"),
        ({"instances": [1]}, "parameters.envConfig.instances"),
        ({"instances": [{"name": "mine"}]}, "parameters.envConfig.instances[0].name"),
        ({"instances": [{}], "common": []}, "parameters.envConfig.common"),
        ({"instances": [{}], "common": {"group_name": "mine"}}, "envConfig.common.group_name"),
    ],
)
def test_what_cannot_work_is_named(config: dict[str, Any], field: str) -> None:
    (cause,) = provider().check({"envConfig": config})
    assert cause.field.endswith(field)
    assert provider().check({"envConfig": {"instances": [{}]}}) == ()
