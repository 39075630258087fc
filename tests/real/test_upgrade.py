"""A data directory of an earlier version: the service starts with it, and everything goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.lab_helpers import Lab
from support.real_service import Service, eventually, free_port_base

ROOT = Path(__file__).parents[2]


def is_shallow() -> bool:
    """Whether this is a clone without its history, such as one made with --depth 1."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    return subprocess.run(command, capture_output=True, check=False).stdout.strip() != b"false"


pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(is_shallow(), reason="an earlier version is in the history of a full clone"),
]

EARLIER = "5209848"
"""The commit whose data directories every later version must be able to use."""

POOL = """\
apiVersion: virtualtarget.jumpstarter.dev/v1alpha1
kind: VirtualTargetClass
metadata: {name: mock}
spec: {provisioner: mock.jumpstarter.dev}
---
apiVersion: virtualtarget.jumpstarter.dev/v1alpha1
kind: ExporterSet
metadata: {name: few}
spec:
  virtualTargetClassName: mock
  minAvailableReplicas: 2
  maxReplicas: 3
  selector: {matchLabels: {board: few}}
  template:
    metadata: {labels: {board: few}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {first: kept}
"""
POOL_SECONDS_MAX = 180.0


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The source of the earlier version, from the history of this repository."""
    command = ["git", "-C", str(ROOT), "archive", EARLIER, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"this test needs the whole history: {done.stderr.decode()}"
    (tmp_path / "earlier").mkdir()
    subprocess.run(["tar", "-x", "-C", str(tmp_path / "earlier")], input=done.stdout, check=True)
    return tmp_path / "earlier" / "src"


def revision(lab: Lab) -> int:
    return int(lab.get("exporters")["metadata"]["resourceVersion"])


def test_a_lab_of_an_earlier_version_goes_on(tmp_path: Path, earlier: Path) -> None:
    service = Service(tmp_path / "data", "--port-base", str(free_port_base()))
    program, service.program = (
        service.program,
        ["env", f"PYTHONPATH={earlier}", sys.executable, "-m", "bullpen"],
    )
    service.start()
    assert service.process is not None
    assert str(earlier) in Path(f"/proc/{service.process.pid}/environ").read_text()
    lab = Lab(service)
    alice, board = lab.client("alice"), lab.exporter("board", {"board": "desk"})
    (tmp_path / "pool.yaml").write_text(POOL)
    service.kubectl("apply", "-f", str(tmp_path / "pool.yaml"))

    def warm() -> bool:
        found = service.get("exportersets", "few").get("status", {})
        return bool(found.get("availableReplicas") == 2)

    eventually(warm, seconds=POOL_SECONDS_MAX, what="the pool being warm")
    with lab.running(board):
        done = lab.jmp(alice, "shell", "-l", "board=desk", "--", "j", "power", "on")
        assert done.returncode == 0, done.stderr
        wanted = {
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "desk"}},
            "duration": "3h",
        }
        lab.create("leases", "kept", spec=wanted)
        eventually(lambda: lab.get("leases", "kept")["status"].get("exporterRef"), what="a lease")
    before = {x["metadata"]["uid"]: x for x in lab.get("leases")["items"]}
    uids = {x["metadata"]["name"]: x["metadata"]["uid"] for x in lab.get("exporters")["items"]}
    seen = revision(lab)
    assert service.stop() == 0, service.log.read_text()

    service.program = program
    service.start()
    try:
        assert revision(lab) >= seen
        for uid, old in before.items():
            now = lab.get("leases", old["metadata"]["name"])
            assert now["metadata"]["uid"] == uid
            assert now["status"].get("exporterRef") == old["status"].get("exporterRef")
            assert now["status"].get("ended", False) == old["status"].get("ended", False)
        assert lab.get("exporters", "board")["metadata"]["uid"] == uids["board"]
        assert yaml.safe_load(service.kubectl("get", "cm", "notes", "-o", "yaml").stdout)["data"]
        eventually(warm, seconds=POOL_SECONDS_MAX, what="the pool being warm again")
        # Tokens, certificates and configs that the earlier version made are still good. The
        # exporter is leased at once, so it may never say that it is available.
        with service.exporter(board, wait=False):
            done = lab.jmp(alice, "shell", "--lease", "kept", "--", "j", "power", "on")
            assert done.returncode == 0, done.stderr
            done = lab.jmp(alice, "shell", "-l", "board=few", "--", "j", "power", "on")
            assert done.returncode == 0, done.stderr
    finally:
        assert service.stop() == 0, service.log.read_text()
