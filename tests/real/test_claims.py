"""``bullpen claim`` on a real service, with real exporters and the stock client."""

from __future__ import annotations

import contextlib
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.real_service import BIN, Service, eventually

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"

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
    asked = ("--duration", "10m", "--match", "site")

    def claim(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        first, *rest = arguments
        return service.bullpen("claim", first, "--client-config", str(alice), *rest, **options)

    with service.exporter(one), service.exporter(two):
        claim("create", "bench", "--request", "boards=board,count=2", *asked)
        listed = claim("wait", "bench", "--timeout", "1m").stdout.splitlines()
        rows = [line.split() for line in listed[1:]]
        assert [(request, exporter) for request, exporter, _ in rows] == [
            ("boards", "one"),
            ("boards", "two"),
        ]
        for _, _, lease in rows:
            service.jmp(
                "shell", "--client-config", str(alice), "--lease", lease, "--", "j", "power", "on"
            )
        used = claim("shell", "bench/boards/2", "--", "sh", "-c", "echo $JMP_EXPORTER; j power on")
        assert used.stdout.splitlines()[0] == "two"
        claim("create", "late", "--request", "boards=board", *asked)
        late = claim("wait", "late", "--timeout", "2s", check=False)
        assert late.returncode == 12, late.stderr
        assert "one" in late.stderr, "it says who has what is missing"
        assert "earliest start" in late.stderr, "and until when"
        assert claim("list", "-o", "name").stdout.split() == ["bench", "late"]
        assert "lasts 20m" in claim("extend", "bench", "20m").stdout
        claim("release", "bench")
        claim("wait", "late", "--timeout", "1m")
        found = json.loads(claim("get", "bench", "-o", "json").stdout)
        assert found["status"]["ended"]
        ended = claim("wait", "bench", check=False)
        assert (ended.returncode, "Released" in ended.stderr) == (13, True)
        claim("release", "late")
        eventually(lambda: service.exporter_status("one") == "Available", seconds=120)


def test_a_command_gets_one_target_for_each_request(service: Service) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES)
    service.kubectl("apply", "-f", "-", input=CLASSES.replace("rare", "can"))
    dut = service.create_exporter("dut-1", {"kind": "board"})
    peer = service.create_exporter("can-1", {"kind": "can"})
    script = """
        set -e
        test "$JMP_EXPORTER_DUT $JMP_EXPORTER_PEER" = "dut-1 can-1"
        for host in "$JUMPSTARTER_HOST_DUT" "$JUMPSTARTER_HOST_PEER"; do
          JUMPSTARTER_HOST=$host j power on
        done
        exit 7
    """
    with service.exporter(dut), service.exporter(peer):
        asked = ("--request", "dut=board", "--request", "peer=can")
        ended = service.bullpen(
            "claim", "run", "--name", "both", *asked, "--", "sh", "-c", script, check=False
        )
        assert ended.returncode == 7, ended.stderr
        assert service.bullpen("claim", "list", "-o", "name").stdout == "", "it was released"


LICENCES = """
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClass
metadata: {name: licence}
spec: {selectors: [{labels: {matchLabels: {pool: licences}}}]}
---
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DevicePool
metadata: {name: licences}
spec: {devices: [{name: seat-0}, {name: seat-1}]}
"""


def test_a_claim_for_licences_alone_runs_a_command_and_has_nothing_to_connect_to(
    service: Service,
) -> None:
    licensee = service.create_client("licensee")
    service.kubectl("apply", "-f", "-", input=LICENCES)
    asked = ("--client-config", str(licensee), "--request", "my-seat=licence,count=2")
    script = "echo $JMP_DEVICE_MY_SEAT $JMP_DEVICE_MY_SEAT_2 $JUMPSTARTER_HOST; exit 7"
    ran = service.bullpen("claim", "run", *asked, "--", "sh", "-c", script, check=False)
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout.split() == ["licences/seat-0", "licences/seat-1"]
    service.bullpen("claim", "create", "seats", *asked)
    for target in ("seats", "seats/my-seat"):
        command = ("claim", "shell", target, "--client-config", str(licensee), "--", "true")
        refused = service.bullpen(*command, check=False)
        assert refused.returncode != 0
        assert "only devices without an exporter: licences/seat-0" in refused.stderr
        assert "Traceback" not in refused.stderr
    service.bullpen("claim", "release", "seats", "--client-config", str(licensee))
    service.kubectl("delete", "-f", "-", input=LICENCES)


