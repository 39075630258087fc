"""``bullpen service``: systemd itself accepts the units, and edits of a person are kept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bullpen.app.systemd import EXPORTER, SERVICE, word
from bullpen.cli.options import Exit, exit_for
from bullpen.cli.service import service
from bullpen.errors import LabError

VERIFY_SECONDS_MAX = 60


def run(*words: object) -> Result:
    return CliRunner().invoke(service, list(map(str, words)))


def install(place: Path, *words: object) -> dict[str, Any]:
    result = run("install", "--directory", place, "-o", "json", *words)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def verified(*units: Path, runtime: Path, words: tuple[str, ...] = ()) -> str:
    """What ``systemd-analyze`` says about units; it is silent about good ones."""
    done = subprocess.run(
        ["systemd-analyze", *words, "verify", "--man=no", *map(str, units)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        timeout=VERIFY_SECONDS_MAX,
        check=False,
    )
    return f"{done.stdout}{done.stderr}{done.returncode or ''}"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="as they are"),
        pytest.param(
            (
                "--data",
                "/srv/my lab 100%",
                "--listen",
                "::",
                "--endpoint",
                "lab.example.com",
                "--port-base",
                9000,
            ),
            id="with a space and a percent sign in the data directory",
        ),
        pytest.param(("--config", "/etc/bullpen/settings.yaml"), id="with a settings file"),
        pytest.param(("--user",), id="for a user"),
    ],
)
def test_systemd_verifies_the_units(tmp_path: Path, words: tuple[object, ...]) -> None:
    install(tmp_path, *words)
    manager = ("--user",) if "--user" in words else ()
    names = (tmp_path / SERVICE, tmp_path / EXPORTER)
    assert verified(*names, runtime=tmp_path, words=manager) == ""


def test_systemd_objects_to_a_unit_with_a_mistake(tmp_path: Path) -> None:
    """The check above can fail."""
    install(tmp_path)
    unit = tmp_path / SERVICE
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=gently"))
    assert "kill mode" in verified(unit, runtime=tmp_path)


def test_the_service_unit_delegates_its_cgroup_and_keeps_what_the_sandbox_needs() -> None:
    lines = run("show", "--data", "/srv/lab").output.splitlines()
    assert "Delegate=yes" in lines
    assert "Restart=on-failure" in lines
    assert "LimitNOFILE=65536" in lines
    assert any(line.endswith("up --data /srv/lab") for line in lines)
    forbidden = ("NoNewPrivileges", "ProtectSystem", "PrivateDevices", "RestrictNamespaces")
    assert not [line for line in lines if line.startswith(forbidden)]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/srv/lab", "/srv/lab"),
        ("/srv/my lab", '"/srv/my lab"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('a"b', '"a\\"b"'),
    ],
)
def test_words_of_a_command_are_quoted_for_systemd(text: str, written: str) -> None:
    assert word(text) == written


def test_install_says_what_was_written_and_what_to_run_next(tmp_path: Path) -> None:
    first = install(tmp_path)
    assert [unit["outcome"] for unit in first["units"]] == ["created", "created"]
    assert first["next"][:2] == [
        "systemctl daemon-reload",
        "systemctl enable --now bullpen.service",
    ]
    assert [unit["outcome"] for unit in install(tmp_path)["units"]] == ["unchanged"] * 2
    changed = install(tmp_path, "--port-base", 9000)
    assert [unit["outcome"] for unit in changed["units"]] == ["replaced", "unchanged"]


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_unit_that_a_person_changed_is_kept_unless_forced(tmp_path: Path, command: str) -> None:
    install(tmp_path)
    unit = tmp_path / EXPORTER
    unit.write_text(unit.read_text().replace("RestartSec=5", "RestartSec=60"))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    words = (command, "--directory", tmp_path)
    refused = run(*words)
    assert isinstance(refused.exception, LabError)
    assert exit_for(refused.exception) == Exit.CONFLICT
    assert str(unit) in refused.exception.message
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    assert run(*words, "--force").exit_code == 0
    assert not unit.exists() or "RestartSec=5\n" in unit.read_text()


def test_uninstall_removes_both_units_and_nothing_else(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "other.service").write_text("[Unit]\n")
    result = run("uninstall", "--directory", tmp_path, "-o", "json")
    assert [unit["outcome"] for unit in json.loads(result.output)["units"]] == ["removed"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["other.service"]


def test_units_that_are_enabled_are_not_removed(tmp_path: Path) -> None:
    install(tmp_path)
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    (wants / "bullpen-exporter@desk.service").symlink_to(tmp_path / EXPORTER)
    refused = run("uninstall", "--directory", tmp_path)
    assert isinstance(refused.exception, LabError)
    assert "systemctl disable --now bullpen-exporter@desk.service" in refused.exception.message
    assert (tmp_path / SERVICE).exists()
    assert run("uninstall", "--directory", tmp_path, "--force").exit_code == 0
    assert not (tmp_path / SERVICE).exists()
