"""The options and results of registry operations.

Plain values in Kubernetes' own terms. The caller parses query strings and bodies into them;
the registry decides what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.paths import Document
from bullpen.store.base import Entry

OBJECT_BYTES_MAX = 1_572_864
"""The maximum size of an object, 1.5 MiB as in a cluster with etcd's defaults."""

ATTEMPTS_MAX = 8
"""Attempts of a write that failed only because of a concurrent one."""


Admit = Callable[[Document, Document | None], None]
"""Called with the next and the current state of an object; raises to reject the write."""


class FieldValidation(StrEnum):
    """How fields that are not in the schema are handled. They are kept in any case."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


class Propagation(StrEnum):
    """What happens to the dependents of a deleted object."""

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
    """The manager that owns the fields this write sets. Required for apply."""

    force: bool = False
    """Apply only: take fields from other managers instead of failing."""

    field_validation: FieldValidation = FieldValidation.WARN
    duplicate_fields: tuple[str, ...] = ()
    """Paths of fields that the body gave more than once; the last value counts."""

    admit: Admit | None = field(default=None, compare=False)
    """Called with the exact state to be committed, after defaults and validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    propagation: Propagation | None = None
    """None follows the object's own finalizers, otherwise background."""

    dry_run: bool = False
    uid: str = ""
    """Precondition: the object must have this uid."""

    resource_version: str = ""
    """Precondition: the object must have this version."""

    grace_period_seconds: int | None = None
    """Accepted because clients send it, but ignored: no object here stops gracefully."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    value: bytes
    """The object as stored, or the Scale if a Scale was written."""

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
    """The start of the next page; empty on the last one."""

    remaining: int | None = None
    """How many objects follow this page, if known without reading each."""
