"""A parameter of a class reaches the driver as it is, without code for it on the way.

The whole path is walked with the real parts: set and class, profile, provisioner, workload,
the message to the zygote or the Secret of the Pod, Jumpstarter's config, the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jumpstarter.config.exporter import ExporterConfigV1Alpha1

from bullpen.api import codec
from bullpen.api.exporter_template import Template
from bullpen.api.fields import about, attributes
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.targets import profiles
from bullpen.core.targets.instances import Instance, InstancePhase
from bullpen.drivers import qemu as qemu_driver
from bullpen.drivers.qemu import Qemu
from bullpen.drivers.qemu_parameters import QemuParameters
from bullpen.placements.base import Site, Workload
from bullpen.placements.local.wire import COMMANDS, Frames, Spawn, frame
from bullpen.placements.pod import rendering
from bullpen.provisioners import qemu as qemu_recipe
from bullpen.provisioners.base import Connection, InstanceSpec
from bullpen.provisioners.placed import PlacedProvisioner
from bullpen.provisioners.qemu import NAME, QemuRecipe

DIGEST = f"sha256:{'a' * 64}"

SAMPLES: dict[str, object] = {
    "arch": "riscv64",
    "machineType": "virt,aclint=on",
    "cpu": "max",
    "accel": "tcg",
    "resources": {"cpu": 3, "memory": "1Gi", "storage": "2Gi"},
    "firmware": {"path": "/code.fd", "variables": {"url": "https://lab/v", "digest": DIGEST}},
    "kernel": {"path": "/vmlinuz"},
    "initrd": {"url": "https://lab/initrd", "digest": DIGEST},
    "append": "console=ttyS0",
    "disks": [{"name": "root", "base": {"path": "/a.img", "format": "raw"}, "size": "3Gi"}],
    "hostfwd": {"ssh": {"guestPort": 22}},
    "network": "user",
    "fetchFrom": ["*.example.org"],
    "extraArguments": ["-rtc", "base=utc"],
}
"""For every parameter, a value that is not its default."""


class RecordingPlacement:
    """Records the workload it is told to start."""

    workload: Workload

    async def start(self, workload: Workload) -> Instance:
        self.workload = workload
        return Instance(
            key=workload.key, owner_uid="uid", provisioner=NAME, phase=InstancePhase.BOOTING
        )


def site_of(workload: Workload) -> Site:
    artifacts = workload.needs.artifacts
    return Site(artifacts={item: Path(item.path or "/cache/file") for item in artifacts})


def through_the_zygote(workload: Workload) -> bytes:
    """The config as the process of the exporter gets it on a host."""
    spawn = Spawn(
        key=workload.key,
        token="",
        directory="",
        runtime="",
        config=msgspec.Raw(workload.config(site_of(workload))),
        single_use=True,
        retain=False,
    )
    (received,) = Frames(COMMANDS).feed(frame(spawn))
    assert isinstance(received, Spawn)
    return bytes(received.config)


def through_a_secret(workload: Workload) -> bytes:
    """The config as the container of the exporter gets it in a Pod."""
    found = rendering.config_secret(workload).read("config.yaml")
    assert found is not None
    return found


async def driver_of(parameters: dict[str, Any], way: Callable[[Workload], bytes]) -> Qemu:
    """The driver in the exporter of a member of a set with this class."""
    owner = ExporterSet(
        metadata=ObjectMeta(name="pool", namespace="lab"),
        spec=ExporterSetSpec(
            virtual_target_class_name="class", selector=LabelSelector(), template=Template()
        ),
    )
    backend = VirtualTargetClassSpec(provisioner=NAME, parameters=parameters)
    made = profiles.profile(owner, VirtualTargetClass(spec=backend))
    placement: Any = RecordingPlacement()
    await PlacedProvisioner(QemuRecipe(host_arch="x86_64"), placement).ensure(
        InstanceSpec(
            key=("lab", "pool-0"),
            owner_uid="uid",
            profile=made,
            connection=Connection(endpoint="lab:1", token="token", ca_pem=""),
        )
    )
    config = ExporterConfigV1Alpha1.model_validate_json(way(placement.workload))
    driver = config.export["qemu"].instantiate()
    assert isinstance(driver, Qemu)
    driver.close()
    return driver


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize("way", [through_the_zygote, through_a_secret])
@pytest.mark.parametrize("name", [found.wire for found in attributes(QemuParameters)])
async def test_a_parameter_reaches_the_driver(name: str, way: Callable[[Workload], bytes]) -> None:
    sample = {name: SAMPLES[name]}
    driver = await driver_of(sample, way)

    assert driver.parameters == codec.decode(QemuParameters, sample)
    assert driver.parameters != QemuParameters(), "the sample is not the default"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterParameters(QemuParameters):
    """The parameters of a later release, with one more."""

    rng: bool = field(default=False, metadata=about("A source of random numbers."))


@pytest.mark.parametrize("way", [through_the_zygote, through_a_secret])
async def test_a_new_parameter_reaches_the_driver_without_code_on_the_way(
    way: Callable[[Workload], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu_recipe, "QemuParameters", LaterParameters)
    monkeypatch.setattr(qemu_driver, "QemuParameters", LaterParameters)
    driver = await driver_of({"rng": True}, way)

    assert driver.parameters == LaterParameters(rng=True)