def test_a_claim_that_ends_ends_the_command(service: Service) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES)
    with service.exporter(service.create_exporter("three", {"kind": "board"})):
        command = [
            str(BIN / "bullpen"), "claim", "run", "--name", "short", "--request", "dut=board",
            "--", "sh", "-c", "echo running; exec sleep 300",
        ]  # fmt: skip
        with subprocess.Popen(
            command, env=service.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            assert running.stdout.readline() == "running\n"
            service.bullpen("claim", "release", "short")
            _, said = running.communicate(timeout=120)
        assert running.returncode == 14, said
        assert "the claim has ended" in said


TEST_FILE = """
import pytest

@pytest.mark.claim({"dut": "board", "peer": {"deviceClassName": "can", "count": 2}}, timeout="1m")
def test_bench(claim):
    claim["dut"].power.on()
    assert sorted(claim) == ["dut", "peer"]
    for client in claim.all("peer"):
        client.power.on()
    assert len(claim.leases["peer"]) == 2

def test_without_a_marker(claim):
    pass
"""


def test_pytest_gets_connected_clients_by_request(service: Service, tmp_path: Path) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES.replace("rare", "can"))
    (tmp_path / "test_bench.py").write_text(TEST_FILE)
    with contextlib.ExitStack() as stack:
        for name, kind in (("dut-2", "board"), ("can-2", "can"), ("can-3", "can")):
            stack.enter_context(service.exporter(service.create_exporter(name, {"kind": kind})))
        done = service.run(
            str(BIN / "pytest"), "-q", "-p", "no:cacheprovider", str(tmp_path / "test_bench.py"),
            check=False,
        )  # fmt: skip
        assert "1 passed, 1 error" in done.stdout, done.stdout
        assert "say what to claim" in done.stdout
        assert service.bullpen("claim", "list", "-o", "name").stdout == "", "it was released"


def test_hardware_if_it_is_free_else_the_cloud_else_qemu_on_one_site(
    fresh_service: Service,
) -> None:
    """The alternatives of ``examples/two-sites-claim.yaml``, with short waits and a begin time."""
    service = fresh_service
    service.kubectl("apply", "-f", str(EXAMPLES / "two-sites.yaml"))
    text = (EXAMPLES / "two-sites-claim.yaml").read_text()
    text = text.replace("after: 5m", "after: 3s").replace("after: 10m", "after: 6s")
    shelf = {
        "gateway-brno": {"board": "gateway", "fidelity": "full", "site": "brno"},
        "can-brno-1": {"kind": "can-node", "site": "brno"},
        "can-brno-2": {"kind": "can-node", "site": "brno"},
        "can-prague": {"kind": "can-node", "site": "prague"},
    }

    def got(name: str, written: str = text) -> list[tuple[str, str, str]]:
        """Request, alternative and device of each target of a new claim."""
        service.bullpen("claim", "create", name, "-f", "-", input=written)
        service.bullpen("claim", "wait", name, "--timeout", "3m")
        status: Any = service.get("deviceclaim", name)["status"]
        return [(m["request"], m.get("alternative", ""), m["device"]) for m in status["members"]]

    def members(pool: str) -> int:
        found: Any = service.get("exporterset", pool)
        return int(found.get("status", {}).get("replicas", 0))

    with contextlib.ExitStack() as stack:
        for name, labels in shelf.items():
            stack.enter_context(service.exporter(service.create_exporter(name, labels)))
        assert got("first") == [("dut", "hardware", "gateway-brno"), ("peer", "", "can-brno-1")]
        assert got("second") == [("dut", "cloud", "cloud-brno-0"), ("peer", "", "can-brno-2")]
        assert (members("qemu-brno"), members("qemu-prague")) == (0, 0), "not before its time"
        assert got("third") == [("dut", "qemu", "qemu-prague-0"), ("peer", "", "can-prague")]
        assert members("qemu-brno") == 0, "a board without its peer is of no use"
        cloud: Any = service.get("exporter", "cloud-brno-0")
        assert cloud["metadata"]["labels"]["stand-in"] == "cloud"
        console = (str(BIN / "python"), str(EXAMPLES / "console.py"))
        used = service.bullpen("claim", "shell", "third/dut", "--", *console)
        assert "U-Boot answered." in used.stdout
        for name in ("first", "second", "third"):
            service.jmp(
                "shell", "--client-config", str(service.data / "clients" / "default.yaml"),
                "--lease", _lease(service, name, "peer"), "--", "j", "power", "on",
            )  # fmt: skip
        service.bullpen("claim", "release", "first")
        begin = datetime.now(UTC) + timedelta(seconds=30)
        booked = text.replace("2h", f"2h\n  beginTime: {begin:%Y-%m-%dT%H:%M:%SZ}")
        service.bullpen("claim", "create", "nine", "-f", "-", input=booked)
        assert "Reserved" in service.bullpen("claim", "get", "nine").stdout
        service.bullpen("claim", "create", "walk-in", "-f", "-", input=text)
        service.bullpen("claim", "wait", "nine", "--timeout", "3m")
        nine: Any = service.get("deviceclaim", "nine")["status"]
        assert nine["members"][0]["device"] == "gateway-brno"
        assert datetime.now(UTC) >= begin.replace(microsecond=0)
        service.bullpen("claim", "release", "second", "third", "nine", "walk-in")


