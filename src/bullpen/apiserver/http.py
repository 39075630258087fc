"""A request and a response as values: the interface between sockets and handlers.

Handlers take a ``Request`` and return a ``Response``; only ``asgi`` knows the server that
carries them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from bullpen.api.document import encode
from bullpen.errors import BadRequest

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
