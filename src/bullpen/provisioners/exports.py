"""The ``export`` section of an exporter's config, from the drivers of a template."""

from __future__ import annotations

from collections.abc import Iterator

from bullpen.api.document import Document
from bullpen.api.exporterset import Driver
from bullpen.errors import Cause


def export_of(drivers: tuple[Driver, ...]) -> Document:
    """Each driver under its name, in Jumpstarter's format."""
    return {driver.name: entry(driver) for driver in drivers}


def entry(driver: Driver) -> Document:
    if driver.ref:
        return {"ref": driver.ref}
    return {"type": driver.type, "config": dict(driver.config)}


def reference_causes(
    drivers: tuple[Driver, ...], names: frozenset[str], *, path: str = "drivers"
) -> Iterator[Cause]:
    """References to drivers that are not exported. Nested settings belong to the driver."""
    for index, driver in enumerate(drivers):
        head = driver.ref.partition(".")[0]
        if driver.ref and head not in names:
            known = ", ".join(sorted(names)) or "none"
            message = f"Invalid value: {head!r} is not a driver here; available: {known}"
            yield Cause(field=f"{path}[{index}].ref", message=message)
