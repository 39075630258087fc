"""Debian's Prometheus collects from a real lab; alerts and the queries of the dashboard work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.qemu_pools import apply_set
from support.real_service import BIN, Service, eventually, free_port_base

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "monitor-prometheus.md"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
BOARD = ROOT / "deploy" / "grafana" / "bullpen.json"
TOOLS = BIN.parent / "tools" / "usr" / "bin"
SECONDS_MAX = 120.0

EMPTY = ("bullpen_leases_waiting", "bullpen_provider_hourly_cost")
"""Nobody waits in this lab, and it has no provider."""

DRIVERS = [{"name": "power", "type": "jumpstarter_driver_power.driver.MockPower"}]
CLASS = {
    "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
    "kind": "VirtualTargetClass",
    "metadata": {"name": "mock"},
    "spec": {"provisioner": "mock.jumpstarter.dev"},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("figures") / "lab", "--port-base", "0")
    service.start()
    try:
        _use(service)
        yield service
    finally:
        assert service.stop(signal.SIGTERM) == 0


def _use(service: Service) -> None:
    """A lease of a board on the shelf, which then goes, and one of a pool."""
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump(CLASS))
    apply_set(
        service, "mock", drivers=DRIVERS, minAvailableReplicas=1, virtualTargetClassName="mock"
    )
    client = service.create_client("alice")
    config = service.create_exporter("shelf-1", {"board": "shelf"})
    with service.exporter(config):
        for board in ("shelf", "mock"):
            service.jmp(
                "shell", "--client-config", str(client), "-l", f"board={board}",
                "--", "j", "power", "on",
            )  # fmt: skip


class Prometheus:
    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._address = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer; None if there is none yet. Raises for a query that is wrong."""
        try:
            with urllib.request.urlopen(
                f"{self._address}/{path}?{urllib.parse.urlencode(query)}"
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None  # it listens already, and its storage is not open yet
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        except OSError:
            return None

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = (self.ask("query", query=expression) or {"result": []})["result"]
        return found

    def rules(self) -> dict[str, Any]:
        groups = (self.ask("rules") or {"groups": []})["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture(scope="module")
def prometheus(lab: Service) -> Iterator[Prometheus]:
    """Prometheus as the page sets it up, only more impatient."""
    place = lab.data.parent
    text = PAGE.read_text()
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lab.run("bash", "-ec", f"cd {place}\n{commands}")
    assert (place / "prometheus.token").stat().st_mode & 0o077 == 0
    first, _ = re.findall(r"^```yaml prometheus\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    config = yaml.safe_load(first)
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (place / "deploy").symlink_to(ROOT / "deploy")
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [urllib.parse.urlsplit(lab.endpoints["apiserver"]).netloc]
    (place / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port_base()
    log = (place / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            str(TOOLS / "prometheus"), "--config.file=prometheus.yaml",
            f"--storage.tsdb.path={place}/tsdb", f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=place, stdout=log, stderr=log,
    )  # fmt: skip
    log.close()
    found = Prometheus(port, process)
    try:
        eventually(
            lambda: [s["value"][1] for s in found.query('up{job="bullpen"}')] == ["1"],
            seconds=SECONDS_MAX,
            what=lambda: f"a scrape: {(place / 'prometheus.log').read_text()}",
        )
        yield found
    finally:
        process.terminate()
        process.wait(60)


def test_every_alert_is_evaluated_and_the_right_one_is_pending(prometheus: Prometheus) -> None:
    wanted = {
        r["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for r in group["rules"]
    }

    def offline() -> bool:
        return bool(prometheus.rules().get("BullpenTargetsOffline", {}).get("state") == "pending")

    # The board of the shelf has gone; its alert waits for ten minutes before it fires.
    eventually(offline, seconds=SECONDS_MAX, what="a pending alert about the offline board")
    rules = prometheus.rules()
    assert rules.keys() == wanted
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    (alert,) = rules["BullpenTargetsOffline"]["alerts"]
    assert alert["labels"]["namespace"] == "default"
    assert 'targets of pool "" in default are offline' in alert["annotations"]["summary"]
    pending = {name for name, rule in rules.items() if rule["state"] != "inactive"}
    assert pending == {"BullpenTargetsOffline"}


def expressions() -> list[str]:
    """Every query of the dashboard, with its variables replaced as Grafana would."""
    board = json.loads(BOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for name, value in (("$namespace", ".*"), ("$__range", "1h"), ("$__rate_interval", "1m")):
        found = [text.replace(name, value) for text in found]
    assert not [text for text in found if "$" in text]
    return found


def test_every_query_of_the_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    for text in expressions():
        if not any(name in text for name in EMPTY):
            eventually(partial(prometheus.query, text), seconds=SECONDS_MAX, what=text)
        else:
            assert prometheus.query(text) == []


def test_what_happened_is_what_was_counted(lab: Service, prometheus: Prometheus) -> None:
    def value(text: str) -> float:
        found = prometheus.query(f"sum({text})")
        return float(found[0]["value"][1]) if found else 0.0

    eventually(lambda: value("bullpen_leases_ended_total") == 2, seconds=SECONDS_MAX)
    assert value("bullpen_leases_requested_total") == 2
    assert value('bullpen_leases_assigned_total{pool="mock"}') == 1
    assert value('bullpen_leases_assigned_total{pool=""}') == 1
    assert value("bullpen_lease_wait_seconds_count") == 2
    assert value('bullpen_leases_ended_total{reason="Released"}') == 2
    assert value('bullpen_router_bytes_total{sender="client"}') > 0


def test_the_exposition_has_no_lint(lab: Service) -> None:
    exposed = lab.kubectl("get", "--raw", "/metrics").stdout
    done = lab.run(str(TOOLS / "promtool"), "check", "metrics", input=exposed, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
