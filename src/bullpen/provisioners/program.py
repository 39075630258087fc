"""``program.bullpen.dev``: a target that is any program with a console. Pure.

Simulators of microcontrollers and boards, Zephyr's native_sim, Arm's FVPs, vendors' tools: what
they have in common is a program that runs firmware and offers a console.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.paths import Document, written
from bullpen.drivers.program_parameters import ProgramParameters, problems
from bullpen.drivers.target_files import MachineSite, files
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.base import Artifact, Needs, Plugin, Profile, Site

NAME = "program.bullpen.dev"
DRIVER = "bullpen.drivers.program.Program"
RUNTIME = "program"

OVERHEAD_BYTES = 64 << 20
"""Memory of the exporter besides the program."""

FILE_BYTES_MAX = 1 << 30
"""The largest file the program may write into its directory."""


class ProgramRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(ProgramParameters, given)
        if causes:
            return causes
        wanted = parameters.read(ProgramParameters, given)
        return (*_parameter_causes(wanted), *target_drivers.causes(drivers, DRIVER))

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
        return target_drivers.exported(profile.drivers, DRIVER, config)


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
        yield Artifact(path=path, may_be_directory=True)


def _parameter_causes(wanted: ProgramParameters) -> Iterator[Cause]:
    for path, problem in problems(wanted):
        yield Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")
    for index, place in enumerate(wanted.readable):
        if not place.startswith("/"):
            where = written((parameters.ROOT, "readable", index))
            yield Cause(field=where, message=f"Invalid value: {place!r} is not an absolute path")
    for name in sorted(target_drivers.RESERVED_NAMES & wanted.ports.keys() - {"console"}):
        where = written((parameters.ROOT, "ports", name))
        yield Cause(field=where, message=f"Invalid value: {name!r} is a driver of every target")


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: ProgramRecipe(),
    preload=("bullpen.drivers.program", "jumpstarter_driver_composite.driver"),
    runtime=RUNTIME,
)
