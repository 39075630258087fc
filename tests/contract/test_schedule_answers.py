"""What ``bullpen schedule`` answers is right.

It is compared with a search of everything, and with what the command answers when it is asked
again: at the time that it named, or with the change that it said would help.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bullpen.api.paths import Document
from bullpen.core.claims.claim import Alternative, Constraint, Request, Terms
from bullpen.core.claims.inventory import Amounts, Inventory, InventoryDevice
from bullpen.kit import times
from support.claim_reference import brute_force, random_instance
from support.schedule_files import (
    DEVICE,
    NOW,
    answer,
    ask,
    claim,
    exporter,
    lease,
    made,
    why_not,
    written,
)

INSTANCES = 100
EVERY_CLASS = made(
    DEVICE,
    "DeviceClass",
    "any",
    {"selectors": [{"labels": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}}]},
)
CLIENT = made("jumpstarter.dev/v1alpha1", "Client", "alice", {})


def without_machines(inventory: Inventory) -> Inventory:
    """The instance with nothing but devices of DevicePools, which run; counters are of one pool."""
    one_pool = bool(inventory.counters)
    devices = tuple(
        replace(d, start=timedelta(0), blocked="", pool="p0" if one_pool else d.pool)
        for d in inventory.devices
    )
    return replace(inventory, devices=devices)


def pools(inventory: Inventory) -> Iterator[Document]:
    for name in sorted({device.pool for device in inventory.devices}):
        mine = [device for device in inventory.devices if device.pool == name]
        used = [
            {
                "device": use.device,
                "claim": "other",
                "claimUid": "other",
                "request": "r",
                "members": 1,
                "share": dict(use.share or ()),
            }
            for use in inventory.uses
            if use.device in {device.name for device in mine}
        ]
        spec: Document = {"devices": [pool_device(device) for device in mine]}
        if inventory.counters:
            spec["sharedCounters"] = dict(inventory.counters)
        if name in inventory.incomplete:
            spec["incomplete"] = True
        yield made(DEVICE, "DevicePool", name, spec, status={"allocations": used})


def pool_device(device: InventoryDevice) -> Document:
    return {
        "name": device.name,
        "attributes": {
            name: {"strings": list(value)} if isinstance(value, tuple) else {"string": value}
            for name, value in device.attributes.items()
        },
        "capacity": dict(device.capacity),
        "consumesCounters": dict(device.draws),
        "taints": [{"key": taint.key, "effect": str(taint.effect)} for taint in device.taints],
        "allowMultipleAllocations": device.shareable,
    }


def asked(terms: Terms) -> Document:
    return claim(
        *(requested(request) for request in terms.requests),
        constraints=[constrained(constraint) for constraint in terms.constraints],
    )


def requested(request: Request) -> Document:
    forms = [{"name": a.name, **form(a)} for a in request.alternatives]
    return {"name": request.name, "firstAvailable": forms}


def form(alternative: Alternative) -> Document:
    cel = [{"cel": {"expression": e.text}} for e in alternative.criteria.expressions]
    found: Document = {"deviceClassName": "any", "selectors": cel, "count": alternative.count}
    if alternative.every:
        found |= {"allocationMode": "All", "count": 1}
    if alternative.totals:
        found["maxCount"] = max(alternative.count, alternative.count_max)
    found |= {"capacity": amounts(alternative.capacity), "totals": amounts(alternative.totals)}
    found["tolerations"] = [
        {"key": toleration.key, "operator": "Exists"} for toleration in alternative.tolerations
    ]
    return found


def amounts(found: Amounts) -> Document:
    return dict(found)


def constrained(constraint: Constraint) -> Document:
    kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
    found: Document = {kind: constraint.attribute, "prefer": constraint.prefer}
    if constraint.requests:
        found["requests"] = list(constraint.requests)
    return found


def valid_names(terms: Terms) -> bool:
    known = {r.name for r in terms.requests}
    known |= {f"{r.name}/{a.name}" for r in terms.requests for a in r.alternatives}
    return all(set(c.requests) <= known for c in terms.constraints)


@pytest.mark.parametrize("part", range(3))
def test_a_claim_gets_the_first_alternatives_that_a_search_of_everything_finds(
    tmp_path: Path, part: int
) -> None:
    codes = []
    for seed in range(part * INSTANCES, (part + 1) * INSTANCES):
        inventory, terms = random_instance(random.Random(seed))
        inventory = without_machines(inventory)
        if not valid_names(terms):
            continue
        found = written(tmp_path / "lab.yaml", CLIENT, EVERY_CLASS, *pools(inventory), at=NOW)
        code, row = answer(found, asked(terms))
        codes.append(code)
        expected = brute_force(inventory, terms)
        assert (code == 0) == (expected is not None), seed
        if expected is None:
            assert row["members"] == [], seed
            continue
        mine = {
            r.name: [m for m in row["members"] if m["request"] == r.name] for r in terms.requests
        }
        got = tuple((members[0]["alternative"], len(members)) for members in mine.values())
        assert got == expected.choices, seed
    # Both answers must occur often, or the comparison would show little.
    assert codes.count(0) > len(codes) / 6
    assert len(codes) - codes.count(0) > len(codes) / 6


def boards(source: random.Random) -> tuple[list[Document], list[Document]]:
    """A few boards at sites, and leases of some of them for one to five hours."""
    sites = ("brno", "prague", "ostrava")
    found = [
        exporter(f"b{n}", kind=source.choice("ab"), site=source.choice(sites))
        for n in range(source.randint(2, 6))
    ]
    held = [board["metadata"]["name"] for board in found if source.random() < 0.6]
    return found, [lease(f"l-{name}", name, source.randint(1, 5)) for name in held]


def wanted(source: random.Random) -> Document:
    requests = [
        {
            "name": f"r{n}",
            "exactly": {
                "deviceClassName": "any",
                "count": source.choice((1, 1, 2)),
                "selectors": [{"labels": {"matchLabels": {"kind": source.choice("ab")}}}],
            },
        }
        for n in range(source.randint(1, 2))
    ]
    constraints = source.choice(
        (
            [],
            [{"matchAttribute": "site"}],
            [{"distinctAttribute": "site"}],
            [{"matchAttribute": "kind"}],
        )
    )
    return claim(*requests, constraints=constraints)


def at_hour(hours: int) -> str:
    return times.text(times.parse(NOW) + timedelta(hours=hours))


@pytest.mark.parametrize("part", range(3))
def test_the_start_is_the_first_moment_at_which_the_answer_is_now(
    tmp_path: Path, part: int
) -> None:
    later = never = 0
    for seed in range(part * 40, part * 40 + 40):
        source = random.Random(seed)
        found, leases = boards(source)
        lab = written(tmp_path / "lab.yaml", CLIENT, EVERY_CLASS, *found, *leases, at=NOW)
        one = wanted(source)
        code, row = answer(lab, one)
        now = {h: answer(lab, one, "--at", at_hour(h))[0] == 0 for h in range(6)}
        first = next((at_hour(h) for h in sorted(now) if now[h]), None)
        assert row["starts"] == first, seed
        assert code == (0 if now[0] else 2 if first else 3), seed
        assert row["possible"] == (first is not None), seed
        later += code == 2
        never += code == 3
    assert later > 5
    assert never > 5


@pytest.mark.parametrize("part", range(3))
def test_a_change_that_is_said_to_help_does_help(tmp_path: Path, part: int) -> None:
    helped = 0
    for seed in range(part * 50, part * 50 + 50):
        source = random.Random(seed)
        found, leases = boards(source)
        lab = written(tmp_path / "lab.yaml", CLIENT, EVERY_CLASS, *found, *leases, at=NOW)
        one = wanted(source)
        code, row = answer(lab, one)
        if code == 0:
            assert not row["relaxation"]
            assert not row["reasons"]
            continue
        served = [change for change in changes(one) if ask(lab, change[1])[0] == 0]
        assert bool(served) == bool(row["relaxation"]), seed
        assert row["relaxation"] in [said for said, _ in served] or not served, seed
        assert row["reasons"], seed
        helped += bool(served)
    assert helped > 2


def changes(one: Document) -> Iterator[tuple[str, Document]]:
    """Each single change of a claim that may help, as the answer would name it."""
    spec = one["spec"]
    for place, each in enumerate(spec["constraints"]):
        kind, attribute = next(iter(each.items()))
        said = f"without the {kind.removesuffix('Attribute')} constraint on {attribute}"
        rest = [c for n, c in enumerate(spec["constraints"]) if n != place]
        yield said, {**one, "spec": {**spec, "constraints": rest}}
    for place, each in enumerate(spec["requests"]):
        most = each["exactly"]["count"]
        for count in range(1, most):
            fewer = {**each, "exactly": {**each["exactly"], "count": count}}
            requests = [*spec["requests"][:place], fewer, *spec["requests"][place + 1 :]]
            changed = {**one, "spec": {**spec, "requests": requests}}
            yield f"with {count} instead of {most} for {each['name']}", changed


def test_why_not_names_what_keeps_each_exporter_from_a_claim(tmp_path: Path) -> None:
    """For each exporter that is free and fits it says so, and for the others what is wrong."""
    qualifying = 0
    for seed in range(40):
        source = random.Random(seed)
        found, leases = boards(source)
        lab = written(tmp_path / "lab.yaml", CLIENT, EVERY_CLASS, *found, *leases, at=NOW)
        kind = source.choice("ab")
        labels = {"matchLabels": {"kind": kind}}
        request = {"deviceClassName": "any", "selectors": [{"labels": labels}]}
        one = claim({"name": "r", "exactly": request})
        ends = {x["spec"]["exporterRef"]["name"]: x for x in leases}
        free = []
        for board in found:
            name = board["metadata"]["name"]
            said = why_not(lab, one, name)
            if board["metadata"]["labels"]["kind"] != kind:
                assert said == f"r: the selector kind={kind} does not match it", seed
            elif name in ends:
                until = at_hour(int(ends[name]["spec"]["duration"].removesuffix("h")))
                assert said == f"r: l-{name} has {name} until {until}", seed
            else:
                assert said == "r: it qualifies and is free", seed
                free.append(name)
        code, row = answer(lab, one)
        assert (code == 0) == bool(free), seed
        assert [m["device"] for m in row["members"]] == free[:1], seed
        qualifying += bool(free)
    assert qualifying > 10


def named(name: str, one: Document, **spec: object) -> Document:
    meta = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": NOW}
    return {**one, "metadata": meta, "spec": {**one["spec"], **spec}}


@pytest.mark.parametrize("part", range(3))
def test_a_queue_uses_no_device_twice_and_leaves_none_that_would_do(
    tmp_path: Path, part: int
) -> None:
    """In the order of priority; and no claim waits that could start with what is left."""
    started = waited = 0
    for seed in range(part * 16, part * 16 + 16):
        source = random.Random(seed)
        found, leases = boards(source)
        lab = written(tmp_path / "lab.yaml", CLIENT, EVERY_CLASS, *found, *leases, at=NOW)
        priorities = source.sample(range(10), 3)
        claims = {
            f"c{priority}": named(f"c{priority}", wanted(source), priority=priority)
            for priority in priorities
        }
        _, said = ask(lab, *claims.values(), words=("--queue", "-o", "json"))
        rows = {row["claim"]: row for row in json.loads(said)}
        order = sorted(claims, reverse=True)
        assert [name for name in rows if name in claims] == order, seed
        served = [name for name in order if rows[name]["decision"] == "Start"]
        given = [device for name in served for device in rows[name]["devices"]]
        held = {each["spec"]["exporterRef"]["name"] for each in leases}
        assert len(set(given)) == len(given), seed
        assert not set(given) & held, seed
        assert (order[0] in served) == (ask(lab, claims[order[0]])[0] == 0), seed
        more = [lease(f"given-{name}", name, 9) for name in given]
        rest = written(tmp_path / "rest.yaml", CLIENT, EVERY_CLASS, *found, *leases, *more, at=NOW)
        for name in order:
            if name in served:
                requests = claims[name]["spec"]["requests"]
                size = sum(each["exactly"]["count"] for each in requests)
                assert len(rows[name]["devices"]) == size, seed
                started += 1
            else:
                assert ask(rest, claims[name])[0] != 0, (seed, name)
                waited += 1
    assert started > 8
    assert waited > 8
