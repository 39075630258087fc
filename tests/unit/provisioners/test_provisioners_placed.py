"""A recipe and a placement together: the config is completed, and each touches only its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.instances import Instance, InstancePhase
from bullpen.errors import Cause, Refused
from bullpen.placements.base import Key, Listener, Needs, Site, Workload
from bullpen.provisioners import mock, qemu
from bullpen.provisioners.base import Connection, InstanceSpec, Profile
from bullpen.provisioners.mock import CPUS, MEMORY_BYTES, MockRecipe
from bullpen.provisioners.placed import PlacedProvisioner, requested
from bullpen.provisioners.qemu import QemuRecipe

CONNECTION = Connection(endpoint="lab:1", token="secret", ca_pem="")


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

    async def change_disks(self, workload: Workload) -> None:
        self.calls.append(("disks", workload.key))

    async def update_credentials(self, key: Key, credentials: Mapping[str, bytes]) -> None:
        self.calls.append(("credentials", key))

    async def grant(self, key: Key, files: Mapping[str, bytes]) -> None:
        self.calls.append(("grant", key))

    async def retire(self, key: Key) -> None:
        self.calls.append(("retire", key))

    async def observe_all(self) -> tuple[Instance, ...]:
        return tuple(map(self._instance, self.workloads.values()))

    def listen(self, listener: Listener) -> None:
        listener(("lab", "a"))

    def _instance(self, workload: Workload) -> Instance:
        return Instance(
            key=workload.key,
            owner_uid=workload.spec.owner_uid,
            provisioner=workload.spec.profile.provisioner,
            phase=InstancePhase.BOOTING,
        )


def profile(provisioner: str = mock.NAME, **chosen: object) -> Profile:
    return Profile(provisioner=provisioner, **chosen)  # type: ignore[arg-type]


def spec(name: str = "a", **chosen: object) -> InstanceSpec:
    return InstanceSpec(
        key=("lab", name),
        owner_uid="uid",
        profile=profile(**chosen),  # type: ignore[arg-type]
        connection=CONNECTION,
    )


async def test_the_config_has_the_connection_and_the_recipes_export() -> None:
    placement = RecordingPlacement()
    drivers = (Driver(name="led", type="a.Led", config={"pin": 3}),)
    await PlacedProvisioner(MockRecipe(), placement).ensure(spec(drivers=drivers))

    config = placement.workloads["lab", "a"].config(Site(artifacts={}))
    assert json.loads(config) == {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "ExporterConfig",
        "metadata": {"namespace": "lab", "name": "a"},
        "endpoint": "lab:1",
        "tls": {"ca": "", "insecure": False},
        "token": "secret",
        "exitOnLeaseEnd": True,
        "export": {"led": {"type": "a.Led", "config": {"pin": 3}}},
    }


async def test_a_placement_gets_the_spec_whole() -> None:
    """So that a new field of the class needs no code between its set and its placement."""
    placement = RecordingPlacement()
    wanted = spec(single_use=False, retain=True)
    await PlacedProvisioner(MockRecipe(), placement).ensure(wanted)

    assert placement.workloads["lab", "a"].spec is wanted


async def test_wrong_parameters_reach_no_placement() -> None:
    placement = RecordingPlacement()
    with pytest.raises(Refused, match=r"parameters\.arch"):
        await PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement).ensure(
            spec(provisioner=qemu.NAME, parameters={"arch": "vax"})
        )
    assert placement.workloads == {}


async def test_members_that_share_a_profile_are_validated_once() -> None:
    class CountingRecipe(MockRecipe):
        checks = 0

        def check(
            self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
        ) -> tuple[Cause, ...]:
            self.checks += 1
            return super().check(given, drivers)

    recipe = CountingRecipe()
    provisioner = PlacedProvisioner(recipe, RecordingPlacement())
    first = spec("a")
    await provisioner.ensure(first)
    await provisioner.ensure(replace(first, key=("lab", "b")))
    assert recipe.checks == 1
    await provisioner.ensure(spec("c", retain=True))
    assert recipe.checks == 2


async def test_provisioners_that_share_a_placement_leave_each_others_alone() -> None:
    placement = RecordingPlacement()
    mocks = PlacedProvisioner(MockRecipe(), placement)
    machines = PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement)
    await mocks.ensure(spec("m"))
    await machines.ensure(spec("q", provisioner=qemu.NAME))
    await mocks.remove(("lab", "q"))
    await mocks.retire(("lab", "q"))

    assert placement.calls == []
    assert [instance.key for instance in await mocks.observe_all()] == [("lab", "m")]
    assert [instance.key for instance in await machines.observe_all()] == [("lab", "q")]
    await machines.retire(("lab", "q"))
    await machines.remove(("lab", "q"))
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

    needs = recipe.needs(profile())
    assert (needs.memory_bytes, needs.cpus, needs.runtime) == (MEMORY_BYTES, CPUS, "")
    assert list(recipe.export(profile(), Site(artifacts={}))) == ["power"]
    assert recipe.check({}, (Driver(name="x", ref="y.z"),))[0].field == "drivers[0].ref"
