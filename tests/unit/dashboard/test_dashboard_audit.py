"""The audit log on its page: the newest events first, for who may read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.apiserver.http import Request, Response
from bullpen.app.config import AuditConfig
from bullpen.audit.log import AuditLog
from bullpen.dashboard import audit_trail
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.recording import Recorder
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from support.dashboard_world import ADMIN_TOKEN, VIEW_TOKEN, DashboardWorld, client_token


def recorded(directory: Path, clock: VirtualClock, count: int) -> None:
    log = AuditLog(directory, AuditConfig().rotation(), clock=clock)
    log.start()
    recorder = Recorder(log, clock=clock, ids=RandomIds())
    for number in range(count):
        request = Request(method="DELETE", path=f"/x/{number}", query={}, headers={}, source="::1")
        recorder.record(request, None, Response(status=200))
    log.close()


async def test_the_newest_events_come_first_and_their_number_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "EVENTS_MAX", 3)
    clock = VirtualClock()
    recorded(tmp_path / "audit", clock, 5)
    found = await AuditTrail(tmp_path / "audit", clock).recent("", "")
    assert [row["what"] for row in found] == ["/x/4", "/x/3", "/x/2"]
    assert (found[0]["verb"], found[0]["code"], found[0]["from"]) == ("delete", 200, "::1")
    clock.advance(audit_trail.SINCE * 2)
    assert await AuditTrail(tmp_path / "audit", clock).recent("", "") == []
    assert await AuditTrail(None, clock).recent("", "") == []


def test_only_who_may_list_audit_events_reads_them() -> None:
    async def story(world: DashboardWorld) -> None:
        for token, code in ((ADMIN_TOKEN, 200), (VIEW_TOKEN, 403), (client_token("bob"), 403)):
            browser = await world.browser(token)
            assert (await browser.call("GET", "audit")).status == code
            assert (await browser.call("GET", "session")).document["audit"] == (code == 200)

    DashboardWorld().run(story)
