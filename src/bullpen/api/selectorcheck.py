"""Validates the label selectors inside documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bullpen.api import codec
from bullpen.api.document import Document
from bullpen.api.meta import LabelSelector
from bullpen.api.paths import walk
from bullpen.errors import BadRequest, Cause
from bullpen.kit.selectors import Selector


def selector_causes(document: Document, *pattern: str) -> Iterator[Cause]:
    """The errors in each selector at ``pattern``; assumes that the schema is satisfied."""
    for path, raw in walk(document, pattern):
        try:
            codec.decode(LabelSelector, raw).selector()
        except BadRequest as error:
            yield Cause(field=path, message=f"Invalid value: {error.message}")


def selector_in(raw: Any) -> Selector | None:
    """The selector in ``raw``, or None if it is invalid."""
    try:
        return codec.decode(LabelSelector, raw).selector()
    except BadRequest:
        return None
