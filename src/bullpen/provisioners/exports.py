"""An exporter's config: parsing it, and its ``export`` section from a template's drivers."""

from __future__ import annotations

from collections.abc import Iterator

from bullpen.api import yaml
from bullpen.api.document import Document, decode
from bullpen.api.exporterset import Driver
from bullpen.errors import Cause


def read_config(text: str) -> Document:
    """Parse the config in ``text``, which is YAML.

    JSON is YAML too and is parsed a hundred times faster; callers that start hundreds of
    exporters write JSON.
    """
    if text.startswith("{"):
        return decode(text.encode())
    return dict(yaml.load(text))


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
