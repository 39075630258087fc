"""The columns in which objects of a kind are printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A printer column, as in a CRD."""

    name: str
    path: str
    """Simple JSONPath such as ``.status.exporterStatus``."""

    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    """Above zero, only ``-o wide`` shows it."""


AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date")
"""Last column of every custom kind. Kubernetes adds it only if no column is declared."""
