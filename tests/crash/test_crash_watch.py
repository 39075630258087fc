"""The judge of the crash harness finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest
from crash_watch import LeaseWatch

from support.lab_helpers import Lab
from support.real_service import Service


def event(
    revision: int, lease: str, exporter: str = "", *, ended: bool = False, kind: str = "MODIFIED"
) -> dict[str, Any]:
    status: dict[str, Any] = {"ended": ended}
    if exporter:
        status["exporterRef"] = {"name": exporter}
    meta = {"name": lease, "uid": lease, "resourceVersion": str(revision)}
    return {"type": kind, "object": {"metadata": meta, "status": status}}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        pytest.param(
            [event(1, "a", "x"), event(2, "a", "x", ended=True), event(3, "b", "x")],
            "",
            id="one after the other is as it should be",
        ),
        pytest.param(
            [event(1, "a", "x"), event(2, "a", "x", kind="DELETED"), event(3, "b", "x")],
            "",
            id="a deleted one holds nothing",
        ),
        pytest.param(
            [event(1, "a", "x"), event(2, "b", "x")], "x is held by a and by b", id="two at once"
        ),
        pytest.param(
            [event(1, "a", "x", ended=True), event(2, "a", "x")],
            "had ended and is active again",
            id="an ended one that is back",
        ),
        pytest.param(
            [event(2, "a"), event(2, "b")], "revision 2 came after 2", id="a revision twice"
        ),
        pytest.param(
            [event(5, "a"), event(4, "a", kind="BOOKMARK")], "a bookmark at 4", id="a bookmark back"
        ),
    ],
)
def test_what_is_seen_is_judged(tmp_path: Any, events: list[Any], found: str) -> None:
    watch = LeaseWatch(Lab(Service(tmp_path / "data")))
    for item in events:
        watch.hear(item)
    assert bool(watch.violations) == bool(found)
    assert found in "".join(watch.violations)
