"""What a caller may ask of the registry, and what comes back.

Plain values in Kubernetes' own words. Parsing query strings and bodies into
them is the caller's work; deciding what they mean is the registry's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.document import Document
from bullpen.store.base import Entry

OBJECT_BYTES_MAX = 1_572_864
"""The largest object that is kept, 1.5 MiB as in a cluster with etcd's defaults."""

ATTEMPTS_MAX = 8
"""How often a write is tried again when only its timing was unlucky."""


Admit = Callable[[Document, Document | None], None]
"""Given the next state of an object and its current one, raises if the write is refused."""


class FieldValidation(StrEnum):
    """What happens to fields the schema does not have. They are kept either way."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class Propagation(StrEnum):
    """What becomes of the dependents of a deleted object."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class PatchType(StrEnum):
    """The media type of a patch is its type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    subresource: str = ""
    """Empty for the object itself, else ``status`` or ``scale``."""

    dry_run: bool = False
    field_manager: str = ""
    """Who owns the fields this write sets. Required for apply."""

    force: bool = False
    """Apply only: take fields from other managers instead of failing."""

    field_validation: FieldValidation = FieldValidation.WARN
    admit: Admit | None = field(default=None, compare=False)
    """Asked about the very state that is committed, after defaults and validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    propagation: Propagation | None = None
    """None follows the object's own finalizers, and is otherwise background."""

    dry_run: bool = False
    uid: str = ""
    """Precondition: the object must still be this one."""

    resource_version: str = ""
    """Precondition: the object must not have changed since."""

    grace_period_seconds: int | None = None
    """Accepted because clients send it; nothing here stops gracefully, so it is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    value: bytes
    """The object as stored, or the Scale when that is what was written."""

    created: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    value: bytes
    """The last state of the object."""

    uid: str
    finished: bool
    """False while finalizers hold the object back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    entries: tuple[Entry, ...]
    revision: int
    """The whole list is the state at this revision."""

    continue_token: str = ""
    """Where the next page begins; empty on the last one."""

    remaining: int | None = None
    """How many come after this page, when that is known without looking at each."""
