"""One pass over the waiting claims of a namespace: its decisions, and how much work they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceRequest, ExactRequest
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import LocalObjectReference
from bullpen.core.claims import claim_indexes
from bullpen.core.claims.claim_indexes import ClaimIndexes
from bullpen.core.claims.claim_lab import ClaimLab, Hold, Serve
from bullpen.core.claims.claim_lifecycle import leases_for
from bullpen.core.claims.claim_pass import decide_claims
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases.access import Policies
from bullpen.core.leases.quotas import Quotas

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANYWHERE = (DeviceRequest(name="dut", exactly=ExactRequest(device_class_name="any")),)


def exporter(number: int, **labels: str) -> Exporter:
    name = f"e{number}"
    meta = {"name": name, "namespace": "lab", "uid": name, "labels": labels}
    registered = {
        "type": "Registered",
        "status": "True",
        "reason": "Register",
        "message": "",
        "lastTransitionTime": "2029-12-31T00:00:00Z",
    }
    return codec.decode(Exporter, {"metadata": meta, "status": {"conditions": [registered]}})


def claim(number: int, site: str, count: int = 1) -> DeviceClaim:
    meta = {
        "name": f"c{number:03}",
        "namespace": "lab",
        "uid": f"c{number}",
        "creationTimestamp": "2029-12-31T00:00:00Z",
    }
    exactly: dict[str, Any] = {
        "deviceClassName": "any",
        "count": count,
        "selectors": [{"labels": {"matchLabels": {"site": site}}}],
    }
    spec = {
        "clientRef": {"name": "alice"},
        "duration": "1h",
        "requests": [{"name": "dut", "exactly": exactly}],
    }
    return codec.decode(DeviceClaim, {"metadata": meta, "spec": spec})


def lab(exporters: list[Exporter], claims: list[DeviceClaim]) -> ClaimLab:
    everything = {"matchExpressions": [{"key": "no-such", "operator": "DoesNotExist"}]}
    document = {"metadata": {"name": "any"}, "spec": {"selectors": [{"labels": everything}]}}
    return ClaimLab(
        claims=tuple(claims),
        clients={"alice": {}},
        exporters=tuple(exporters),
        offers=OfferIndex(Offer(name=e.metadata.name, labels={}) for e in exporters),
        leases=(),
        classes=(codec.decode(DeviceClass, document),),
        pools=(),
        policies=Policies(),
        quotas=Quotas(),
        active={},
    )


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the indexes that were made."""
    made: list[int] = []

    class Counted(InventoryIndex):
        def __init__(self, inventory: Any) -> None:
            made.append(len(inventory.devices))
            super().__init__(inventory)

    monkeypatch.setattr(claim_indexes, "InventoryIndex", Counted)
    return made


def test_claims_that_cannot_be_served_cost_no_index_each(indexed: list[int]) -> None:
    exporters = [exporter(number, site="brno") for number in range(20)]
    found = decide_claims(lab(exporters, [claim(n, "mars") for n in range(50)]), now=NOW)
    assert all(isinstance(decision, Hold) for decision in found)
    assert len(indexed) == 2, "the exporters as they are, and as if all were connected"


def test_a_pass_takes_over_the_indexes_of_the_last(indexed: list[int]) -> None:
    exporters = [exporter(number, site="brno") for number in range(20)]
    claims = [claim(0, "brno", 30), *(claim(n, "mars") for n in range(1, 20))]
    indexes = ClaimIndexes()
    first = decide_claims(lab(exporters, claims), now=NOW, indexes=indexes)
    before = len(indexed)
    later = NOW + timedelta(minutes=1)
    again = decide_claims(lab(exporters, claims), now=later, indexes=indexes)
    assert len(indexed) == before
    assert again
    assert [d.claim for d in again if isinstance(d, Hold | Serve)] == [
        d.claim for d in first if isinstance(d, Hold | Serve)
    ]


def test_what_changed_is_seen_although_indexes_are_kept() -> None:
    exporters = [exporter(0, site="brno"), exporter(1, site="prague")]
    wanted = [claim(0, "brno", 2)]
    indexes = ClaimIndexes()
    assert isinstance(decide_claims(lab(exporters, wanted), now=NOW, indexes=indexes)[0], Hold)
    moved = [exporters[0], exporter(1, site="brno")]
    served = decide_claims(lab(moved, wanted), now=NOW, indexes=indexes)[0]
    assert isinstance(served, Serve)
    assert [member.device for member in served.answer.members] == ["e0", "e1"]
    locked = replace(lab(moved, wanted), policies=Policies(enforced=True))
    assert isinstance(decide_claims(locked, now=NOW, indexes=indexes)[0], Hold), "policies too"


def test_a_claim_is_told_which_claim_of_the_same_pass_gets_what_it_needs() -> None:
    exporters = [exporter(0, site="brno")]
    waiting = [claim(0, "brno"), claim(1, "brno")]
    first, second = decide_claims(lab(exporters, waiting), now=NOW)
    assert isinstance(first, Serve)
    assert isinstance(second, Hold)
    assert second.message == "dut needs 1, no free device qualifies; claim c000 has e0"


@pytest.mark.parametrize("named", [False, True], ids=["not idle yet", "still named"])
def test_an_exporter_that_is_becoming_free_is_counted_on(named: bool) -> None:
    """Found by the simulator: for a moment nothing was kept, and a short lease came in between."""
    settling, free = exporter(0, site="brno"), exporter(1, site="brno")
    if named:
        ended = LocalObjectReference(name="ended")
        settling = replace(settling, status=replace(settling.status, lease_ref=ended))
    found = lab([settling, free], [claim(0, "brno", 2)])
    offers = [Offer(name="e0", labels={}, idle=named), Offer(name="e1", labels={})]
    (hold,) = decide_claims(replace(found, offers=OfferIndex(offers)), now=NOW)
    assert isinstance(hold, Hold)
    assert hold.kept == ("e0", "e1")
    assert hold.starts is not None
    assert hold.starts - NOW <= timedelta(seconds=1)


def test_a_claim_keeps_what_its_leases_ask_for_already() -> None:
    """What others want has changed since. Its leases would be withdrawn, for nothing."""
    exporters = [exporter(0, site="brno"), exporter(1, site="prague")]
    first, second = claim(0, "brno"), claim(1, "brno")
    either = replace(first, spec=replace(first.spec, requests=ANYWHERE))
    alone = lab(exporters, [either])
    (served,) = decide_claims(alone, now=NOW)
    assert isinstance(served, Serve)
    assert served.answer.devices == ("e0",)
    waiting = replace(alone, claims=(either, second))
    moved, _ = decide_claims(waiting, now=NOW)
    assert isinstance(moved, Serve)
    assert moved.answer.devices == ("e1",), "the other claim needs the first exporter"
    begun = replace(waiting, leases=leases_for(either, served.answer))
    kept, _ = decide_claims(begun, now=NOW)
    assert isinstance(kept, Serve)
    assert kept.answer.devices == ("e0",)
