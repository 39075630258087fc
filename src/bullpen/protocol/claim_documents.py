"""The spec of a claim as a message, and as it is written in a DeviceClaim.

Both have the same fields. They differ in how JSON writes a duration (``5400s``, ``1h30m``) and
in that quantities of a message are always texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from bullpen.errors import BadRequest
from bullpen.kit import durations
from bullpen.protocol import claims_pb2

NOT_IN_MESSAGES = frozenset({"adminAccess", "clientRef", "release"})
"""Fields of the spec that calls have no use for.

The client is the caller, ReleaseClaim releases, and admin access is a right of users of the
Kubernetes API, not of clients.
"""

_DURATIONS = ("duration", "after")
_QUANTITIES = ("capacity", "totals")


def spec_message(spec: Mapping[str, Any], *, strict: bool = True) -> Any:
    """A ``ClaimSpec``. Raises ``BadRequest``; unknown fields are left out unless ``strict``."""
    if strict and spec.get("adminAccess"):
        raise BadRequest(
            "spec.adminAccess is for users of the Kubernetes API: create the claim with kubectl"
        )
    try:
        given = {key: value for key, value in spec.items() if key not in NOT_IN_MESSAGES}
        document = _converted(given)
        return ParseDict(document, claims_pb2.ClaimSpec(), ignore_unknown_fields=not strict)
    except (ParseError, ValueError, AttributeError) as error:
        raise BadRequest(f"the spec of the claim cannot be read: {error}") from None


def spec_document(message: Any) -> dict[str, Any]:
    """The fields of a ``ClaimSpec`` as a DeviceClaim has them. Raises ``BadRequest``."""
    try:
        found: dict[str, Any] = MessageToDict(message)
    except ValueError as error:
        raise BadRequest(f"the spec has a value that is out of range: {error}") from None
    return found


def _seconds(written: str) -> str:
    duration = Duration()
    duration.FromTimedelta(durations.parse(written))
    return duration.ToJsonString()


def _converted(value: Any, name: str = "") -> Any:
    match value:
        case Mapping() if name in _QUANTITIES:
            return {key: str(amount) for key, amount in value.items()}
        case Mapping():
            return {key: _converted(part, key) for key, part in value.items()}
        case list():
            return [_converted(part) for part in value]
        case str() if name in _DURATIONS:
            return _seconds(value)
        case _:
            return value
