"""The safety promises, each as a checker of every committed change.

They read raw documents and determine themselves what an active lease or a member is. Each
accepts any history, so that a test can show that it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from bullpen.sim.truth import Fact, Raw, is_active, status, uid_of

SINGLE_USE = "exporterset.jumpstarter.dev/single-use"
ENDED = "jumpstarter.dev/lease-ended"
GROUP_SIZE = "device.jumpstarter.dev/leases"
"""Annotation of a claim's lease: how many leases the claim has."""

T = TypeVar("T")


class OneLeaseEach:
    """An exporter has at most one active lease, at any revision."""

    promise = "one active lease per exporter"

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], dict[str, None]] = {}

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not _is_ours(fact):
            return
        if is_active(fact.old):
            self._of(fact.namespace, fact.old).pop(fact.name, None)
        if is_active(fact.new):
            holders = self._of(fact.namespace, fact.new)
            holders[fact.name] = None
            if len(holders) > 1:
                exporter = status(fact.new)["exporterRef"]["name"]
                yield f"exporter {exporter} is held by {' and '.join(holders)}"

    def _of(self, namespace: str, lease: Raw | None) -> dict[str, None]:
        exporter = status(lease)["exporterRef"]["name"]
        return self._holders.setdefault((namespace, exporter), {})


class EndedStaysEnded:
    """An ended lease never becomes active again."""

    promise = "an ended lease stays ended"

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not _is_ours(fact) or not status(fact.old).get("ended"):
            return
        if fact.new is None or uid_of(fact.new) != uid_of(fact.old):
            return
        if not status(fact.new).get("ended"):
            yield f"lease {fact.name} had ended and goes on"
        for field in ("exporterRef", "endTime"):
            if status(fact.new).get(field) != status(fact.old).get(field):
                yield f"lease {fact.name} had ended and got another {field}"


class OnlyEndedAreLabelled:
    """A lease is labelled as ended after its status says so: every view leaves it out then."""

    promise = "only ended leases are labelled as ended"

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not _is_ours(fact) or fact.new is None:
            return
        labels = fact.new["metadata"].get("labels") or {}
        if ENDED in labels and not status(fact.new).get("ended"):
            yield f"lease {fact.name} is labelled as ended and goes on"


class BookedBegins:
    """A lease that is booked for later gets no exporter before."""

    promise = "a booked lease begins at its time"

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not _is_ours(fact):
            return
        if is_active(fact.old) or not is_active(fact.new):
            return
        assert fact.new is not None
        booked, began = fact.new["spec"].get("beginTime"), status(fact.new)["beginTime"]
        if booked and datetime.fromisoformat(began) < datetime.fromisoformat(booked):
            yield f"lease {fact.name} began at {began}, before {booked}"


class LeasesAreKept:
    """A lease is deleted only after it has ended, or when an operator deletes it.

    A claim withdraws leases that never had an exporter.
    """

    promise = "an acknowledged lease is never lost"

    def __init__(self, deleted: Callable[[str], bool]) -> None:
        self._deleted = deleted
        """Whether an operator asked for the deletion of the lease with this uid."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not _is_ours(fact) or fact.new is not None:
            return
        if claim_of(fact.old) and not status(fact.old).get("exporterRef"):
            return
        if not status(fact.old).get("ended") and not self._deleted(uid_of(fact.old)):
            yield f"lease {fact.name} is gone and had not ended"


class EndsHaveReasons:
    """A lease does not end for the lack of an object that still exists."""

    promise = "a lease ends for a reason that is true"

    def __init__(self, get: Callable[[str, str, str], Raw | None]) -> None:
        self._get = get
        """The durable object, by kind, namespace and name."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Lease" or not is_active(fact.old) or not status(fact.new).get("ended"):
            return
        ready = [c for c in status(fact.new).get("conditions") or () if c["type"] == "Ready"]
        reason = ready[0]["reason"] if ready else ""
        if reason in ("ExporterRemoved", "ExporterTaken"):
            name = status(fact.old)["exporterRef"]["name"]
            if status(self._get("Exporter", fact.namespace, name)).get("leaseUid") == uid_of(
                fact.new
            ):
                yield f"lease {fact.name} lost exporter {name}, which was still its own"
        if reason == "ClientRemoved":
            name = fact.last["spec"]["clientRef"]["name"]
            if self._get("Client", fact.namespace, name) is not None:
                yield f"lease {fact.name} ended for want of client {name}, who is there"


class EpochsGrow:
    """Every lease of an exporter has a higher epoch than the one before."""

    promise = "epochs grow"

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Exporter" or fact.old is None or fact.new is None:
            return
        if uid_of(fact.old) != uid_of(fact.new):
            return
        before, after = status(fact.old), status(fact.new)
        old, new = before.get("leaseEpoch", 0), after.get("leaseEpoch", 0)
        if new < old:
            yield f"the epoch of {fact.name} fell from {old} to {new}"
        taken = after.get("leaseUid") and after.get("leaseUid") != before.get("leaseUid")
        if taken and before.get("leaseUid"):
            yield f"exporter {fact.name} went from one lease to another without being free"


