"""The audit log: its form, its files, what it leaves out, and what happens on bad disks."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bullpen.audit import log as audit_log
from bullpen.audit.events import (
    ANONYMOUS,
    SUPPRESSED,
    AuditEvent,
    Target,
    document,
    kept_query,
    public_message,
)
from bullpen.audit.log import ANONYMOUS_PER_MINUTE_MAX, AuditLog, Query, Rotation, read
from bullpen.core.rbac.authorization import User
from bullpen.errors import BadRequest, Cause, Forbidden, Invalid
from bullpen.kit.clock import VirtualClock

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROTATION = Rotation(bytes_max=1 << 20, keep=3, age_max=timedelta(days=30))


def event(number: int = 0, **facts: object) -> AuditEvent:
    made = AuditEvent(
        audit_id=f"id-{number}",
        received=NOW + timedelta(seconds=number),
        completed=NOW + timedelta(seconds=number, microseconds=1),
        verb="delete",
        uri=f"/apis/jumpstarter.dev/v1alpha1/namespaces/default/leases/l{number}",
        user=User(name="alice", groups=("team-a",)),
        source="192.0.2.1",
        user_agent="kubectl",
        target=Target(
            resource="leases",
            group="jumpstarter.dev",
            version="v1alpha1",
            namespace="default",
            name=f"l{number}",
        ),
        code=200,
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def written(directory: Path, *events: AuditEvent, rotation: Rotation = ROTATION) -> AuditLog:
    clock = VirtualClock()
    log = AuditLog(directory, rotation, clock=clock)
    log.start()
    for item in events:
        log.record(item)
    log.close()
    return log


def test_an_event_is_written_in_kubernetes_form_for_its_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    written(directory, event(1, impersonated=User(name="bob")))
    (line,) = (directory / "audit.log").read_text().splitlines()
    found = json.loads(line)
    assert found["apiVersion"] == "audit.k8s.io/v1"
    assert (found["kind"], found["level"], found["stage"]) == (
        "Event",
        "Metadata",
        "ResponseComplete",
    )
    assert found["user"] == {"username": "alice", "groups": ["team-a"]}
    assert found["impersonatedUser"] == {"username": "bob"}
    assert found["sourceIPs"] == ["192.0.2.1"]
    assert found["objectRef"] == {
        "resource": "leases",
        "namespace": "default",
        "name": "l1",
        "apiGroup": "jumpstarter.dev",
        "apiVersion": "v1alpha1",
    }
    assert found["responseStatus"] == {"metadata": {}, "code": 200}
    assert found["requestReceivedTimestamp"] == "2026-01-31T12:00:01.000000Z"
    assert stat.S_IMODE((directory / "audit.log").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_files_are_rotated_by_size_and_only_so_many_are_kept(tmp_path: Path) -> None:
    rotation = replace(ROTATION, bytes_max=2_000, keep=2)
    clock = VirtualClock()
    for number in range(20):
        clock.advance(timedelta(seconds=1))
        log = AuditLog(tmp_path, rotation, clock=clock)
        log.start()
        log.record(event(number))
        log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 3
    assert all((tmp_path / name).stat().st_size <= 2_000 for name in files)
    kept = [found["auditID"] for found in read(tmp_path, Query())]
    assert kept == [f"id-{number}" for number in range(20 - len(kept), 20)]


def test_closed_files_that_are_too_old_are_deleted(tmp_path: Path) -> None:
    old = tmp_path / "audit-20000101T000000.000000Z.log"
    old.write_text("{}\n")
    os.utime(old, (0, 0))
    (tmp_path / "audit.log").write_bytes(b" " * 3_000 + b"\n")
    written(tmp_path, event(), rotation=replace(ROTATION, bytes_max=2_000, keep=100))
    assert not old.exists()


def test_a_flood_of_strangers_does_not_push_other_events_out(tmp_path: Path) -> None:
    stranger = event(1, user=ANONYMOUS, code=401)
    flood = [stranger] * (ANONYMOUS_PER_MINUTE_MAX + 500)
    later = replace(stranger, completed=stranger.completed + timedelta(minutes=1))
    log = written(tmp_path, *flood, event(2), later)
    found = list(read(tmp_path, Query()))
    assert len(found) == ANONYMOUS_PER_MINUTE_MAX + 2
    assert found[-1]["annotations"] == {SUPPRESSED: "500"}
    assert log.dropped == 0


def test_a_stuck_disk_blocks_nobody_and_lost_events_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(audit_log, "QUEUE_MAX", 10)
    monkeypatch.setattr(audit_log, "BATCH_MAX", 5)
    write = AuditLog._write

    def slow(self: AuditLog, events: list[AuditEvent]) -> None:
        stuck.wait(30)
        write(self, events)

    monkeypatch.setattr(AuditLog, "_write", slow)
    log = AuditLog(tmp_path, ROTATION, clock=VirtualClock())
    log.start()
    for number in range(100):
        log.record(event(number))
    assert log.dropped >= 100 - 10 - 5
    stuck.set()
    log.close()
    found = list(read(tmp_path, Query()))
    assert len(found) + log.dropped == 100
    assert any(record.message == "audit events dropped" for record in caplog.records)


def test_a_disk_that_refuses_costs_events_and_not_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit").write_text("a file where the directory should be")
    log = written(tmp_path / "audit", event(1), event(2))
    assert log.dropped == 2
    assert any(record.message == "audit events not written" for record in caplog.records)


def test_events_are_found_by_who_what_and_since(tmp_path: Path) -> None:
    written(
        tmp_path,
        event(1),
        event(2, user=User(name="bob"), impersonated=User(name="carol")),
        event(3, verb="create", target=Target(resource="clients", name="c")),
    )
    with (tmp_path / "audit.log").open("a") as file:
        file.write('{"cut short')

    def ids(**query: object) -> list[str]:
        return [str(e["auditID"]) for e in read(tmp_path, Query(**query))]  # type: ignore[arg-type]

    assert ids() == ["id-1", "id-2", "id-3"]
    assert ids(who="alice") == ["id-1", "id-3"]
    assert ids(who="carol") == ids(who="b*") == ["id-2"]
    assert ids(what="leases") == ["id-1", "id-2"]
    assert ids(what="leases/l2") == ["id-2"]
    assert ids(what="create") == ids(what="clients/*") == ["id-3"]
    assert ids(since=NOW + timedelta(seconds=2)) == ["id-2", "id-3"]


def test_texts_of_callers_are_cut_and_unknown_query_parameters_left_out() -> None:
    long = document(event(user_agent="x" * 100_000, message="y" * 100_000, code=400))
    assert len(json.dumps(long)) < 10_000
    query = {"fieldSelector": "a=b", "access_token": "hunter2", "token": "hunter2"}
    assert kept_query(query) == "?fieldSelector=a%3Db"


def test_messages_that_may_repeat_a_body_are_reduced_to_its_fields() -> None:
    cause = Cause("data.password", 'Invalid value: "hunter2"')
    assert public_message(Invalid("hunter2", causes=(cause,))) == "data.password"
    assert public_message(BadRequest("hunter2")) == ""
    assert public_message(Forbidden("User x cannot")) == "User x cannot"
