"""``android.jumpstarter.dev``: a target that is an Android emulator. Pure; starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.paths import Document, written
from bullpen.drivers.android_parameters import (
    BOOT_SECONDS_MAX,
    HOSTS,
    AndroidAccel,
    AndroidParameters,
    image_directory,
    problems,
    program,
)
from bullpen.drivers.target_files import MachineSite, files
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.base import Artifact, Needs, Plugin, Profile, Program, Site

NAME = "android.jumpstarter.dev"
PUBLISHED_DRIVER = "jumpstarter_driver_androidemulator.driver.AndroidEmulator"
DRIVER = "bullpen.drivers.android.AndroidEmulator"
RUNTIME = "android"
ADB = Program("adb", "adb")

OVERHEAD_BYTES = 1 << 30
"""Memory of the emulator, its graphics, the adb server and the exporter besides the device's."""


class AndroidRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(AndroidParameters, given)
        if causes:
            return causes
        wanted = parameters.read(AndroidParameters, given)
        return (
            *_parameter_causes(wanted),
            *_published_causes(drivers),
            *target_drivers.causes(drivers, DRIVER),
        )

    def needs(self, profile: Profile) -> Needs:
        wanted = parameters.read(AndroidParameters, profile.parameters)
        memory = quantities.parse(wanted.resources.memory).whole() + OVERHEAD_BYTES
        storage = quantities.parse(wanted.resources.storage).whole()
        return Needs(
            memory_bytes=memory,
            cpus=wanted.resources.cpu,
            memory_bytes_max=memory,
            cpus_max=wanted.resources.cpu + 1,
            file_bytes_max=storage + storage // 16,
            artifacts=tuple(
                dict.fromkeys((*_paths(wanted), *map(parameters.artifact, files(wanted))))
            ),
            programs=(ADB,),
            kvm_for=HOSTS[wanted.abi] if wanted.accel is AndroidAccel.KVM else "",
            runtime=RUNTIME,
        )

    def export(self, profile: Profile, site: Site) -> Document:
        machine = MachineSite(kvm=site.kvm, launcher=site.launcher, files=parameters.fetched(site))
        given = {**profile.parameters, **_boot_seconds(profile)}
        config: Document = {"target": given, "site": codec.encode(machine)}
        return target_drivers.exported(profile.drivers, DRIVER, config)


def _boot_seconds(profile: Profile) -> dict[str, int]:
    """How long booting may take: ``bootTimeout`` of the class, if it has one, is the limit."""
    limit = int(profile.boot_timeout.total_seconds())
    if not limit:
        return {}
    wanted = parameters.read(AndroidParameters, profile.parameters)
    chosen = wanted.ready_seconds if "readySeconds" in profile.parameters else limit
    return {"readySeconds": min(chosen, limit, BOOT_SECONDS_MAX)}


def _paths(wanted: AndroidParameters) -> Iterator[Artifact]:
    """Paths of the host that must exist."""
    yield Artifact(path=program(wanted))
    for path in (wanted.sdk, image_directory(wanted)):
        yield Artifact(path=path, may_be_directory=True)


def _parameter_causes(wanted: AndroidParameters) -> Iterator[Cause]:
    for path, problem in problems(wanted):
        yield Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")


def _published_causes(drivers: tuple[Driver, ...]) -> Iterator[Cause]:
    for index, driver in enumerate(drivers):
        if driver.type == PUBLISHED_DRIVER:
            message = (
                f"Forbidden: {PUBLISHED_DRIVER} shows every emulator of the host to each lessee;"
                f" use {DRIVER}, which has the same client, and put its settings into parameters"
            )
            yield Cause(field=f"drivers[{index}].type", message=message)


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: AndroidRecipe(),
    preload=("bullpen.drivers.android", "jumpstarter_driver_composite.driver"),
    runtime=RUNTIME,
)
