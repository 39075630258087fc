"""``container.bullpen.dev``: a target that is a container, run by podman. Pure.

The container has the sandbox of every instance around it: a user of its own, no rights on the
host, its own network and the instance's limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.paths import Document, written
from bullpen.drivers.container_parameters import ContainerParameters, problems
from bullpen.drivers.target_files import MachineSite, files
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.base import Needs, Plugin, Profile, Program, Site

NAME = "container.bullpen.dev"
DRIVER = "bullpen.drivers.container.Container"
RUNTIME = "container"
PODMAN = Program("podman", "podman")
RUNC = Program("runc", "runc")

OVERHEAD_BYTES = 128 << 20
"""Memory of the exporter and of podman besides the container."""


class ContainerRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(ContainerParameters, given)
        if causes:
            return causes
        wanted = parameters.read(ContainerParameters, given)
        return (*_parameter_causes(wanted), *target_drivers.causes(drivers, DRIVER))

    def needs(self, profile: Profile) -> Needs:
        wanted = parameters.read(ContainerParameters, profile.parameters)
        memory = quantities.parse(wanted.resources.memory).whole() + OVERHEAD_BYTES
        return Needs(
            memory_bytes=memory,
            cpus=wanted.resources.cpu,
            memory_bytes_max=memory,
            cpus_max=wanted.resources.cpu,
            file_bytes_max=quantities.parse(wanted.resources.image).whole(),
            artifacts=tuple(dict.fromkeys(map(parameters.artifact, files(wanted)))),
            programs=(PODMAN, RUNC),
            runtime=RUNTIME,
        )

    def export(self, profile: Profile, site: Site) -> Document:
        machine = MachineSite(launcher=site.launcher, files=parameters.fetched(site))
        config: Document = {"target": dict(profile.parameters), "site": codec.encode(machine)}
        return target_drivers.exported(profile.drivers, DRIVER, config)


def _parameter_causes(wanted: ContainerParameters) -> Iterator[Cause]:
    for path, problem in problems(wanted):
        yield Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")
    for name in sorted(target_drivers.RESERVED_NAMES & wanted.ports.keys()):
        where = written((parameters.ROOT, "ports", name))
        yield Cause(field=where, message=f"Invalid value: {name!r} is a driver of every target")


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: ContainerRecipe(),
    preload=("bullpen.drivers.container", "jumpstarter_driver_composite.driver"),
    runtime=RUNTIME,
)
