"""``bullpen schedule``: answers, explanations and exit codes, from a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bullpen.api.paths import Document
from support.schedule_files import (
    DEVICE,
    LAB,
    NOW,
    ask,
    claim,
    exporter,
    lease,
    made,
    run,
    written,
)


def boards(count: int) -> Document:
    return {"name": "dut", "exactly": {"deviceClassName": "board", "count": count}}


CLASS = made(
    DEVICE, "DeviceClass", "board", {"selectors": [{"cel": {"expression": "kind == 'board'"}}]}
)
SNAPSHOT = [
    made(LAB, "Client", "alice", {}, labels={"team": "a"}),
    CLASS,
    *(exporter(f"board-{n}", kind="board", site="brno") for n in range(3)),
    lease("busy", "board-2", 2),
]


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    return written(tmp_path / "lab.yaml", *SNAPSHOT, at=NOW)


def test_a_claim_that_can_be_served_now_exits_with_0(inventory: Path) -> None:
    code, said = ask(inventory, claim(boards(2)))
    assert code == 0
    assert said.splitlines() == [
        "bench: now",
        "REQUEST   ALTERNATIVE   DEVICE",
        "dut       0             board-0",
        "dut       0             board-1",
    ]


def test_a_claim_that_must_wait_exits_with_2_and_says_until_when(inventory: Path) -> None:
    code, said = ask(inventory, claim(boards(3)), words=("--explain",))
    assert code == 2
    assert said.splitlines()[0] == "bench: from 2026-01-01T10:00:00Z"
    assert "  dut needs 3, only board-0 and board-1 qualify" in said
    assert "  it could be served with 2 instead of 3 for dut" in said
    assert "  in the way: busy has board-2 until 2026-01-01T10:00:00Z" in said
    assert "known 3 → class 3 → selector 3" in said


def test_of_many_devices_ten_are_named(inventory: Path) -> None:
    rows = [exporter(f"x{n:02}", kind="board") for n in range(12)]
    for count, named in ((10, "and x09 qualify"), (12, "x09 and 2 more qualify")):
        lab = written(inventory.parent / "rows.yaml", *SNAPSHOT[:2], *rows[:count], at=NOW)
        _, said = ask(lab, claim(boards(count + 1)))
        assert f"dut needs {count + 1}, only x00, x01, " in said
        assert named in said
    lab = written(inventory.parent / "rows.yaml", *SNAPSHOT[:2], rows[0], at=NOW)
    _, said = ask(lab, claim(boards(2)))
    assert "dut needs 2, only x00 qualifies" in said


def test_the_answer_for_another_time_sees_the_leases_of_that_time(inventory: Path) -> None:
    code, _ = ask(inventory, claim(boards(3)), words=("--at", "2026-01-01T10:00:00Z"))
    assert code == 0


def test_a_claim_for_later_is_answered_for_its_begin_time(inventory: Path) -> None:
    later = claim(boards(3), beginTime="2026-01-01T10:00:00Z")
    code, said = ask(inventory, later)
    assert code == 2
    assert said.splitlines()[0] == "bench: from 2026-01-01T10:00:00Z"
    assert said.count("board-") == 3
    code, said = ask(inventory, claim(boards(3), beginTime="2026-01-01T09:00:00Z"))
    assert code == 2
    assert "dut needs 3, only board-0 and board-1 qualify" in said


def test_what_is_booked_for_others_is_left_out_and_named(inventory: Path) -> None:
    spec = {"clientRef": {"name": "bob"}, "selector": {}, "duration": "1h"}
    booked = made(
        LAB,
        "Lease",
        "soon",
        {**spec, "exporterRef": {"name": "board-0"}, "beginTime": "2026-01-01T08:30:00Z"},
    )
    clients = [made(LAB, "Client", name, {}) for name in ("alice", "bob")]
    lab = written(inventory.parent / "booked.yaml", *clients, *SNAPSHOT[1:], booked, at=NOW)
    code, said = ask(lab, claim(boards(2)), words=("--explain",))
    assert code == 2
    assert said.splitlines()[0] == "bench: from 2026-01-01T09:30:00Z"
    assert "in the way: board-0 is kept for lease soon from 2026-01-01T08:30:00Z on" in said
    assert "free 2 → not reserved 1" in said
    code, said = ask(lab, claim(boards(2), duration="30m"))
    assert code == 0
    claims = str(inventory.parent / "claims.yaml")
    written(inventory.parent / "claims.yaml", claim(boards(2)))
    _, said = run("why-not", "bench", "board-0", "-f", claims, "--inventory", str(lab))
    assert said == "dut: board-0 is kept for lease soon from 2026-01-01T08:30:00Z on\n"


def test_a_claim_that_can_never_be_served_exits_with_3(inventory: Path) -> None:
    code, said = ask(inventory, claim(boards(4)))
    assert code == 3
    assert said.splitlines()[0] == "bench: never with this inventory"


def test_a_used_up_budget_exits_with_4(inventory: Path) -> None:
    rows = [exporter(f"x{n}", kind="board", row=f"r{n}", column=f"c{n}") for n in range(9)]
    full = written(inventory.parent / "rows.yaml", *SNAPSHOT[:2], *rows, at=NOW)
    both = [{"distinctAttribute": "row"}, {"distinctAttribute": "column"}]
    code, said = ask(full, claim(boards(8), constraints=both), words=("--budget", "3"))
    assert code == 4
    assert "unknown" in said


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([claim(boards(0))], "spec.requests[0].exactly.count"),
        ([claim(boards(1), constraints=[{}])], "spec.constraints[0]"),
        ([], "has no objects"),
        ([{"apiVersion": "v9", "kind": "Nothing"}], "no kind 'Nothing'"),
    ],
    ids=["count", "constraint", "nothing asked", "unknown kind"],
)
def test_a_bad_claim_exits_with_64_and_its_path(
    inventory: Path, documents: list[Document], said: str
) -> None:
    code, output = ask(inventory, *documents)
    assert code == 64
    assert said in output


def test_a_bad_command_line_exits_with_64_too() -> None:
    assert run("--budget", "none")[0] == 64
    assert run("why-not", "bench")[0] == 64
    assert run("-f", "/nowhere.yaml")[0] == 64


def test_policies_decide_what_the_client_may_have(inventory: Path) -> None:
    policy = {
        "exporterSelector": {"matchLabels": {"kind": "board"}},
        "policies": [{"priority": 1, "from": [{"clientSelector": {"matchLabels": {"team": "b"}}}]}],
    }
    guarded = made(LAB, "ExporterAccessPolicy", "b-only", policy)
    full = written(inventory.parent / "guarded.yaml", *SNAPSHOT, guarded, at=NOW)
    code, said = ask(full, claim(boards(1)), words=("--explain",))
    assert code == 3
    assert "capacity 3 → allowed 0" in said


def test_the_answer_as_a_document_has_the_facts(inventory: Path) -> None:
    code, said = ask(inventory, claim(boards(3)), words=("-o", "json", "--explain"))
    assert code == 2
    row = json.loads(said)["claims"][0]
    assert row["verdict"] == "Unsatisfiable"
    assert row["starts"] == "2026-01-01T10:00:00Z"
    assert row["funnels"][0]["left"]["free"] == 2


def test_why_not_says_what_keeps_a_device_from_a_claim(inventory: Path) -> None:
    path = written(inventory.parent / "claims.yaml", claim(boards(1)))
    options = ("-f", str(path), "--inventory", str(inventory))
    code, said = run("why-not", "bench", "board-2", *options)
    assert code == 0
    assert said == "dut: busy has board-2 until 2026-01-01T10:00:00Z\n"
    assert run("why-not", "other", "board-2", *options)[0] == 64


def test_the_queue_is_decided_together_in_the_order_of_service(inventory: Path) -> None:
    pair = claim(boards(2), priority=5)
    pair["metadata"] = {"name": "pair", "namespace": "default"}
    stored = written(inventory.parent / "queue.yaml", *SNAPSHOT, pair, at=NOW)
    code, said = ask(stored, claim(boards(1)), words=("--queue", "-o", "json"))
    assert code == 2
    found = [(row["claim"], row["decision"], row["starts"]) for row in json.loads(said)]
    more = written(inventory.parent / "more.yaml", claim(boards(1)))
    _, as_file = run("--queue", str(more), "--inventory", str(stored), "-o", "json")
    assert json.loads(as_file) == json.loads(said)
    # The urgent pair takes both free boards; the other one waits for the first end.
    assert found == [("pair", "Start", "now"), ("bench", "NotAvailable", "2026-01-01T09:00:00Z")]


def test_what_pools_could_start_counts_as_for_the_service(inventory: Path) -> None:
    """As many as have room under the ceiling, and only where running exporters do not do."""
    qemu = {
        "selector": {"matchLabels": {"pool": "qemu"}},
        "template": {"metadata": {"labels": {"pool": "qemu", "kind": "board"}}, "spec": {}},
        "virtualTargetClassName": "qemu",
        "maxReplicas": 2,
    }
    group = "virtualtarget.jumpstarter.dev/v1alpha1"
    pool = made(group, "ExporterSet", "qemu", qemu)
    full = written(inventory.parent / "pool.yaml", *SNAPSHOT, pool, at=NOW)
    code, said = ask(full, claim(boards(3)), words=("-o", "json"))
    assert code == 0
    members = json.loads(said)["claims"][0]["members"]
    assert [member["device"] for member in members] == ["board-0", "board-1", "qemu/new-0"]
    code, said = ask(full, claim(boards(5)))
    assert code == 2
    assert said.startswith("bench: from 2026-01-01T10:00:00Z")
    assert ask(full, claim(boards(6)))[0] == 3


def test_a_pod_that_runs_on_no_node_is_told_why_for_each(tmp_path: Path) -> None:
    prototype = "devmgmtproto.k8s.io/v1alpha1"
    pools = [
        made(
            prototype,
            "DevicePool",
            f"{node}-gpus",
            {"nodeName": node, "driver": "d", "devices": [{"name": f"g{n}"} for n in range(count)]},
        )
        for node, count in (("n1", 1), ("n2", 2))
    ]
    gpu = made(prototype, "DeviceClass", "gpu", {"definition": {"driver": "d"}})
    three = [{"name": "g", "allOf": [{"class": "gpu", "requests": {"devices": 3}}]}]
    path = written(
        tmp_path / "pods.yaml", *pools, gpu, made(prototype, "DeviceClaim", "c", {"devices": three})
    )
    code, said = run("-f", str(path), "--explain")
    assert code == 3
    assert "c on n1: g needs 3, only n1-gpus/g0 qualifies" in said
    assert "c on n2: g needs 3, only n2-gpus/g0 and n2-gpus/g1 qualify" in said
    assert "c on n2: it could be served with 2 instead of 3 for g" in said
    assert "c on n2: g/g needs 3: known 3 → class 3 → selector 3 → capacity 3 → allowed 2" in said
    code, said = run("-f", str(path), "-o", "json")
    nodes = json.loads(said)[0]["nodes"]
    assert [(node["node"], node["relaxation"]) for node in nodes] == [
        ("n1", ""),
        ("n2", "with 2 instead of 3 for g"),
    ]


def test_a_full_explanation_says_what_keeps_each_device_away(inventory: Path) -> None:
    code, said = ask(inventory, claim(boards(3)), words=("--explain=full",))
    assert code == 2
    assert "  board-1: dut: it qualifies and is free" in said
    assert "  board-2: dut: busy has board-2 until 2026-01-01T10:00:00Z" in said
    assert "  board-2:" not in ask(inventory, claim(boards(3)), words=("--explain",))[1]
    _, said = ask(inventory, claim(boards(3)), words=("--explain=full", "-o", "json"))
    assert set(json.loads(said)["claims"][0]["devices"]) == {"board-0", "board-1", "board-2"}


def test_what_is_asked_of_the_live_lab_is_asked_of_no_snapshot(inventory: Path) -> None:
    assert ask(inventory, claim(boards(1)), words=("--dry-run",))[0] == 0
    assert ask(inventory, claim(boards(1)), words=("--live",))[0] == 64


def test_an_exporter_that_is_not_connected_does_not_count(inventory: Path) -> None:
    lost = exporter("lost", kind="board")
    lost["status"]["conditions"] += [
        {**lost["status"]["conditions"][0], "type": "Online", "status": "False"}
    ]
    full = written(inventory.parent / "lost.yaml", *SNAPSHOT, lost, at=NOW)
    assert ask(full, claim(boards(4)))[0] == 3
    path = written(inventory.parent / "claims.yaml", claim(boards(1)))
    code, said = run("why-not", "bench", "lost", "-f", str(path), "--inventory", str(full))
    assert (code, said) == (0, "dut: it is offline\n")


def test_the_queue_shows_who_ends_for_whom(inventory: Path) -> None:
    def named(name: str, **spec: Any) -> Document:
        one = claim(boards(2), **spec)
        one["metadata"] = {"name": name, "namespace": "default", "uid": name}
        return one

    old = named("old", preemptible=True)
    old["status"] = {
        "members": [
            {"request": "dut", "device": f"board-{n}", "leaseRef": {"name": f"old-{n}"}}
            for n in (0, 1)
        ]
    }
    owner = {
        "apiVersion": DEVICE,
        "kind": "DeviceClaim",
        "name": "old",
        "uid": "old",
        "controller": True,
    }
    leases = [lease(f"old-{n}", f"board-{n}", 3) for n in (0, 1)]
    for each in leases:
        each["metadata"]["ownerReferences"] = [owner]
    full = written(inventory.parent / "taken.yaml", *SNAPSHOT, old, *leases, at=NOW)
    at = ("--at", "2026-01-01T09:00:00Z")
    code, said = ask(full, named("new", priority=5), words=("--queue", "-o", "json", *at))
    assert code == 2
    found = {row["claim"]: row["decision"] for row in json.loads(said)}
    assert found == {"new": "Preempting", "old": "ends for new"}


def test_files_of_the_prototype_are_answered_for_pods_on_nodes(tmp_path: Path) -> None:
    prototype = "devmgmtproto.k8s.io/v1alpha1"
    device = {"name": "gpu-0"}
    pool = {"nodeName": "n1", "driver": "d", "devices": [device]}
    documents = [
        made(prototype, "DevicePool", "n1-gpus", pool),
        made(prototype, "DeviceClass", "gpu", {"driver": "d"}),
        made("v1", "Pod", "p", {"deviceClaims": {"devices": [{"name": "g", "class": "gpu"}]}}),
        made("v1", "Pod", "q", {"deviceClaims": {"devices": [{"name": "g", "class": "tpu"}]}}),
    ]
    code, said = run("-f", str(written(tmp_path / "pods.yaml", *documents)))
    assert code == 3
    assert "pod/p   n1     now      n1-gpus/gpu-0" in said
    assert "pod/q on n1: g needs 1, no free device qualifies" in said
    assert "pod/p on" not in said, "it runs there"
    assert "DeviceClass/gpu.spec: normalised" in said
