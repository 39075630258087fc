"""``bullpen schedule`` on a real service with real exporters, live and from a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.real_service import Service

pytestmark = pytest.mark.real

CLASSES = """
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClass
metadata: {name: board}
spec: {selectors: [{cel: {expression: "device.kind.startsWith('board')"}}]}
---
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DevicePool
metadata: {name: licences, namespace: default}
spec:
  sharedCounters: {seats: 1}
  attributes: {kind: {string: board-licence}, site: {string: brno}}
  devices:
  - {name: a, consumesCounters: {seats: 1}}
  - {name: b, consumesCounters: {seats: 1}}
"""

CLAIM = """
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClaim
metadata: {name: bench, namespace: default}
spec:
  clientRef: {name: alice}
  duration: 1h
  requests:
  - name: dut
    exactly: {deviceClassName: board, selectors: [{labels: {matchLabels: {kind: board}}}]}
  - name: licence
    exactly:
      deviceClassName: board
      count: COUNT
      selectors: [{cel: {expression: "kind == 'board-licence'"}}]
  constraints:
  - {matchAttribute: site}
"""


def test_a_claim_is_answered_live_and_from_a_snapshot(service: Service, tmp_path: Path) -> None:
    service.create_client("alice")
    service.kubectl("apply", "-f", "-", input=CLASSES)
    claim, greedy = tmp_path / "claim.yaml", tmp_path / "greedy.yaml"
    claim.write_text(CLAIM.replace("COUNT", "1"))
    greedy.write_text(CLAIM.replace("COUNT", "2"))
    far = service.create_exporter("far", {"kind": "board", "site": "prague"})
    near = service.create_exporter("near", {"kind": "board", "site": "brno"})
    with service.exporter(far), service.exporter(near):
        live = service.bullpen("schedule", "-f", str(claim), "-o", "json")
        members = json.loads(live.stdout)["claims"][0]["members"]
        assert [member["device"] for member in members] == ["near", "licences/a"]
        snapshot = tmp_path / "lab.yaml"
        snapshot.write_text(service.bullpen("schedule", "snapshot").stdout)
    # The exporters have gone; the snapshot still has them.
    options = ("--inventory", str(snapshot))
    again = service.bullpen("schedule", "-f", str(claim), *options, "-o", "json")
    assert json.loads(again.stdout)["claims"][0]["members"] == members
    never = service.bullpen("schedule", "-f", str(greedy), *options, check=False)
    assert never.returncode == 3
    assert "counter licences/seats has only 1 left" in never.stdout
    why = service.bullpen("schedule", "why-not", "bench", "far", "-f", str(claim), *options)
    assert why.stdout.splitlines()[0] == "dut: with it, nothing keeps the match constraint on site"


def test_a_bad_expression_is_refused_when_the_class_is_applied(service: Service) -> None:
    bad = CLASSES.split("---")[0].replace("startsWith('board')", "startsWith(")
    done = service.kubectl("apply", "-f", "-", input=bad, check=False)
    assert done.returncode
    assert "spec.selectors[0].cel.expression" in done.stderr


def test_a_service_that_does_not_answer_exits_with_69(service: Service, tmp_path: Path) -> None:
    claim = tmp_path / "claim.yaml"
    claim.write_text(CLAIM.replace("COUNT", "1"))
    words = ("schedule", "-f", str(claim), "--data", str(tmp_path / "nothing"))
    assert service.bullpen(*words, check=False).returncode == 69
