"""``program.bullpen.dev``: a target that is any program with a console. Pure.

Simulators of microcontrollers and boards, Zephyr's native_sim, Arm's FVPs, vendors' tools: what
they have in common is a program that runs firmware and offers a console.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bullpen.api import codec
from bullpen.api.exporterset import Driver
from bullpen.api.paths import Document, written
from bullpen.drivers.program_parameters import ProgramParameters, problems
from bullpen.drivers.target_files import MachineSite, files
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Artifact, Needs, Plugin, Profile, Site

NAME = "program.bullpen.dev"
DRIVER = "bullpen.drivers.program.Program"
TARGET_NAME = "target"
RUNTIME = "program"

OVERHEAD_BYTES = 64 << 20
"""Memory of the exporter besides the program."""

FILE_BYTES_MAX = 1 << 30
"""The largest file the program may write into its directory."""

RESERVED_NAMES = frozenset({"power", "console", "flasher"})
"""Children every target of this provisioner has."""


class ProgramRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(ProgramParameters, given)
        if causes:
            return causes
        wanted = parameters.read(ProgramParameters, given)
        names = frozenset(driver.name for driver in with_target(drivers))
        return (
            *_parameter_causes(wanted),
            *parameters.reference_causes(drivers, names),
            *_driver_causes(drivers),
        )

    def needs(self, profile: Profile) -> Needs:
        wanted = parameters.read(ProgramParameters, profile.parameters)
        memory = quantities.parse(wanted.resources.memory).whole()
        return Needs(
            memory_bytes=memory + OVERHEAD_BYTES,
            cpus=wanted.resources.cpu,
            memory_bytes_max=memory + OVERHEAD_BYTES,
            cpus_max=wanted.resources.cpu,
            file_bytes_max=FILE_BYTES_MAX,
            artifacts=tuple(
                dict.fromkeys((*_paths(wanted), *map(parameters.artifact, files(wanted))))
            ),
            runtime=RUNTIME,
        )

    def export(self, profile: Profile, site: Site) -> Document:
        config: Document = {
            "target": dict(profile.parameters),
            "site": codec.encode(_site(site)),
        }
        drivers = tuple(_completed(driver, config) for driver in with_target(profile.drivers))
        return parameters.export_of(drivers)


def with_target(drivers: tuple[Driver, ...]) -> tuple[Driver, ...]:
    """The drivers, including the target; without any, also its power and its console."""
    if any(driver.type == DRIVER for driver in drivers):
        return drivers
    target = Driver(name=TARGET_NAME, type=DRIVER)
    if drivers:
        return (target, *drivers)
    return (
        target,
        Driver(name="power", ref=f"{TARGET_NAME}.power"),
        Driver(name="serial", ref=f"{TARGET_NAME}.console"),
    )


def _completed(driver: Driver, config: Document) -> Driver:
    if driver.type != DRIVER:
        return driver
    return Driver(name=driver.name, type=DRIVER, config={**config, **driver.config})


def _site(site: Site) -> MachineSite:
    return MachineSite(
        launcher=site.launcher,
        files=parameters.fetched(site),
    )


def _paths(wanted: ProgramParameters) -> Iterator[Artifact]:
    """Paths of the host that must exist, and that the program may read."""
    if wanted.program.startswith("/"):
        yield Artifact(path=wanted.program)
    for path in wanted.readable:
        yield Artifact(path=path)


def _parameter_causes(wanted: ProgramParameters) -> Iterator[Cause]:
    for path, problem in problems(wanted):
        yield Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")
    for index, place in enumerate(wanted.readable):
        if not place.startswith("/"):
            where = written((parameters.ROOT, "readable", index))
            yield Cause(field=where, message=f"Invalid value: {place!r} is not an absolute path")
    for name in sorted(RESERVED_NAMES & wanted.ports.keys() - {"console"}):
        where = written((parameters.ROOT, "ports", name))
        yield Cause(field=where, message=f"Invalid value: {name!r} is a driver of every target")


def _driver_causes(drivers: tuple[Driver, ...]) -> Iterator[Cause]:
    if any(driver.type == DRIVER for driver in drivers):
        return
    for index, driver in enumerate(drivers):
        if driver.name == TARGET_NAME:
            message = f"Invalid value: {TARGET_NAME!r} is the program itself"
            yield Cause(field=f"drivers[{index}].name", message=message)


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: ProgramRecipe(),
    preload=("bullpen.drivers.program", "jumpstarter_driver_composite.driver"),
    runtime=RUNTIME,
)
