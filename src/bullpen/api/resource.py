"""What the service knows about one kind: its names, schema, columns, subresources and checks.

From this one definition defaults, validation, the CRD, OpenAPI, discovery and table columns
are derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, cast

from bullpen.api import cel, schema, validation
from bullpen.api.admission_rules import AdmissionRule
from bullpen.api.columns import Column
from bullpen.api.fields import Kind
from bullpen.api.limits import CAUSES_MAX, oddity
from bullpen.api.metadata_checks import metadata_causes
from bullpen.api.paths import Document
from bullpen.api.schema import with_defaults
from bullpen.errors import Cause
from bullpen.kit.names import dns_subdomain_problem

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

Check = Callable[[Document, Document | None], Iterable[Cause]]
"""The errors in a document that satisfies its schema, given its old state if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which fields the scale subresource reads and writes, as paths of keys."""

    spec: tuple[str, ...]
    status: tuple[str, ...]
    selector: tuple[str, ...]
    zero: str = ""
    """Why 0 is refused; empty if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    group: str
    """Empty for the core group."""

    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    custom: bool = True
    """Ours, published as a CRD: generation is maintained and strategic merge rejected."""

    read_only: bool = False
    """Read-only for clients; the service itself writes it (the CRDs it implements)."""

    partial: bool = False
    """The schema has only the fields that this service reads, and the others are kept."""

    versioned_updates: bool = True
    """An update must name the version it is based on, as for all custom resources."""

    status: bool = False
    """Has a status subresource: status and other fields are written separately."""

    scale: Scale | None = None
    named_removal: bool = False
    """A pool whose members can be removed by name (``scaledownwith``)."""

    tokens: bool = False
    """Has a ``token`` subresource, which issues a token."""

    name_problem: Callable[[str], str | None] = field(default=dns_subdomain_problem, repr=False)
    """Why a text cannot name an object of this kind; None if it can."""

    columns: tuple[Column, ...] = ()
    schema: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Structural OpenAPI v3 schema of the whole object."""

    value: type[Kind] | None = field(default=None, repr=False)
    """The frozen dataclass of this kind, for ``codec``."""

    fold: Callable[[Document], Document] | None = field(default=None, repr=False)
    """Normalises alternative notations, such as a Secret's ``stringData``."""

    checks: tuple[Check, ...] = field(default=(), repr=False)
    """Checks beyond the schema and its CEL rules."""

    admission: tuple[AdmissionRule, ...] = field(default=(), repr=False)
    """The same checks for clusters, and the rules of names."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """Store prefix of every object of this resource."""
        return f"{self.group or 'core'}/{self.plural}/"

    def key(self, namespace: str, name: str) -> str:
        """Store key of one object; cluster-scoped objects have an empty namespace."""
        return f"{self.prefix}{namespace}/{name}"

    def default(self, document: Document, old: Document | None = None) -> Document:
        """A copy of ``document`` with the schema's defaults filled in.

        Sections that are the same objects as in ``old`` are already complete and are shared.
        """
        filled = with_defaults(self.schema, document, old)
        return self.fold(filled) if self.fold else filled

    def validate(self, document: Document, old: Document | None = None) -> tuple[Cause, ...]:
        """All errors in ``document``, as an update of ``old`` if given.

        At most ``CAUSES_MAX`` causes. Names, rules and constraints across fields are checked once
        the structure is valid. Sections that are the same objects as in ``old`` are assumed to be
        valid.
        """
        fresh = _changed(document, old) if old is not None else document
        odd = oddity(fresh)
        if odd:
            return (odd,)
        wrong = tuple(islice(self._shape_causes(document, fresh), CAUSES_MAX))
        return wrong or tuple(islice(self._deeper_causes(document, fresh, old), CAUSES_MAX))

    def _shape_causes(self, document: Document, fresh: Document) -> Iterator[Cause]:
        if fresh is not document and all(name in document for name in _required(self)):
            return validation.schema_causes(_section_validator(self), fresh)
        return validation.schema_causes(_validator(self), document)

    def _deeper_causes(
        self, document: Document, fresh: Document, old: Document | None
    ) -> Iterator[Cause]:
        # As with rules, unchanged parts are not checked again: most writes are of status.
        checks = () if old is not None and _is_same_wish(document, old) else self.checks
        named = fresh is document or "metadata" in fresh
        return chain(
            metadata_causes(document, self.name_problem) if named else (),
            validation.duplicate_causes(_keyed_lists(self), fresh),
            cel.rule_causes(_rules(self), document, old),
            *(check(document, old) for check in checks),
        )

    def pruned(self, document: Document) -> Document:
        """``document`` as a built-in kind keeps it: without fields that it does not have."""
        if self.custom or self.read_only or self.partial:
            return document
        known = cast(Mapping[str, Mapping[str, object]], self.schema["properties"])
        # Metadata is not described by the schema of a kind; the registry reads it separately.
        return {
            key: value if key == "metadata" else validation.pruned(known[key], value)
            for key, value in document.items()
            if key in known
        }

    def unknown_fields(self, document: Document) -> tuple[str, ...]:
        """Paths of fields the schema does not have, for strict field validation."""
        return validation.unknown_fields(self.schema, document)


def _changed(document: Document, old: Document) -> Document:
    """The sections of ``document`` that are not the same objects as in ``old``."""
    return {key: value for key, value in document.items() if value is not old.get(key)}


def _is_same_wish(document: Document, old: Document) -> bool:
    names = (document.keys() | old.keys()) - {"metadata", "status"}
    return all(document.get(name) == old.get(name) for name in names)


@cache
def _validator(resource: Resource) -> Draft202012Validator:
    return validation.compile_schema(resource.schema)


@cache
def _section_validator(resource: Resource) -> Draft202012Validator:
    """For some sections of an object; the others are not checked."""
    return validation.compile_schema({**resource.schema, "required": []})


def _required(resource: Resource) -> Sequence[str]:
    return cast(Sequence[str], resource.schema.get("required", ()))


@cache
def _keyed_lists(resource: Resource) -> tuple[validation.KeyedList, ...]:
    return tuple(validation.keyed_lists(resource.schema))


@cache
def _rules(resource: Resource) -> tuple[cel.PlacedRule, ...]:
    return cel.compile_rules(resource.schema)


def resource(value: type[Kind], plural: str, **facts: object) -> Resource:
    """The resource of a kind; ``facts`` are further fields of ``Resource``."""
    group, _, version = value.api_version.rpartition("/")
    facts.setdefault("versioned_updates", facts.get("custom", True))
    return Resource(
        group=group,
        version=version,
        kind=value.kind,
        plural=plural,
        singular=value.kind.lower(),
        schema=schema.of(value),
        value=value,
        **facts,  # type: ignore[arg-type]
    )
