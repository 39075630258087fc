"""Checks what was acknowledged against a small model of leases and the raw documents.

The model: an acknowledged lease exists until it has ended; an acknowledged release is never
lost; a token is issued only to the holder of an active lease.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from bullpen.api.kinds.lease import Lease
from bullpen.sim.truth import Fact, Raw, Truth, Violation, is_active, status, uid_of


@dataclass(slots=True)
class _Model:
    """What is known about one lease."""

    uid: str
    released: bool = False
    exporter: str = ""


class History:
    def __init__(
        self,
        truth: Truth,
        time: Callable[[], float],
        broken: Callable[[Violation], None],
        *,
        last_seen: Callable[[], float],
        slack: float,
    ) -> None:
        """``last_seen``: the oldest time whose state a process that hung or was cut off may use."""
        self.slack = slack
        """Seconds for which the end of a lease may remain unnoticed."""

        self._last_seen = last_seen

        self.count = 0
        self._truth = truth
        self._time = time
        self._broken = broken
        self._leases: dict[tuple[str, str], _Model] = {}
        self._born: dict[str, float] = {}
        self._served: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._joined: dict[str, int] = {}
        self._holders: dict[tuple[str, str], str] = {}

    def holder(self, namespace: str, name: str) -> str:
        """The client of a lease, or its last client if it was deleted."""
        return self._holders.get((namespace, name), "")

    # Reported by players

    def created(self, namespace: str, name: str, uid: str) -> None:
        """A lease was acknowledged."""
        self.count += 1
        self._leases[namespace, name] = _Model(uid)
        if self._uid(namespace, name) != uid and uid not in self._ended:
            self._break("an acknowledged write is durable", f"lease {name} is not on disk")

    def seen(self, lease: Lease) -> None:
        """A client read its lease."""
        ref = lease.status.exporter_ref
        known = self._leases.get((lease.metadata.namespace, lease.metadata.name))
        if ref is None or known is None:
            return
        if known.exporter and known.exporter != ref.name:
            text = f"lease {lease.metadata.name} moved from {known.exporter} to {ref.name}"
            self._break("a lease keeps its exporter", text)
        known.exporter = ref.name

    def released(self, namespace: str, name: str) -> None:
        known = self._leases.get((namespace, name))
        if known is not None:
            known.released = True
            self._check_released(namespace, name, known)

    def extended(self, namespace: str, name: str, duration: timedelta) -> None:
        lease = self._truth.get("Lease", namespace, name)
        said = f"{int(duration.total_seconds())}s"
        if lease is not None and _seconds(lease) != duration.total_seconds():
            text = f"lease {name} was extended to {said}, not {lease['spec'].get('duration')}"
            self._break("an acknowledged write is durable", text)

    def handed(self, namespace: str, name: str, client: str) -> None:
        lease = self._truth.get("Lease", namespace, name)
        if lease is not None and lease["spec"]["clientRef"]["name"] != client:
            self._break("an acknowledged write is durable", f"lease {name} is not {client}'s")

    def minted(self, namespace: str, client: str, name: str, token: str) -> None:
        """A client was given a token for a stream."""
        lease = self._truth.get("Lease", namespace, name)
        claims = _claims(token)
        promise = "a dial token is minted for the holder of an active lease"
        if lease is None:
            if self._late(str(claims["lease"]), self._last_seen()):
                self._break(promise, f"there is no lease {name}")
            return
        if lease["metadata"]["uid"] != claims["lease"]:
            self._break(promise, f"the token is not for lease {name}")
        if not is_active(lease) and self._late(str(claims["lease"]), self._last_seen()):
            self._break(promise, f"lease {name} is not active")
        holder = status(lease).get("clientRef", {}).get("name", client)
        current = claims["epoch"] == status(lease).get("epoch")
        if current and holder != client:
            self._break(promise, f"lease {name} is {holder}'s, not {client}'s")

    def joined(self, stream: str) -> None:
        """Two sides were paired."""
        self._joined[stream] = self._joined.get(stream, 0) + 1
        if self._joined[stream] > 1:
            self._break("a token pairs once", f"stream {stream} was joined twice")

    def admitted(self, lease: str, when: str) -> None:
        """A token opened a stream that it must not open."""
        self._break("a token pairs once", f"a token of lease {lease} was let in {when}")

    def heard_end(self, namespace: str, exporter: str, name: str, uid: str) -> None:
        """An exporter was told that its lease ended."""
        lease = self._truth.get("Lease", namespace, name)
        held_by = status(self._truth.get("Exporter", namespace, exporter)).get("leaseUid")
        if is_active(lease) and uid_of(lease) == held_by == uid:
            text = f"{exporter} heard that lease {name} is over, which goes on"
            self._break("an exporter hears of an end when there is one", text)

    def committed(self, fact: Fact) -> None:
        """A lease was written."""
        uid = fact.last["metadata"]["uid"]
        holder = fact.last["spec"].get("clientRef", {}).get("name", "")
        self._holders[fact.namespace, fact.name] = holder
        self._born.setdefault(uid, fact.at)
        if is_active(fact.new):
            self._served.setdefault(uid, fact.at)
        if fact.new is None or status(fact.new).get("ended"):
            self._ended.setdefault(uid, fact.at)

    def served(self, namespace: str, name: str) -> float | None:
        """When a lease got its exporter; None if it has none."""
        known = self._leases.get((namespace, name))
        return self._served.get(known.uid) if known is not None else None

    def waited(self, namespace: str, name: str) -> float | None:
        """Seconds from the write of a lease to its assignment; None if it has no exporter."""
        known = self._leases.get((namespace, name))
        if known is None or known.uid not in self._served:
            return None
        return self._served[known.uid] - self._born[known.uid]

    def streams(self, leases: list[str], *, reachable_since: float = 0.0) -> None:
        """These leases have open streams.

        ``reachable_since``: a router learns of no end while the API is down, so an end from before
        counts from when the API answered again.
        """
        for uid in leases:
            ended = self._ended.get(uid)
            if ended is not None and self._time() - max(ended, reachable_since) > self.slack:
                self._break("streams are cut when their lease ends", f"lease uid {uid}")

    # Checks in hindsight

    def check(self) -> None:
        """Check that everything that was acknowledged still holds."""
        for (namespace, name), known in self._leases.items():
            if known.released:
                self._check_released(namespace, name, known)

    def _check_released(self, namespace: str, name: str, known: _Model) -> None:
        lease = self._truth.get("Lease", namespace, name)
        if lease is None or self._uid(namespace, name) != known.uid:
            return
        if not lease["spec"].get("release") and not status(lease).get("ended"):
            self._break("an acknowledged write is durable", f"the release of {name} is lost")

    def _uid(self, namespace: str, name: str) -> str:
        found = self._truth.get("Lease", namespace, name)
        return str(found["metadata"]["uid"]) if found is not None else ""

    def _late(self, uid: str, known: float) -> bool:
        """Whether what is known at ``known`` includes the end of a lease."""
        ended = self._ended.get(uid)
        return ended is not None and known - ended > self.slack

    def _break(self, promise: str, message: str) -> None:
        self._broken(Violation(promise, message, self._time()))


def _claims(token: str) -> Raw:
    payload = token.split(".")[1]
    claims: Raw = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def _seconds(lease: Raw) -> float:
    """A Go duration such as ``1h2m3s``, in seconds."""
    total, number = 0.0, ""
    for letter in str(lease["spec"].get("duration", "")):
        if letter in "hms":
            total += float(number) * {"h": 3600, "m": 60, "s": 1}[letter]
            number = ""
        else:
            number += letter
    return total