def test_kubectl_extends_nothing_past_a_booking(service: Service) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES.replace("rare", "rack"))
    begin = f"{datetime.now(UTC) + timedelta(minutes=20):%Y-%m-%dT%H:%M:%SZ}"
    asked = {"clientRef": {"name": "default"}, "selector": {"matchLabels": {"kind": "rack"}}}
    requests = [{"name": "dut", "exactly": {"deviceClassName": "rack"}}]

    def lease(name: str, **spec: str) -> str:
        meta, kind = {"name": name, "namespace": "default"}, {"kind": "Lease"}
        api = {"apiVersion": "jumpstarter.dev/v1alpha1"}
        return json.dumps({**api, **kind, "metadata": meta, "spec": {**asked, **spec}})

    def refused(*arguments: str, **options: object) -> None:
        done = service.kubectl(*arguments, check=False, **options)
        assert "the end must not be later than" in done.stderr, done

    patch = ("--type=merge", "-p", '{"spec": {"duration": "1h"}}')
    with service.exporter(service.create_exporter("rack-1", {"kind": "rack"})):
        service.kubectl("create", "-f", "-", input=lease("now", duration="10m"))
        service.kubectl("wait", "lease.jumpstarter.dev/now", "--for=condition=Ready")
        service.kubectl("create", "-f", "-", input=lease("later", duration="1h", beginTime=begin))
        refused("patch", "lease.jumpstarter.dev", "now", *patch)
        refused("apply", "-f", "-", input=lease("now", duration="1h"))
        found = service.get("lease.jumpstarter.dev", "now")
        found["spec"]["duration"] = "1h"
        refused("replace", "-f", "-", input=json.dumps(found))
        service.kubectl("apply", "-f", "-", input=lease("now", duration="12m"))
        service.kubectl("delete", "lease.jumpstarter.dev", "now")
        service.bullpen("claim", "create", "rack", "--request", "dut=rack", "--duration", "10m")
        service.bullpen("claim", "wait", "rack", "--timeout", "1m")
        assert service.get("deviceclaim", "rack")["spec"]["requests"] == requests
        refused("patch", "deviceclaim", "rack", *patch)
        service.bullpen("claim", "release", "rack")
        service.kubectl("delete", "lease.jumpstarter.dev", "later")


def _lease(service: Service, claim: str, request: str) -> str:
    status: Any = service.get("deviceclaim", claim)["status"]
    found = [m["leaseRef"]["name"] for m in status["members"] if m["request"] == request]
    return str(found[0])


def test_a_claim_that_cannot_be_served_exits_with_13(service: Service) -> None:
    service.kubectl("apply", "-f", "-", input=CLASSES)
    service.bullpen("claim", "create", "never", "--request", "dut=rare")
    done = service.bullpen("claim", "wait", "never", "--timeout", "1m", check=False)
    assert done.returncode == 13, done.stderr
    assert "Unsatisfiable" in done.stderr
    service.bullpen("claim", "release", "never")


@pytest.mark.parametrize(
    "wrong",
    [
        ("bench",),
        ("bench", "--request", "dut"),
        ("bench", "--request", "dut=board,count=many"),
    ],
    ids=["nothing is asked for", "no class", "no number"],
)
def test_a_claim_that_is_written_wrongly_is_refused(
    service: Service, wrong: tuple[str, ...]
) -> None:
    done = service.bullpen("claim", "create", *wrong, check=False)
    assert done.returncode == 2, done.stderr
