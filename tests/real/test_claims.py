"""``bullpen claim`` on a real service, with real exporters and the stock client."""

from __future__ import annotations

import json

import pytest

from support.real_service import Service, eventually

pytestmark = [pytest.mark.real, pytest.mark.patient]

CLASSES = """
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClass
metadata: {name: board}
spec: {selectors: [{labels: {matchLabels: {kind: board}}}]}
---
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClass
metadata: {name: rare}
spec: {selectors: [{labels: {matchLabels: {kind: rare}}}]}
"""


def test_two_boards_are_claimed_used_and_released(service: Service) -> None:
    alice = service.create_client("alice")
    service.kubectl("apply", "-f", "-", input=CLASSES)
    one = service.create_exporter("one", {"kind": "board", "site": "brno"})
    two = service.create_exporter("two", {"kind": "board", "site": "brno"})
    asked = ("--client", "alice", "--duration", "10m", "--match", "site")
    with service.exporter(one), service.exporter(two):
        service.bullpen("claim", "create", "bench", "--request", "boards=board,count=2", *asked)
        listed = service.bullpen("claim", "wait", "bench", "--timeout", "1m").stdout.splitlines()
        rows = [line.split() for line in listed[1:]]
        assert [(request, exporter) for request, exporter, _ in rows] == [
            ("boards", "one"),
            ("boards", "two"),
        ]
        for _, _, lease in rows:
            service.jmp(
                "shell", "--client-config", str(alice), "--lease", lease, "--", "j", "power", "on"
            )
        service.bullpen("claim", "create", "late", "--request", "boards=board", *asked)
        late = service.bullpen("claim", "wait", "late", "--timeout", "2s", check=False)
        assert late.returncode == 12, late.stderr
        assert "one" in late.stderr, "it says who has what is missing"
        service.bullpen("claim", "release", "bench")
        service.bullpen("claim", "wait", "late", "--timeout", "1m")
        found = json.loads(service.bullpen("claim", "get", "bench", "-o", "json").stdout)
        assert found["status"]["ended"]
        ended = service.bullpen("claim", "wait", "bench", check=False)
        assert (ended.returncode, "Released" in ended.stderr) == (13, True)
        service.bullpen("claim", "release", "late")
        eventually(lambda: service.exporter_status("one") == "Available", seconds=20)


def test_a_claim_that_cannot_be_served_exits_with_13(service: Service) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES)
    service.bullpen("claim", "create", "never", "--request", "dut=rare")
    done = service.bullpen("claim", "wait", "never", "--timeout", "1m", check=False)
    assert done.returncode == 13, done.stderr
    assert "Unsatisfiable" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("bench",),
        ("--request", "dut=board"),
        ("bench", "--request", "dut"),
        ("bench", "--request", "dut=board,count=many"),
    ],
    ids=["nothing is asked for", "no name", "no class", "no number"],
)
def test_a_claim_that_is_written_wrongly_is_refused(
    service: Service, wrong: tuple[str, ...]
) -> None:
    done = service.bullpen("claim", "create", *wrong, check=False)
    assert done.returncode == 2, done.stderr