class OneLeasePerLife:
    """An ExitAndReplace instance serves one lease in its lifetime."""

    promise = "a single-use target serves one lease"

    def __init__(self) -> None:
        self._served: dict[str, str] = {}

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Exporter" or fact.new is None:
            return
        if SINGLE_USE not in (fact.new["metadata"].get("annotations") or {}):
            return
        lease = status(fact.new).get("leaseUid")
        if lease and self._served.setdefault(uid_of(fact.new), lease) != lease:
            yield f"exporter {fact.name} is given a second lease"


class CeilingHolds:
    """A pool never exceeds its ceiling, including draining members."""

    promise = "a pool stays below its ceiling"

    def __init__(self, known: Callable[[], float]) -> None:
        self._known = known
        """The time up to which all processes know what happened.

        A process may still use a ceiling that was lowered later.
        """

        self._ceilings: dict[str, tuple[str, list[tuple[float, int]]]] = {}
        """By uid of the set, its name and the history of its ceilings."""

        self._members: dict[str, dict[str, None]] = {}

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind == "ExporterSet" and fact.new is not None:
            ceiling = fact.new["spec"].get("maxReplicas", 4)
            _, known = self._ceilings.setdefault(uid_of(fact.new), (fact.name, []))
            if not known or known[-1][1] != ceiling:
                known.append((fact.at, ceiling))
        if fact.kind == "Exporter":
            yield from self._count(fact)

    def _count(self, fact: Fact) -> Iterator[str]:
        owner = _owner(fact.last)
        members = self._members.setdefault(owner, {})
        if fact.new is None:
            members.pop(uid_of(fact.last), None)
        elif owner and uid_of(fact.new) not in members:
            members[uid_of(fact.new)] = None
            name, ceiling = self._ceiling(owner)
            if ceiling and len(members) > ceiling:
                yield f"{fact.name} makes {len(members)} members of {name}, at most {ceiling}"

    def _ceiling(self, owner: str) -> tuple[str, int]:
        """The highest ceiling that a process may still use; 0 for none."""
        name, known = self._ceilings.get(owner, ("", []))
        found = believed(known, self._known())
        return name, 0 if 0 in found else max(found, default=0)


def believed(history: Sequence[tuple[float, T]], known_until: float) -> list[T]:
    """The values of a field that a process may still act on, from their times."""
    return [
        value
        for number, (_, value) in enumerate(history)
        if number + 1 == len(history) or history[number + 1][0] > known_until
    ]


class ObjectsComeToRest:
    """No object is written over and over, as two conflicting controllers would."""

    promise = "the lab comes to rest"

    WINDOW, CHANGES_MAX = 10.0, 200

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When counting began, and the number of changes since."""

    def see(self, fact: Fact) -> Iterator[str]:
        where = (fact.kind, fact.namespace, fact.name)
        since, count = self._since.get(where, (fact.at, 0))
        if fact.at > since + self.WINDOW:
            since, count = fact.at, 0
        self._since[where] = (since, count + 1)
        if count + 1 == self.CHANGES_MAX:
            yield f"{fact.kind} {fact.name} changed {count + 1} times in {fact.at - since:.1f} s"


class LeasesKeepTheirExporters:
    """An exporter is held for as long as its lease is active."""

    promise = "a lease keeps its exporter"

    def __init__(self, lease: Callable[[str, str], Raw | None]) -> None:
        self._lease = lease

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Exporter" or uid_of(fact.old) != uid_of(fact.new):
            return
        held = status(fact.old).get("leaseUid")
        if not held or status(fact.new).get("leaseUid") == held:
            return
        name = status(fact.old)["leaseRef"]["name"]
        lease = self._lease(fact.namespace, name)
        if not is_active(lease) or uid_of(lease) != held:
            return
        # If an assignment was started twice, one half of it remains.
        if status(lease)["exporterRef"]["name"] == fact.name:
            yield f"{fact.name} was taken from lease {name}, which goes on"


class LeasedMembersStay:
    """A leased member is never removed by scale-down."""

    promise = "a leased member is not removed"

    def __init__(
        self,
        lease: Callable[[str, str], Raw | None],
        excused: Callable[[Fact], bool],
    ) -> None:
        self._lease = lease
        self._excused = excused
        """Whether there is another reason: its machine died, or an operator deleted it."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "Exporter" or not _is_virtual(fact.old) or not removed(fact):
            return
        held = (status(fact.old).get("leaseRef") or {}).get("name", "")
        if is_active(self._lease(fact.namespace, held)) and not self._excused(fact):
            yield f"{fact.name} was removed while lease {held} had it"


def removed(fact: Fact) -> bool:
    """Whether the change deletes an object, or marks it as deleted."""
    if fact.old is None or fact.old["metadata"].get("deletionTimestamp"):
        return False
    return fact.new is None or bool(fact.new["metadata"].get("deletionTimestamp"))


