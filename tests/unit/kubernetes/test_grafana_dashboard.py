"""The dashboard has the form that Grafana's own library reads; nothing of it is unknown there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

BOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "bullpen.json"


def lost(given: Any, found: Any, path: str = "") -> list[str]:
    """Paths of what is in ``given`` and is not, or otherwise, in ``found``."""
    if isinstance(given, dict):
        known = found if isinstance(found, dict) else {}
        return [
            missing
            for key, value in given.items()
            for missing in (
                lost(value, known[key], f"{path}.{key}") if key in known else [f"{path}.{key}"]
            )
        ]
    if isinstance(given, list):
        if not isinstance(found, list) or len(found) != len(given):
            return [path]
        return [
            missing
            for index, (one, other) in enumerate(zip(given, found, strict=True))
            for missing in lost(one, other, f"{path}[{index}]")
        ]
    return [] if given == found else [path]


def test_grafanas_library_reads_every_field_of_the_dashboard() -> None:
    given = json.loads(BOARD.read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert lost(given, read) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    given = json.loads(BOARD.read_text())
    given["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "s"
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert lost(given, read) == [".panels[0].fieldConfig.defaults.unitt"]


def test_panels_do_not_overlap_and_have_a_title() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert all(panel["title"] and panel["targets"] for panel in panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & places, panel["title"]
        assert all(x < 24 for x, _ in own), panel["title"]
        places |= own
