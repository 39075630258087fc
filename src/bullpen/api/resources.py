"""The table of resources: what each kind is called and how it behaves.

One ``Resource`` per served kind is the single definition from which defaults,
validation, the CRD, OpenAPI, discovery and table columns are all derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bullpen.api.document import Document
from bullpen.errors import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A printer column, as a CRD writes it."""

    name: str
    path: str
    """Simple JSONPath such as ``.status.exporterStatus``."""

    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    """Above zero only ``-o wide`` shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which fields the scale subresource reads and writes, as paths of keys."""

    spec: tuple[str, ...]
    status: tuple[str, ...]
    selector: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Ours, published as a CRD: generation is counted and strategic merge refused."""

    status: bool = False
    """Has a status subresource: neither side's writes can touch the other's fields."""

    scale: Scale | None = None
    columns: tuple[Column, ...] = ()
    schema: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Structural OpenAPI v3 schema of the whole object."""

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

    def default(self, document: Document) -> Document:
        """A copy of ``document`` with the schema's defaults filled in."""
        raise NotImplementedError

    def validate(self, document: Document, old: Document | None = None) -> tuple[Cause, ...]:
        """Everything wrong with ``document``, as an update of ``old`` if given."""
        raise NotImplementedError

    def unknown_fields(self, document: Document) -> tuple[str, ...]:
        """Paths of fields the schema does not have, for strict field validation."""
        raise NotImplementedError
