"""HTTP requests and responses as values, and request bodies as documents.

A request and a response as values: the interface between sockets and handlers. Handlers
take a ``Request`` and return a ``Response``; only ``asgi`` knows the server that carries
them.

Request bodies as documents, in every supported encoding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

import msgspec

from bullpen.api import yaml
from bullpen.api.paths import Document, Step, decode, encode, written
from bullpen.apiserver import protobuf
from bullpen.errors import BadRequest, UnsupportedMediaType
from bullpen.registry.options import PatchType

JSON = "application/json"

BODY_MAX = 3 * 1024 * 1024
"""The maximum size of a request body, as in Kubernetes."""

QUERY_FIELDS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    """Still percent-encoded, so that a name cannot contain an encoded slash."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Lower-case names. A repeated header keeps its last value."""

    body: bytes = b""
    impersonation: tuple[tuple[str, str], ...] = ()
    """The ``Impersonate-*`` headers in the order they were sent, with lower-case names."""

    remote: tuple[tuple[str, str], ...] = ()
    """The ``X-Remote-*`` headers in the same way. Only those of a front proxy may be believed."""

    certificate: bytes = field(default=b"", repr=False)
    """The caller's certificate (DER), verified by the TLS handshake; empty for none."""

    source: str = ""
    """The address the request came from."""

    def flag(self, name: str) -> bool:
        """A boolean query parameter; present without a value means true."""
        value = self.query.get(name)
        if value is None:
            return False
        if value.lower() in ("", "1", "t", "true"):
            return True
        if value.lower() in ("0", "f", "false"):
            return False
        raise BadRequest(f"query parameter {name}={value!r} is not a boolean; use true or false")

    def number(self, name: str) -> int:
        """A non-negative whole-number query parameter, 0 when absent."""
        value = self.query.get(name, "")
        if not value:
            return 0
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise BadRequest(f"query parameter {name}={value!r} is not a non-negative whole number")
        return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = field(default=())


def json_response(
    document: object,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    return Response(
        status=status, body=encode(document), content_type=content_type, headers=headers
    )


def parse_query(raw: bytes) -> dict[str, str]:
    """The query string as a dict; a repeated parameter keeps its first value."""
    try:
        fields = parse_qs(
            raw.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=QUERY_FIELDS_MAX,
            errors="strict",
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise BadRequest(f"the query string cannot be read: {error}") from None
    return {name: values[0] for name, values in fields.items()}


JSON_TYPES = frozenset({JSON, PatchType.MERGE.value, PatchType.STRATEGIC.value})
DUPLICATES_MAX = 100
"""Duplicate fields that are reported for one body."""

YAML_TYPES = frozenset({"application/yaml", "text/yaml", "application/x-yaml"})


def media_type(request: Request) -> str:
    """The content type without its parameters; `kubectl scale` sends none and means JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() or JSON


def document(request: Request) -> Document:
    """The object in the body."""
    if not request.body:
        raise BadRequest("the request has no body; send the object")
    kind = media_type(request)
    if kind == JSON:
        return decode(request.body)
    if kind == protobuf.CONTENT_TYPE:
        return protobuf.decode(request.body)
    if kind in YAML_TYPES:
        return _mapping(yaml.load(request.body))
    raise UnsupportedMediaType(
        f"a body of type {kind!r} is not accepted; send application/json or application/yaml"
    )


def duplicate_fields(request: Request) -> tuple[str, ...]:
    """Paths of the fields that a JSON body gives more than once.

    JSON leaves their meaning open and the last value counts; YAML with duplicate keys is refused.
    """
    if media_type(request) not in JSON_TYPES:
        return ()
    repeated = False

    def collect(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal repeated
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        repeated = True
        given = Counter(key for key, _ in pairs)
        given.subtract(found.keys())
        return _Repeating(found, list(given.elements()))

    try:
        value = json.loads(request.body, object_pairs_hook=collect)
    except (ValueError, RecursionError):
        return ()  # the decoder of the document reports it
    return tuple(islice(_repeated(value, ()), DUPLICATES_MAX)) if repeated else ()


class _Repeating(dict[str, Any]):
    """An object with the keys that it gave again."""

    def __init__(self, found: dict[str, Any], twice: list[str]) -> None:
        super().__init__(found)
        self.twice = twice


def _repeated(value: Any, steps: tuple[Step, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value, _Repeating):
            yield from (written((*steps, key)) for key in value.twice)
        for key, item in value.items():
            yield from _repeated(item, (*steps, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, (*steps, index))


def patch(request: Request, *, strategic: bool) -> tuple[PatchType, Any]:
    """The type of patch in the body and its parsed content."""
    kind = media_type(request)
    try:
        patch_type = PatchType(kind)
    except ValueError:
        patch_type = None
    if patch_type is None or (patch_type is PatchType.STRATEGIC and not strategic):
        accepted = ", ".join(
            t.value for t in PatchType if strategic or t is not PatchType.STRATEGIC
        )
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format -"
            f" accepted media types include: {accepted}"
        )
    if patch_type is PatchType.APPLY:
        return patch_type, _mapping(yaml.load(request.body))
    if patch_type is PatchType.JSON:
        return patch_type, _operations(request.body)
    return patch_type, decode(request.body)


def _operations(body: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, list):
        raise BadRequest("a JSON patch is a list of operations")
    return value


def _mapping(value: object) -> Document:
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be an object, not {type(value).__name__}")
    return value
