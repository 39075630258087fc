"""Parameters and drivers of targets: validated, and drivers as an ``export`` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.api import cel, codec, schema, validation
from bullpen.api.exporter_template import Driver
from bullpen.api.fields import Struct, per_type
from bullpen.api.paths import Document
from bullpen.api.schema import with_defaults
from bullpen.drivers.target_files import File
from bullpen.errors import Cause
from bullpen.placements.base import Artifact, Site

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

ROOT = "parameters"
CAUSES_MAX = 20

AMOUNT_PATTERN = r"^([0-9]{1,9}(\.[0-9]{1,6})?)?$"
"""An amount of money, or nothing."""

S = TypeVar("S", bound=Struct)


def causes_of(kind: type[Struct], parameters: Mapping[str, object]) -> tuple[Cause, ...]:
    """The errors in the parameters of ``kind``. An unknown field is an error.

    As for objects, rules are checked once the structure is valid.
    """
    document = dict(parameters)
    wrong = tuple(islice(_shape_causes(kind, document), CAUSES_MAX))
    return wrong or tuple(islice(_rule_causes(kind, document), CAUSES_MAX))


def _shape_causes(kind: type[Struct], document: Document) -> Iterator[Cause]:
    for cause in validation.schema_causes(_validator(kind), document):
        yield at_root(cause)
    # Without properties, the schema of a kind without fields would allow any field.
    closed = {"properties": {}, **schema.of(kind)}
    for path in validation.unknown_fields(closed, document):
        yield Cause(field=f"{ROOT}.{path}", message="Forbidden: there is no such parameter")


def _rule_causes(kind: type[Struct], document: Document) -> Iterator[Cause]:
    lists = tuple(validation.keyed_lists(schema.of(kind)))
    for cause in validation.duplicate_causes(lists, document):
        yield at_root(cause)
    for cause in cel.rule_causes(_rules(kind), document, None):
        yield at_root(cause)


def read(kind: type[S], parameters: Mapping[str, object]) -> S:
    """Decode the parameters; they have passed ``causes_of``."""
    return codec.decode(kind, with_defaults(schema.of(kind), dict(parameters)))


def at_root(cause: Cause) -> Cause:
    field = f"{ROOT}.{cause.field}" if cause.field else ROOT
    return Cause(field=field, message=cause.message, reason=cause.reason)


@per_type
def _validator(kind: Any) -> Draft202012Validator:
    return validation.compile_schema(schema.of(kind))


@per_type
def _rules(kind: Any) -> tuple[cel.PlacedRule, ...]:
    return cel.compile_rules(schema.of(kind))


def artifact(file: File) -> Artifact:
    return Artifact(path=file.path, url=file.url, digest=file.digest)


def fetched(site: Site) -> dict[str, str]:
    """Paths of fetched files by their digests."""
    return {
        artifact.digest: str(path) for artifact, path in site.artifacts.items() if not artifact.path
    }


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
