"""The representations of an object or a list: whole, Table, or metadata only.

Whole objects are the stored bytes, joined and never decoded. The other two representations
are built for clients that ask for them by ``Accept``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from bullpen.api import printing
from bullpen.api.paths import Document, decode, encode
from bullpen.api.resource import Resource
from bullpen.errors import BadRequest, NotAcceptable

CHUNK_BYTES = 256 * 1024
"""A long list is sent in pieces of about this size instead of being joined first."""


class Shape(Enum):
    WHOLE = auto()
    TABLE = auto()
    METADATA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Representation:
    """The representation of one resource for one caller, at one time."""

    resource: Resource
    shape: Shape
    include: str = "Metadata"
    """The object in each table row: None, Metadata or Object."""

    now: datetime

    def one(self, value: bytes) -> bytes:
        """A single object."""
        if self.shape is Shape.WHOLE:
            return value
        document = decode(value)
        if self.shape is Shape.METADATA:
            return encode(_partial(document))
        return encode(self._table([document], _list_meta(document)))

    async def many(self, values: Iterable[bytes], meta: Document) -> AsyncIterator[bytes]:
        """A list, in pieces."""
        if self.shape is Shape.TABLE:
            yield encode(self._table([decode(value) for value in values], meta))
            return
        kind = f"{self.resource.kind}List"
        api_version = self.resource.api_version
        if self.shape is Shape.METADATA:
            kind, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            values = (encode(_partial(decode(value))) for value in values)
        elif not self.resource.custom:
            values = map(self._list_item, values)
        head = encode({"kind": kind, "apiVersion": api_version, "metadata": meta})
        async for piece in _joined(head[:-1] + b',"items":[', values, b"]}"):
            yield piece

    def _list_item(self, value: bytes) -> bytes:
        """An object in a list of a built-in kind: without its type, as in Kubernetes."""
        head = (
            f'{{"apiVersion":"{self.resource.api_version}","kind":"{self.resource.kind}",'.encode()
        )
        return b"{" + value[len(head) :] if value.startswith(head) else value

    def _table(self, documents: list[Document], meta: Document) -> Document:
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": printing.table_columns(self.resource),
            "rows": [self._row(document) for document in documents],
        }

    def _row(self, document: Document) -> Document:
        row: Document = {"cells": printing.cells(self.resource, document, self.now)}
        if self.include == "Object":
            row["object"] = document
        elif self.include == "Metadata":
            row["object"] = _partial(document)
        return row


def choose(accept: str, *, tables: bool = True) -> Shape:
    """The first supported shape the caller accepts; raises ``NotAcceptable`` if there is none.

    Answers that are not objects of a resource, such as reviews, have no ``tables``.
    """
    if not accept.strip():
        return Shape.WHOLE
    for wanted in accept.split(","):
        media, *rest = [part.strip() for part in wanted.split(";")]
        if media.lower() not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(part.partition("=")[::2] for part in rest)
        match parameters.get("as"):
            case None:
                return Shape.WHOLE
            case "Table":
                if tables and parameters.get("v") in ("v1", "v1beta1"):
                    return Shape.TABLE
            case "PartialObjectMetadata" | "PartialObjectMetadataList":
                return Shape.METADATA
            case _:
                continue
    raise NotAcceptable(
        "only the following media types are accepted: application/json,"
        " application/json;as=Table;v=v1;g=meta.k8s.io"
    )


def include_object(value: str) -> str:
    """The validated ``includeObject`` query parameter."""
    if value not in ("", "None", "Metadata", "Object"):
        raise BadRequest(f"includeObject={value!r}: use None, Metadata or Object")
    return value or "Metadata"


def _partial(document: Document) -> Document:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": document.get("metadata", {}),
    }


def _list_meta(document: Document) -> Document:
    return {"resourceVersion": document.get("metadata", {}).get("resourceVersion", "")}


async def _joined(head: bytes, values: Iterable[bytes], tail: bytes) -> AsyncIterator[bytes]:
    pieces, size = [head], len(head)
    first = True
    for value in values:
        if not first:
            pieces.append(b",")
        first = False
        pieces.append(value)
        size += len(value)
        if size >= CHUNK_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    pieces.append(tail)
    yield b"".join(pieces)