def _is_virtual(document: Raw | None) -> bool:
    owners = (document or {}).get("metadata", {}).get("ownerReferences") or ()
    return any(owner.get("kind") in ("ExporterSet", "VirtualTarget") for owner in owners)


class ClaimsAreWhole:
    """The first lease of a claim gets its exporter only after exporters were taken for all.

    With two controllers at once, one of them may have freed an exporter again that the other had
    taken, which is repaired or costs the claim a member; and there may be leases too many.
    """

    promise = "a claim has all of its targets or none"

    def __init__(self, all_of: Callable[[str], Iterator[Raw]]) -> None:
        self._all = all_of
        """All durable objects of a kind."""

        self._taken: set[str] = set()
        """Uids of the leases for which an exporter was taken."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind == "Exporter" and status(fact.new).get("leaseUid"):
            self._taken.add(status(fact.new)["leaseUid"])
        if fact.kind != "Lease" or is_active(fact.old) or not is_active(fact.new):
            return
        claim = claim_of(fact.new)
        if not claim:
            return
        leases = [x for x in self._all("Lease") if claim_of(x) == claim]
        others = [x for x in leases if uid_of(x) != uid_of(fact.new)]
        if any(status(lease).get("exporterRef") for lease in others):
            return
        size = int(fact.last["metadata"]["annotations"][GROUP_SIZE])
        missing = [x for x in others if uid_of(x) not in self._taken]
        if len(missing) > len(leases) - size:
            held = len(leases) - len(missing)
            yield f"{fact.name} got its exporter, and {held} of {size} exporters were taken"


class AllocatedIsTrue:
    """A claim that says it has its targets names leases that got these exporters."""

    promise = "an allocated claim has its leases"

    def __init__(self, lease: Callable[[str, str], Raw | None]) -> None:
        self._lease = lease

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "DeviceClaim" or is_allocated(fact.old) or not is_allocated(fact.new):
            return
        members = status(fact.new).get("members") or ()
        if not members:
            yield f"claim {fact.name} has no member"
        for member in members:
            if "leaseRef" not in member:
                continue
            lease = self._lease(fact.namespace, member["leaseRef"]["name"])
            got = (status(lease).get("exporterRef") or {}).get("name", "")
            if got != member["device"]:
                name = member["leaseRef"]["name"]
                yield f"claim {fact.name} has {member['device']}, and its lease {name} {got or '-'}"


class CountersSuffice:
    """Claims together never have more of a DevicePool than its counters allow."""

    promise = "no counter is used twice"

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "DevicePool" or fact.new is None:
            return
        spec, left = fact.new["spec"], dict(fact.new["spec"].get("sharedCounters") or {})
        draws = {d["name"]: d.get("consumesCounters") or {} for d in spec.get("devices") or ()}
        users: dict[str, str] = {}
        for allocation in status(fact.new).get("allocations") or ():
            device, claim = allocation["device"], allocation["claim"]
            if device in users:
                yield f"{device} of {fact.name} is used by {users[device]} and {claim}"
            users[device] = claim
            for counter, drawn in draws.get(device, {}).items():
                left[counter] -= drawn
        for counter, remaining in left.items():
            if remaining < 0:
                yield f"{', '.join(users.values())} overdraw {counter} of {fact.name}"


class PoolDevicesAreHeld:
    """A claim that says it has devices of a DevicePool has had them.

    With two controllers at once, one of them may have given up what the other had taken, which
    costs the claim a member; then the claim ends.
    """

    promise = "an allocated claim has its devices of pools"

    def __init__(self) -> None:
        self._taken: set[tuple[str, str]] = set()
        """Uids of claims, and devices that pools recorded as theirs."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind == "DevicePool":
            for allocation in status(fact.new).get("allocations") or ():
                device = f"{fact.name}/{allocation['device']}"
                self._taken.add((allocation["claimUid"], device))
        if fact.kind != "DeviceClaim" or is_allocated(fact.old) or not is_allocated(fact.new):
            return
        for member in status(fact.new).get("members") or ():
            if "leaseRef" not in member and (uid_of(fact.new), member["device"]) not in self._taken:
                yield f"claim {fact.name} has {member['device']}, and its pool never said so"


def claim_of(lease: Raw | None) -> str:
    """The uid of the claim that owns a lease; empty for none."""
    owners = ((lease or {}).get("metadata") or {}).get("ownerReferences") or ()
    return next((str(o["uid"]) for o in owners if o.get("kind") == "DeviceClaim"), "")


def is_allocated(claim: Raw | None) -> bool:
    """Whether a claim says that it has all its targets."""
    said = status(claim).get("conditions") or ()
    return any(c["type"] == "Allocated" and c["status"] == "True" for c in said)


def _is_ours(fact: Fact) -> bool:
    """Leases of the lab, not those of coordination."""
    return str(fact.last.get("apiVersion", "")).startswith("jumpstarter.dev/")


def _owner(document: Raw) -> str:
    """Uid of the set that controls an exporter; empty for none."""
    owners = document["metadata"].get("ownerReferences") or ()
    return next((str(o["uid"]) for o in owners if o.get("kind") == "ExporterSet"), "")
