"""A spoiled database is refused with the way back, and the way back leads back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.lab_helpers import GROUP, Lab, Refusal
from support.real_service import Service, eventually

pytestmark = pytest.mark.real

CONFIG = "backups: {every: 1s, keep: 3}\n"
REFUSED = 9
PAGE = 8192


def spoil_header(database: Path, wal: Path) -> None:
    _write(database, 0, os.urandom(100))


def spoil_middle(database: Path, wal: Path) -> None:
    _write(database, database.stat().st_size // PAGE // 2 * PAGE, os.urandom(PAGE))


def cut_off(database: Path, wal: Path) -> None:
    os.truncate(database, database.stat().st_size // PAGE // 2 * PAGE)


def spoil_log(database: Path, wal: Path) -> None:
    _write(wal, wal.stat().st_size // 2, os.urandom(200))


def lose(database: Path, wal: Path) -> None:
    database.unlink()
    wal.unlink(missing_ok=True)


def _write(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


SPOILING: tuple[Callable[[Path, Path], None], ...] = (
    spoil_header,
    spoil_middle,
    cut_off,
    spoil_log,
    lose,
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab that is spoiled and restored again and again."""
    directory = tmp_path_factory.mktemp("backups")
    config = directory / "bullpen.yaml"
    config.write_text(CONFIG)
    service = Service(directory / "data", "--port-base", "0", "--config", str(config))
    service.start()
    made = Lab(service)
    made.client("alice")
    made.create("exporters", "board", labels={"board": "b"})
    try:
        yield made
    finally:
        if service.process is not None:
            service.stop()


def lease(lab: Lab, name: str) -> dict[str, Any]:
    spec = {
        "clientRef": {"name": "alice"},
        "selector": {"matchLabels": {"board": "b"}},
        "duration": "1h",
    }
    return lab.create("leases", name, spec=spec)


def backups(service: Service) -> list[str]:
    return sorted(path.name for path in (service.data / "backups").glob("state-*.db"))


def up(service: Service) -> subprocess.CompletedProcess[str]:
    """``bullpen up`` where it must not start."""
    command = ("up", "--data", str(service.data), *service.arguments)
    return service.bullpen(*command, check=False, timeout=30)


@pytest.mark.parametrize("spoil", SPOILING)
def test_a_spoiled_database_is_refused_and_its_backup_restored(
    lab: Lab, spoil: Callable[[Path, Path], None]
) -> None:
    service = lab.service
    kept = f"kept-{spoil.__name__.replace('_', '-')}"
    lease(lab, kept)
    before = backups(service)
    eventually(lambda: backups(service)[-1:] > before[-1:], what="a backup with the lease")
    time.sleep(1.1)
    later = lease(lab, f"later-{kept}")
    seen = int(later["metadata"]["resourceVersion"])
    for number in range(4):
        lab.patch("leases", kept, {"metadata": {"annotations": {"n": str(number)}}})
    service.stop(signal.SIGKILL)
    assert len(backups(service)) <= 3
    database = service.data / "state.db"
    spoil(database, service.data / "state.db-wal")
    spoiled = database.read_bytes() if database.exists() else None

    refused = up(service)
    assert refused.returncode == REFUSED, refused.stderr
    said = [line for line in refused.stderr.splitlines() if line.startswith("bullpen: ")]
    assert len(said) == 1
    assert f"bullpen restore --data {service.data}" in said[0]
    assert "Traceback" not in refused.stderr

    done = json.loads(service.bullpen("restore", "-o", "json").stdout)
    if spoiled is not None:
        assert (Path(done["setAside"]) / "state.db").read_bytes() == spoiled
    service.start()
    assert lab.get("leases", kept)["spec"]["clientRef"]["name"] == "alice"
    made = lease(lab, f"after-{kept}")
    assert int(made["metadata"]["resourceVersion"]) > done["revision"] > seen
    with pytest.raises(Refusal, match="410"):
        lab.request(
            "GET", f"{GROUP}/namespaces/default/leases", watch="true", resourceVersion=str(seen)
        )


def test_a_running_service_is_not_restored_over(lab: Lab) -> None:
    refused = lab.service.bullpen("restore", check=False)
    assert refused.returncode == REFUSED
    assert "is in use by bullpen up, pid" in refused.stderr


def test_backups_are_listed_with_what_is_in_them(lab: Lab) -> None:
    service = lab.service
    text = service.bullpen("restore", "--list").stdout
    assert text.splitlines()[0].split() == [
        "NAME", "MADE", "BYTES", "REVISION", "OBJECTS", "SOUND",
    ]  # fmt: skip
    found: list[Any] = []

    def listed() -> bool:
        """Whether all that are there are listed; one may be made or removed meanwhile."""
        there = backups(service)
        said = service.bullpen("restore", "--list", "-o", "json").stdout
        found[:] = json.loads(said)["backups"]
        return [item["name"] for item in found] == list(reversed(there))

    eventually(listed)
    assert all(item["sound"] and item["objects"] > 5 for item in found)


def test_a_spoiled_backup_is_passed_over_and_can_be_asked_for_in_vain(lab: Lab) -> None:
    """Last: it stops the service in order, which makes one more backup."""
    service = lab.service
    created = lab.create("exporters", "last", labels={})
    assert service.stop() == 0
    found = json.loads(service.bullpen("restore", "--list", "-o", "json").stdout)["backups"]
    newest, second = (item["name"] for item in found[:2])
    assert found[0]["revision"] >= int(created["metadata"]["resourceVersion"]), (
        "a clean stop makes a backup"
    )
    os.truncate(service.data / "backups" / newest, 5 * PAGE)
    refused = service.bullpen("restore", "--from", newest, check=False)
    assert refused.returncode == REFUSED
    assert "is damaged" in refused.stderr
    unknown = service.bullpen("restore", "--from", "nothing", check=False)
    assert unknown.returncode == 3
    assert (service.data / "state.db").exists(), "what is refused changes nothing"
    done = service.bullpen("restore").stdout
    assert second in done
    assert "when the backup was made, are lost" in done
    service.start()
