"""The log of a target's exporter: its end, for people with the right to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bullpen.apiserver.http import Request, Response
from bullpen.core.rbac.authorization import User
from bullpen.dashboard import target_logs
from bullpen.dashboard.people import Person
from bullpen.dashboard.target_logs import TAIL_BYTES, PodLogs
from bullpen.errors import Forbidden, NotFound
from support.dashboard_world import (
    ADMIN_TOKEN,
    STRANGER_TOKEN,
    VIEW_TOKEN,
    DashboardWorld,
    client_token,
)

NOBODY = Person(user=User(name="somebody", groups=()))


def test_who_may_view_the_lab_reads_the_end_of_a_log(tmp_path: Path) -> None:
    async def story(world: DashboardWorld) -> None:
        world.logs = tmp_path
        await world.make_exporter("e1")
        await world.make_exporter("silent")
        (tmp_path / "default-e1").write_bytes(b"second half \xff\n")
        (tmp_path / "default-e1.1").write_bytes(b"x" * TAIL_BYTES + b"first half\n")
        for token in (ADMIN_TOKEN, VIEW_TOKEN):
            browser = await world.browser(token)
            found = (await browser.call("GET", "targets/default/e1/log")).document["text"]
            assert found.endswith("xfirst half\nsecond half \ufffd\n")
            assert len(found) == TAIL_BYTES
            missing = await browser.call("GET", "targets/default/silent/log")
            assert missing.status == 404
            assert b"no log on this machine" in missing.body
            assert (await browser.call("GET", "targets/default/gone/log")).status == 404

    DashboardWorld().run(story)


def test_a_client_and_a_stranger_do_not(tmp_path: Path) -> None:
    """A log may tell what other lessees did."""

    async def story(world: DashboardWorld) -> None:
        world.logs = tmp_path
        await world.make_exporter("e1")
        (tmp_path / "default-e1").write_text("secret\n")
        for token, status in ((client_token("alice"), 403), (STRANGER_TOKEN, 404)):
            browser = await world.browser(token)
            answer = await browser.call("GET", "targets/default/e1/log")
            assert answer.status == status
            assert b"secret" not in answer.body

    DashboardWorld().run(story)


@dataclass
class PlayedRequests:
    """An API server that gives one answer."""

    answer: Response
    seen: list[Request] = field(default_factory=list)

    async def respond(self, request: Request, person: Person) -> Response:
        self.seen.append(request)
        return self.answer


async def test_in_a_cluster_the_log_of_the_pod_is_asked_for_as_the_person() -> None:
    requests = PlayedRequests(Response(body=b"line\n" * TAIL_BYTES, content_type="text/plain"))
    found = await PodLogs(requests).tail(NOBODY, ("lab", "uboot-0"))
    assert len(found) == TAIL_BYTES
    (asked,) = requests.seen
    assert asked.path == "/api/v1/namespaces/lab/pods/uboot-0/log"
    assert asked.query == {"container": "exporter", "tailLines": str(target_logs.TAIL_LINES)}


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, b'{"message": "pods/log is forbidden"}', Forbidden, "pods/log is forbidden"),
        (404, b'{"message": "pods not found"}', NotFound, "pods not found"),
        (500, b"<html>", NotFound, "the API server answers 500"),
    ],
)
async def test_what_the_cluster_refuses_is_passed_on(
    status: int, body: bytes, kind: type[Exception], words: str
) -> None:
    requests = PlayedRequests(Response(status=status, body=body))
    with pytest.raises(kind, match=words):
        await PodLogs(requests).tail(NOBODY, ("lab", "uboot-0"))
