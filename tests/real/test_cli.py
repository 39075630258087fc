"""The commands for people without kubectl, run as they would run them."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from support.qemu_pools import until
from support.real_service import BIN, Service, eventually

pytestmark = pytest.mark.real

LAB = Path(__file__).parents[2] / "examples" / "lab.yaml"


def test_apply_get_describe_scale_and_delete(service: Service) -> None:
    first = service.bullpen("apply", "-f", str(LAB)).stdout.splitlines()
    assert [line.split()[-1] for line in first] == ["created"] * 4
    until(service, "uboot", seconds=120, availableReplicas=2)
    again = service.bullpen("apply", "-f", str(LAB)).stdout.splitlines()
    assert [line.split()[-1] for line in again] == ["unchanged"] * 4
    table = service.bullpen("get", "exporters").stdout.splitlines()
    assert table[0].split() == ["NAME", "ENABLED", "STATUS", "AGE", "STATE", "HOLDER", "ENDS"]
    assert table[1].split()[0] == "rpi4-shelf-1"
    assert "MESSAGE" in service.bullpen("get", "exporters", "-o", "wide").stdout
    found = json.loads(service.bullpen("get", "exporterset", "uboot", "-o", "json").stdout)
    assert found["spec"]["maxReplicas"] == 6
    assert yaml.safe_load(service.bullpen("get", "exporterset", "uboot", "-o", "yaml").stdout)
    names = service.bullpen("get", "clients", "-o", "name").stdout
    assert "client.jumpstarter.dev/alice\n" in names
    service.bullpen("scale", "exporterset/uboot", "--replicas", "9")
    found = json.loads(service.bullpen("get", "exporterset", "uboot", "-o", "json").stdout)
    assert found["spec"]["maxReplicas"] == 9
    described = service.bullpen("describe", "client", "alice").stdout
    assert "Name:           alice" in described
    eventually(lambda: "CredentialCreated" in service.bullpen("describe", "client", "alice").stdout)
    assert "CredentialCreated" in service.bullpen("events", "--for", "client/alice").stdout
    conflict = service.bullpen("apply", "-f", str(LAB), check=False)
    assert conflict.returncode == 6
    assert "maxReplicas" in conflict.stderr
    service.bullpen("apply", "-f", str(LAB), "--force-conflicts")
    deleted = service.bullpen("delete", "-f", str(LAB)).stdout.splitlines()
    assert len(deleted) == 4
    assert service.bullpen("delete", "-f", str(LAB), check=False).returncode == 3
    service.bullpen("delete", "-f", str(LAB), "--ignore-not-found")


def test_secrets_are_not_shown_by_describe(service: Service) -> None:
    service.bullpen("client", "create", "shy", "--out", str(service.home / "shy.yaml"))
    token = yaml.safe_load((service.home / "shy.yaml").read_text())["token"]
    text = service.bullpen("describe", "secret", "shy-client").stdout
    assert "bytes" in text
    assert token[:20] not in text


def test_created_configs_work_with_jmp_and_are_private(service: Service) -> None:
    out = service.home / "carol.yaml"
    said = service.bullpen("client", "create", "carol", "-l", "team=a", "--out", str(out)).stdout
    assert f"jmp get exporters --client-config {out}" in said
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    service.jmp("get", "exporters", "--client-config", str(out))
    board = service.home / "board.yaml"
    service.bullpen("exporter", "create", "board", "-l", "board=own", "--out", str(board))
    config = yaml.safe_load(board.read_text())
    config["export"] = {"power": {"type": "jumpstarter_driver_power.driver.MockPower"}}
    board.write_text(yaml.safe_dump(config))
    with service.exporter(board):
        shell = service.jmp(
            "shell", "--client-config", str(out), "-l", "board=own", "--", "j", "power", "on"
        )
        assert "WARNING" not in shell.stderr
    again = service.bullpen("client", "create", "carol", "--out", str(out), check=False)
    assert again.returncode == 6


def test_status_tells_what_is_going_on(service: Service) -> None:
    report = json.loads(service.bullpen("status", "-o", "json").stdout)
    assert report["healthy"] is True
    sections = {"endpoints", "pools", "lastingPools", "exporters", "providers", "leases", "waiting"}
    assert set(report) == {"healthy", "problem", *sections}
    assert service.bullpen("status").stdout.startswith("Health:      ok")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get", "nonsense"), 3, "there is no resource 'nonsense'"),
        (("get", "exporter", "missing"), 3, "not found"),
        (("scale", "client/x", "--replicas", "1"), 2, "cannot be scaled"),
        (("scale", "x", "--replicas", "1"), 2, "RESOURCE/NAME"),
        (("delete", "client"), 2, "specify which objects to delete"),
        (("apply", "-f", "/nonexistent.yaml"), 3, "does not exist"),
        (("get", "exporters", "-l", "a in"), 5, "selector"),
        (("events", "--for", "x"), 2, "RESOURCE/NAME"),
        (("frobnicate",), 2, "there is no command"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(
    service: Service, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = service.bullpen(*arguments, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_invalid_manifest_names_the_field(service: Service, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "apiVersion: jumpstarter.dev/v1alpha1\nkind: Exporter\n"
        "metadata: {name: x}\nspec: {enabled: 3}\n"
    )
    done = service.bullpen("apply", "-f", str(bad), check=False)
    assert done.returncode == 5
    assert "spec.enabled" in done.stderr


def test_without_a_service_commands_say_what_to_do(tmp_path: Path, service: Service) -> None:
    done = service.bullpen("get", "exporters", "--data", str(tmp_path), check=False)
    assert done.returncode == 4
    assert "bullpen up" in done.stderr


def test_crds_are_printed(service: Service) -> None:
    documents = list(yaml.safe_load_all(service.bullpen("crds").stdout))
    assert {d["kind"] for d in documents} == {"CustomResourceDefinition"}
    assert "leases.jumpstarter.dev" in service.bullpen("crds", "-o", "name").stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly_with_watchers_connected(
    fresh_service: Service, number: signal.Signals
) -> None:
    service = fresh_service
    watching = subprocess.Popen(
        [str(BIN / "bullpen"), "get", "clients", "-w"],
        env=service.environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert service.stop(number) == 0
    finally:
        watching.wait(120)
    assert not (service.data / "endpoints.json").exists()
    assert "Traceback" not in service.log.read_text()
    service.start()
    assert "default" in service.bullpen("get", "clients").stdout


def test_manifests_given_at_start_are_applied(tmp_path: Path) -> None:
    from support.real_service import running_service

    with running_service(tmp_path, "-f", str(LAB)) as service:
        assert "rpi4-shelf-1" in service.bullpen("get", "exporters").stdout


def test_a_wrong_setting_is_named(service: Service, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("leases: {retentoin: 1h}\n")
    done = service.bullpen(
        "up", "--data", str(tmp_path / "d"), "--config", str(config), check=False
    )
    assert done.returncode == 5
    assert "retentoin" in done.stderr
