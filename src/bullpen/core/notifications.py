"""What webhooks tell: which change of a lease or an exporter is an event, and how it is signed.

Messages are CloudEvents 1.0; they are signed as the Standard Webhooks specification says, so
that receivers can use an existing library. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_never

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.core import conditions
from bullpen.core.exporters import presence
from bullpen.core.leases import lifecycle
from bullpen.core.leases.lease_figures import Assigned, Ended, Refused, Requested, figures
from bullpen.errors import BadRequest
from bullpen.kit import durations, times

EVENTS = (
    "lease.requested",
    "lease.refused",
    "lease.assigned",
    "lease.ended",
    "exporter.online",
    "exporter.offline",
    "exporter.stuck",
)

SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN = 24
"""As the specification demands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A receiver, and what it is told."""

    name: str
    url: str
    secret: tuple[str, str]
    """Namespace and name of the Secret with the signing key, under ``key``."""

    events: frozenset[str] = frozenset(EVENTS)
    namespaces: frozenset[str] = frozenset()
    """Empty for all."""

    def wants(self, notification: Notification) -> bool:
        here = not self.namespaces or notification.namespace in self.namespaces
        return here and notification.event in self.events


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something that happened."""

    event: str
    namespace: str
    subject: str
    """The object, as ``leases/NAME``."""

    data: Mapping[str, str] = field(default_factory=dict)


def lease_notifications(
    old: Lease | None, new: Lease | None, *, since: datetime
) -> Iterator[Notification]:
    """What a change of a lease tells; ``since`` is when telling began."""
    if new is None:
        return
    told = {"client": lifecycle.holder(new), "selector": str(new.spec.selector.selector())}
    for figure in figures(old, new, since=since):
        match figure:
            case Requested():
                yield _of_lease(new, "lease.requested", told)
            case Refused(reason=reason):
                yield _of_lease(new, "lease.refused", {**told, "reason": reason})
            case Assigned(exporter=exporter, waited=waited):
                more = {"exporter": exporter, "waited": durations.text(waited)}
                yield _of_lease(new, "lease.assigned", {**told, **more})
            case Ended(reason=reason, held=held):
                more = {"reason": reason, "held": durations.text(held) if held else ""}
                ref = new.status.exporter_ref
                more["exporter"] = ref.name if ref is not None else ""
                yield _of_lease(new, "lease.ended", {**told, **more})
            case _:
                assert_never(figure)


def exporter_notifications(old: Exporter | None, new: Exporter | None) -> Iterator[Notification]:
    """What a change of an exporter tells; nothing when it is seen for the first time."""
    if old is None or new is None:
        return
    if presence.online(old) != presence.online(new):
        state = "online" if presence.online(new) else "offline"
        yield _of_exporter(new, f"exporter.{state}", "Online")
    if presence.stuck(new) and not presence.stuck(old):
        yield _of_exporter(new, "exporter.stuck", "Stuck")


def _of_lease(lease: Lease, event: str, data: Mapping[str, str]) -> Notification:
    meta = lease.metadata
    return Notification(
        event=event, namespace=meta.namespace, subject=f"leases/{meta.name}", data=data
    )


def _of_exporter(exporter: Exporter, event: str, condition: str) -> Notification:
    meta, ref = exporter.metadata, exporter.status.lease_ref
    said = conditions.get(exporter.status.conditions, condition)
    return Notification(
        event=event,
        namespace=meta.namespace,
        subject=f"exporters/{meta.name}",
        data={
            "lease": ref.name if ref is not None else "",
            "message": said.message if said is not None else "",
        },
    )


def cloud_event(found: Notification, *, id: str, time: datetime) -> dict[str, object]:
    """The message as a CloudEvent."""
    return {
        "specversion": "1.0",
        "id": id,
        "source": f"bullpen/{found.namespace}",
        "type": f"dev.bullpen.{found.event}",
        "subject": found.subject,
        "time": times.text(time),
        "datacontenttype": "application/json",
        "data": dict(found.data),
    }


def signing_key(written: bytes) -> bytes:
    """The key in a Secret: random bytes in base64, perhaps after ``whsec_``."""
    text = written.decode("ascii", errors="replace").strip().removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        raise BadRequest("the key must be base64, such as of `openssl rand -base64 32`") from None
    if len(key) < SECRET_BYTES_MIN:
        raise BadRequest(f"the key must have at least {SECRET_BYTES_MIN} bytes")
    return key


def signed_headers(key: bytes, body: bytes, *, id: str, time: datetime) -> dict[str, str]:
    """The headers that prove where a message comes from, and when it was sent."""
    seconds = str(int(time.timestamp()))
    content = f"{id}.{seconds}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{signature}",
    }
