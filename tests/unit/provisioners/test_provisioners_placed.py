"""A recipe and a placement together: the config is completed, and each touches only its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from bullpen.api.exporterset import Driver, RecycleStrategy
from bullpen.errors import Refused
from bullpen.placements.base import (
    Instance,
    InstancePhase,
    Key,
    Listener,
    Needs,
    Site,
    Workload,
)
from bullpen.provisioners.base import InstanceSpec
from bullpen.provisioners.mock import CPUS, MEMORY_BYTES, MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner, requested
from bullpen.provisioners.qemu import QemuRecipe

CONFIG = "metadata: {namespace: lab, name: a}\nendpoint: lab:1\ntoken: secret\n"


class RecordingPlacement:
    """A placement that takes everything and runs nothing."""

    def __init__(self) -> None:
        self.workloads: dict[Key, Workload] = {}
        self.calls: list[tuple[str, Key]] = []

    async def start(self, workload: Workload) -> Instance:
        self.workloads[workload.key] = workload
        return self._instance(workload)

    async def stop(self, key: Key) -> None:
        self.calls.append(("stop", key))
        del self.workloads[key]

    async def retire(self, key: Key) -> None:
        self.calls.append(("retire", key))

    async def observe_all(self) -> tuple[Instance, ...]:
        return tuple(map(self._instance, self.workloads.values()))

    def listen(self, listener: Listener) -> None:
        listener(("lab", "a"))

    def _instance(self, workload: Workload) -> Instance:
        return Instance(
            key=workload.key,
            owner_uid=workload.owner_uid,
            provisioner=workload.provisioner,
            phase=InstancePhase.BOOTING,
        )


def spec(name: str = "a", **chosen: object) -> InstanceSpec:
    return InstanceSpec(
        key=("lab", name),
        owner_uid="uid",
        exporter_config=CONFIG,
        **chosen,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "written", [CONFIG, json.dumps(yaml.safe_load(CONFIG))], ids=["as YAML", "as JSON"]
)
async def test_the_config_is_the_callers_with_the_recipes_export(written: str) -> None:
    placement = RecordingPlacement()
    drivers = (Driver(name="led", type="a.Led", config={"pin": 3}),)
    wanted = replace(spec(drivers=drivers), exporter_config=written)
    await PlacedProvisioner(MockRecipe(), placement).ensure(wanted)

    config = placement.workloads["lab", "a"].render(Site(artifacts={}))
    assert json.loads(config) == {
        "metadata": {"namespace": "lab", "name": "a"},
        "endpoint": "lab:1",
        "token": "secret",
        "export": {"led": {"type": "a.Led", "config": {"pin": 3}}},
    }


@pytest.mark.parametrize(
    ("recycle", "single_use"),
    [(RecycleStrategy.EXIT_AND_REPLACE, True), (RecycleStrategy.IN_PLACE_REUSE, False)],
)
async def test_the_strategy_decides_whether_it_is_used_once(
    recycle: RecycleStrategy, single_use: bool
) -> None:
    placement = RecordingPlacement()
    await PlacedProvisioner(MockRecipe(), placement).ensure(spec(recycle=recycle, retain=True))

    assert placement.workloads["lab", "a"].single_use is single_use
    assert placement.workloads["lab", "a"].retain is True


async def test_wrong_parameters_reach_no_placement() -> None:
    placement = RecordingPlacement()
    with pytest.raises(Refused, match=r"parameters\.arch"):
        await PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement).ensure(
            spec(parameters={"arch": "vax"})
        )
    assert placement.workloads == {}


async def test_provisioners_that_share_a_placement_leave_each_others_alone() -> None:
    placement = RecordingPlacement()
    mock = PlacedProvisioner(MockRecipe(), placement)
    qemu = PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement)
    await mock.ensure(spec("m"))
    await qemu.ensure(spec("q"))
    await mock.remove(("lab", "q"))
    await mock.retire(("lab", "q"))

    assert placement.calls == []
    assert [instance.key for instance in await mock.observe_all()] == [("lab", "m")]
    assert [instance.key for instance in await qemu.observe_all()] == [("lab", "q")]
    await qemu.retire(("lab", "q"))
    await qemu.remove(("lab", "q"))
    assert placement.calls == [("retire", ("lab", "q")), ("stop", ("lab", "q"))]


async def test_news_of_the_placement_are_passed_on() -> None:
    heard: list[Key] = []
    PlacedProvisioner(MockRecipe(), RecordingPlacement()).listen(heard.append)

    assert heard == [("lab", "a")]


def test_what_the_class_requests_is_accounted_instead_of_an_estimate() -> None:
    estimate = Needs(memory_bytes=1, cpus=2.0, kvm_for="x86_64")

    assert requested(estimate, {}) == estimate
    assert requested(estimate, {"memory": "1Gi", "cpu": "250m"}) == Needs(
        memory_bytes=1 << 30, cpus=0.25, kvm_for="x86_64"
    )


def test_a_mock_target_needs_little_and_exports_power() -> None:
    recipe = MockRecipe()

    needs = recipe.needs(spec())
    assert (needs.memory_bytes, needs.cpus, needs.runtime) == (MEMORY_BYTES, CPUS, "")
    assert list(recipe.export(spec(), Site(artifacts={}))) == ["power"]
    assert recipe.check({}, (Driver(name="x", ref="y.z"),))[0].field == "drivers[0].ref"
