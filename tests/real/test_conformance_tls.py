"""The conformance checklist, point 12: TLS by authority, without one, with a wrong one, by name,
by IPv4 and by IPv6."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from bullpen.datadir import certificates
from support.lab_helpers import Lab, at_once, warnings_in
from support.real_service import Service, running_service

pytestmark = pytest.mark.real


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def changed(config: Path, stem: str, **changes: object) -> Path:
    """A copy of a config with some of it changed."""
    content = {**yaml.safe_load(config.read_text()), **changes}
    path = config.with_name(f"{stem}-{config.name}")
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice")


@pytest.fixture(scope="module")
def boards(lab: Lab) -> Iterator[None]:
    """One exporter that checks the service's certificate, one that does not."""
    careful = lab.exporter("careful", {"board": "careful"})
    careless = changed(
        lab.exporter("careless", {"board": "careless"}), "open", tls={"ca": "", "insecure": True}
    )
    with lab.running(careful, careless):
        yield


def power_on(lab: Lab, client: Path, board: str) -> None:
    done = lab.jmp(client, "shell", "-l", f"board={board}", "--", "j", "power", "on")
    assert not [line for line in warnings_in(done.stdout) if "insecure" not in line.lower()]


def test_12_by_authority_and_without_one(lab: Lab, alice: Path, boards: None) -> None:
    careless = changed(alice, "open", tls={"ca": "", "insecure": True})
    at_once(
        lambda: power_on(lab, alice, "careful"),
        lambda: power_on(lab, careless, "careless"),
    )


def test_12_by_name_instead_of_address(lab: Lab, alice: Path, boards: None) -> None:
    port = lab.service.endpoints["controller"].rpartition(":")[2]
    power_on(lab, changed(alice, "named", endpoint=f"localhost:{port}"), "careful")


def test_12_a_wrong_authority_is_explained(
    lab: Lab, alice: Path, boards: None, tmp_path: Path
) -> None:
    other = certificates.ensure(tmp_path, ("localhost",), now=datetime.now(UTC))
    authority = base64.b64encode(other.ca_pem()).decode()
    wrong = changed(alice, "wrong", tls={"ca": authority, "insecure": False})
    empty = changed(alice, "empty", tls={"ca": "", "insecure": False})
    for refused in at_once(
        lambda: lab.jmp(wrong, "get", "exporters", check=False),
        lambda: lab.jmp(empty, "get", "exporters", check=False),
    ):
        assert refused.returncode
        assert "certificate" in refused.stderr.lower()
        assert "Traceback" not in refused.stderr


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_12_over_ipv6(tmp_path: Path) -> None:
    with running_service(tmp_path, "--listen", "::1") as service:
        lab = Lab(service)
        assert service.endpoints["controller"].startswith("[::1]:")
        alice = lab.client("alice")
        with lab.running(lab.exporter("six", {"board": "six"})):
            careless = changed(alice, "open", tls={"ca": "", "insecure": True})
            power_on(lab, alice, "six")
            power_on(lab, careless, "six")
