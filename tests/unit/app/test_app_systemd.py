"""What systemd is told, over a socket as systemd makes it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from bullpen.app.systemd import READY, VARIABLE, notify

SECONDS_MAX = 10.0


@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_systemd_hears_that_the_service_is_ready(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abstract = f"bullpen-test-{tmp_path.name}-{id(tmp_path)}"
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SECONDS_MAX)
        manager.bind(path if kind == "a path" else f"\0{abstract}")
        monkeypatch.setenv(VARIABLE, path if kind == "a path" else f"@{abstract}")
        notify(READY)
        assert manager.recv(100) == b"READY=1"


def test_without_a_service_manager_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    notify(READY)
    assert not caplog.records


def test_a_service_manager_that_is_gone_is_logged_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert "service manager not notified" in caplog.text
