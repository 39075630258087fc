"""``mock.jumpstarter.dev``: targets that consist of an exporter only.

For trying out pools and for tests: everything is real except the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bullpen.api.exporter_template import Driver
from bullpen.api.fields import Struct
from bullpen.api.paths import Document
from bullpen.errors import Cause
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Needs, Plugin, Profile, Site

NAME = "mock.jumpstarter.dev"
MEMORY_BYTES = 25 << 20
CPUS = 0.01
"""The share of an idle exporter; three hundred of them fit on a small machine."""

MEMORY_BYTES_MAX = 512 << 20
"""The most memory an exporter may use, with the drivers its template names."""

DEFAULT_EXPORT: Document = {"power": {"type": "jumpstarter_driver_power.driver.MockPower"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MockParameters(Struct):
    """Parameters of mock targets: there are none."""


class MockRecipe:
    name = NAME

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        names = frozenset(driver.name for driver in drivers)
        return (
            *parameters.causes_of(MockParameters, given),
            *parameters.reference_causes(drivers, names),
        )

    def needs(self, profile: Profile) -> Needs:
        return Needs(
            memory_bytes=MEMORY_BYTES, cpus=CPUS, memory_bytes_max=MEMORY_BYTES_MAX, cpus_max=1
        )

    def export(self, profile: Profile, site: Site) -> Document:
        return parameters.export_of(profile.drivers) or DEFAULT_EXPORT


PLUGIN = Plugin(
    name=NAME, recipe=lambda host: MockRecipe(), preload=("jumpstarter_driver_power.driver",)
)
