"""``renode.jumpstarter.dev``: a target that Renode simulates. Pure; nothing is started here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.paths import Document, written
from bullpen.drivers.renode_parameters import RenodeParameters, problems
from bullpen.drivers.target_files import MachineSite, files
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.base import Artifact, Needs, Plugin, Profile, Site

NAME = "renode.jumpstarter.dev"
PUBLISHED_DRIVER = "jumpstarter_driver_renode.driver.Renode"
DRIVER = "bullpen.drivers.renode.Renode"
RUNTIME = "renode"

OVERHEAD_BYTES = 64 << 20
"""Memory of the exporter besides Renode."""

FILE_BYTES_MAX = 1 << 30
"""The largest file Renode may write into its directory, such as a snapshot."""


class RenodeRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(RenodeParameters, given)
        if causes:
            return causes
        wanted = parameters.read(RenodeParameters, given)
        return (
            *_parameter_causes(wanted),
            *_published_causes(drivers),
            *target_drivers.causes(drivers, DRIVER),
        )

    def needs(self, profile: Profile) -> Needs:
        wanted = parameters.read(RenodeParameters, profile.parameters)
        memory = quantities.parse(wanted.resources.memory).whole() + OVERHEAD_BYTES
        return Needs(
            memory_bytes=memory,
            cpus=wanted.resources.cpu,
            memory_bytes_max=memory,
            cpus_max=wanted.resources.cpu,
            file_bytes_max=FILE_BYTES_MAX,
            artifacts=tuple(
                dict.fromkeys((*_paths(wanted), *map(parameters.artifact, files(wanted))))
            ),
            runtime=RUNTIME,
        )

    def export(self, profile: Profile, site: Site) -> Document:
        machine = MachineSite(launcher=site.launcher, files=parameters.fetched(site))
        config: Document = {"target": dict(profile.parameters), "site": codec.encode(machine)}
        return target_drivers.exported(profile.drivers, DRIVER, config)


def _paths(wanted: RenodeParameters) -> Iterator[Artifact]:
    """Paths of the host that must exist."""
    for path in (wanted.program, wanted.platform):
        if path.startswith("/"):
            yield Artifact(path=path)


def _parameter_causes(wanted: RenodeParameters) -> Iterator[Cause]:
    for path, problem in problems(wanted):
        yield Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")
    for index, place in enumerate(wanted.readable):
        if not place.startswith("/"):
            where = written((parameters.ROOT, "readable", index))
            yield Cause(field=where, message=f"Invalid value: {place!r} is not an absolute path")
    for name in sorted(target_drivers.RESERVED_NAMES & wanted.uarts.keys()):
        where = written((parameters.ROOT, "uarts", name))
        yield Cause(field=where, message=f"Invalid value: {name!r} is a driver of every target")


def _published_causes(drivers: tuple[Driver, ...]) -> Iterator[Cause]:
    for index, driver in enumerate(drivers):
        if driver.type == PUBLISHED_DRIVER:
            message = (
                f"Forbidden: {PUBLISHED_DRIVER} opens ports on every interface of the host; use"
                f" {DRIVER}, which has the same client, and put its settings into parameters"
            )
            yield Cause(field=f"drivers[{index}].type", message=message)


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: RenodeRecipe(),
    preload=("bullpen.drivers.renode", "jumpstarter_driver_composite.driver"),
    runtime=RUNTIME,
)
