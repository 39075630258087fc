"""The conformance checklist, points 2, 3, 4, 6, 7, 9 and 11: leasing with the real ``jmp``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, at_once, read_until, warnings_in
from support.real_service import Service, eventually, kill_family

pytestmark = pytest.mark.real

IDLE_SECONDS = 75.0
"""Longer than a server left at its defaults lets a client live that pings every 20 s."""

LIVELY = """
import sys
from jumpstarter.utils.env import env
with env() as target:
    print("=connected=", flush=True)
    for line in sys.stdin:
        target.power.on()
        print("=on=", flush=True)
"""


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice", labels={"team": "a"})


@pytest.fixture(scope="module")
def bob(lab: Lab) -> Path:
    return lab.client("bob", labels={"team": "b"})


@pytest.fixture(scope="module")
def boards(lab: Lab) -> Iterator[dict[str, Path]]:
    """One exporter per test that needs one to itself, started together."""
    names = ("shell", "idle", "expiring", "kept", "killed", "waited")
    configs = {name: lab.exporter(name, {"board": name}) for name in names}
    with lab.running(*configs.values()):
        yield configs


def on(lab: Lab, client: Path, *arguments: str, check: bool = True) -> str:
    """What ``jmp shell … -- j power on`` says."""
    done = lab.jmp(client, "shell", *arguments, "--", "j", "power", "on", check=check)
    return done.stdout + done.stderr


def reading_seconds(lab: Lab, client: Path) -> float:
    """How long a call of the client takes that leases nothing, as busy as the machine is."""
    start = time.monotonic()
    lab.jmp(client, "get", "leases")
    return time.monotonic() - start


POLL_SECONDS = 5.0
"""The pause of the stock client between two questions, which nothing here may need."""


def log_of(config: Path) -> str:
    return config.with_suffix(".log").read_text()


def test_03_shell_by_selector_is_quick_and_quiet(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    times = []
    for _ in range(3):
        base = reading_seconds(lab, alice)
        start = time.monotonic()
        output = on(lab, alice, "-l", "board=shell")
        times.append(time.monotonic() - start - base)
        assert not warnings_in(output)
    # Each shell runs a second program, which starts as slowly as the first.
    assert min(times) - base < POLL_SECONDS
    assert log_of(boards["shell"]).count("power on") == 3
    print(f"shell wall times: {[round(t, 2) for t in times]}")


def test_03_shell_by_name_and_by_name_with_selector(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    before = log_of(boards["shell"]).count("power on")
    assert not warnings_in(on(lab, alice, "-n", "shell"))
    assert not warnings_in(on(lab, alice, "-n", "shell", "-l", "board=shell"))
    assert log_of(boards["shell"]).count("power on") == before + 2


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(["-n", "nobody"], "there is no exporter nobody", id="unknown name"),
        pytest.param(["-l", "board=none"], "matches board=none", id="unknown label"),
        pytest.param(
            ["-n", "shell", "-l", "board=none"], "does not match", id="name against selector"
        ),
    ],
)
def test_03_what_cannot_be_had_is_refused_at_once(
    lab: Lab, alice: Path, boards: dict[str, Path], arguments: list[str], why: str
) -> None:
    base = reading_seconds(lab, alice)
    start = time.monotonic()
    output = on(lab, alice, *arguments, check=False)
    assert time.monotonic() - start - base < POLL_SECONDS
    assert "Error: the lease cannot be satisfied" in output
    assert why in output


def test_04_a_waiting_shell_starts_when_the_other_ends(
    lab: Lab, alice: Path, bob: Path, boards: dict[str, Path]
) -> None:
    """The second client is told why it waits, and begins within six seconds of the release."""
    with lab.open_shell(alice, "-l", "board=waited", "--", "sh", "-c", "echo =in=; cat") as first:
        read_until(first, "=in=")
        with lab.open_shell(
            bob, "-l", "board=waited", "--", "sh", "-c", "date +started=%s.%N"
        ) as second:
            said = read_until(second, "Waiting for lease")
            assert "position 1 in the queue: 1 exporter matches, it is in use" in said
            assert first.stdin is not None
            first.stdin.close()
            assert first.wait(120) == 0
            (mine,) = [
                lease
                for lease in lab.get("leases")["items"]
                if lease["status"].get("exporterRef", {}).get("name") == "waited"
                and lease["spec"]["clientRef"]["name"] == "alice"
            ]
            started = float(read_until(second, "started=").rpartition("started=")[2])
            assert second.wait(120) == 0
    released = time.strptime(mine["status"]["endTime"], "%Y-%m-%dT%H:%M:%SZ")
    waited = started - (time.mktime(released) - time.timezone)
    assert waited <= 6.0 + 1.0, "the time of release is in whole seconds"
    print(f"second client started {waited:.1f} s after the release")


def test_06_expiry_hangs_up_on_the_command_and_frees_the_exporter(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    script = "trap 'echo hung up; exit 42' HUP; echo =in=; while :; do sleep 0.1; done"
    # A test run under nohup ignores hang-ups, and what is ignored cannot be trapped.
    command = ("env", "--default-signal=HUP", "sh", "-c", script)
    with lab.open_shell(
        alice, "-l", "board=expiring", "--duration", "10s", "--", *command
    ) as shell:
        output = read_until(shell, "hung up")
        assert shell.stdout is not None
        output += shell.stdout.read()
        assert shell.wait(120) == 42
    assert "Error" not in output
    assert not warnings_in(output)
    eventually(lambda: lab.status("expiring") == "Available", what="the exporter being free")
    assert "leaseRef" not in lab.get("exporters", "expiring")["status"]
    assert on(lab, alice, "-l", "board=expiring")


def test_07_a_created_lease_is_used_twice_and_deleted(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    made = lab.jmp(alice, "create", "lease", "-l", "board=kept", "--duration", "5m", "-o", "name")
    lease = made.stdout.strip().rpartition("/")[2]
    before = log_of(boards["kept"]).count("power on")
    for _ in range(2):
        done = lab.jmp(alice, "shell", "--", "j", "power", "on", JMP_LEASE=lease)
        assert not warnings_in(done.stdout)
    assert log_of(boards["kept"]).count("power on") == before + 2
    assert lab.get("leases", lease)["status"]["ended"] is False
    lab.jmp(alice, "delete", "leases", lease)
    status = lab.get("leases", lease)["status"]
    assert status["ended"] is True
    assert [c["type"] for c in status["conditions"]][-1] == "Ready"
    over = lab.jmp(alice, "shell", "--", "true", JMP_LEASE=lease, check=False)
    assert over.returncode != 0


def test_07_a_transferred_lease_is_the_new_owners_at_once_and_the_old_owner_is_cut(
    lab: Lab, alice: Path, bob: Path, boards: dict[str, Path]
) -> None:
    script = lab.service.home / "lively.py"
    script.write_text(LIVELY)
    made = lab.jmp(alice, "create", "lease", "-l", "board=kept", "--duration", "5m", "-o", "name")
    lease = made.stdout.strip().rpartition("/")[2]
    with lab.open_shell(alice, "--lease", lease, "--", "python", str(script)) as shell:
        assert shell.stdin is not None
        read_until(shell, "=connected=")
        shell.stdin.write("\n")
        shell.stdin.flush()
        read_until(shell, "=on=")
        lab.jmp(alice, "update", "lease", lease, "--to-client", "bob")
        done = lab.jmp(bob, "shell", "--lease", lease, "--", "j", "power", "on")
        assert not warnings_in(done.stdout)
        before = log_of(boards["kept"]).count("power on")
        shell.stdin.write("\n")
        shell.stdin.close()
        output = shell.stdout.read() if shell.stdout else ""
        assert shell.wait(120) != 0
        assert log_of(boards["kept"]).count("power on") == before, "the old owner still got through"
    assert "transferred to another client" in output
    held = lab.get("leases", lease)
    assert held["status"]["clientRef"] == {"name": "bob"}
    assert {s["client"] for s in held["status"]["sessions"]} == {"alice", "bob"}
    refused = lab.jmp(alice, "delete", "leases", lease, check=False)
    assert "belongs to another client" in refused.stdout + refused.stderr
    lab.jmp(bob, "delete", "leases", lease)


def test_09_a_shell_outlives_the_death_of_its_exporter(lab: Lab, alice: Path) -> None:
    script = "echo =in=; read go; j power on && echo =again="
    config = lab.exporter("mortal", {"board": "mortal"})
    with lab.open_shell(alice, "-l", "board=mortal", "--", "sh", "-c", script) as shell:
        with lab.running(config) as (exporter,):
            read_until(shell, "=in=")
            (lease,) = lab.open_leases("alice")
            kill_family(exporter)
        assert shell.stdin is not None
        with lab.service.exporter(config, wait=False):
            shell.stdin.write("go\n")
            shell.stdin.close()
            output = read_until(shell, "=again=")
            assert shell.wait(120) == 0
    assert "Error:" not in output
    name = lease["metadata"]["name"]
    assert lab.get("leases", name)["status"]["exporterRef"] == {"name": "mortal"}


def test_11_policies_deny_by_default_prefer_limit_and_explain(lab: Lab, service: Service) -> None:
    """In a namespace of its own, because any policy closes the namespace it is in."""
    space = "guarded"
    service.kubectl("create", "namespace", space)
    member = lab.client("member", labels={"team": "a"}, namespace=space)
    guest = lab.client("guest", labels={"team": "x"}, namespace=space)
    for name in ("one", "two"):
        lab.exporter(name, {"board": "b", "name": name}, namespace=space)
    rules = [
        _policy("slow", {"name": "one"}, priority=1, maximumDuration="1h", description="ask Eve"),
        _policy("fast", {"name": "two"}, priority=5, maximumDuration="2h", description="ask Eve"),
    ]
    for name, spec in rules:
        lab.create("exporteraccesspolicies", name, namespace=space, spec=spec)
    configs = [service.home / f"exporter-{space}-{name}.yaml" for name in ("one", "two")]
    with lab.running(*configs):
        chosen = lab.jmp(member, "shell", "-l", "board=b", "--", "sh", "-c", "echo =$JMP_EXPORTER=")
        assert "=two=" in chosen.stdout, "the higher priority is preferred, not the first name"

        def refused(client: Path, *arguments: str) -> str:
            done = lab.jmp(client, "shell", *arguments, "--", "true", check=False)
            assert done.returncode
            return done.stderr

        stranger, too_long = at_once(
            lambda: refused(guest, "-l", "board=b"),
            lambda: refused(member, "-l", "board=b", "--duration", "3h"),
        )
        made = lab.jmp(member, "create", "lease", "-n", "one", "--duration", "30m", "-o", "name")
        lease = made.stdout.strip().rpartition("/")[2]
        longer = lab.jmp(member, "update", "lease", lease, "--duration", "90m", check=False)
        assert "the policies allow member at most 1h0m0s" in longer.stderr
        lab.jmp(member, "update", "lease", lease, "--duration", "50m")
    assert lab.get("leases", lease, space)["spec"]["duration"] == "50m0s"
    assert "ask Eve" in stranger
    assert "no policy gives guest access" in stranger
    assert "at most 2h" in too_long


def _policy(name: str, exporters: dict[str, str], **rule: object) -> tuple[str, dict[str, object]]:
    allowed = {"from": [{"clientSelector": {"matchLabels": {"team": "a"}}}], **rule}
    return name, {"exporterSelector": {"matchLabels": exporters}, "policies": [allowed]}


@pytest.mark.slow
def test_02_an_exporter_registers_is_listed_and_stays_connected(
    lab: Lab, alice: Path, boards: dict[str, Path]
) -> None:
    """Last in the file, so that most of the waiting has been done by the other tests."""
    table = lab.jmp(alice, "get", "exporters", "--with", "online,status", "-l", "board=idle").stdout
    assert re.search(r"^idle\s+yes\s+AVAILABLE\s+board=idle", table, re.MULTILINE)
    log = boards["idle"].with_suffix(".log")
    since = log.stat().st_mtime
    time.sleep(max(0.0, IDLE_SECONDS - (time.time() - since)))
    text = log.read_text()
    assert "interrupted" not in text
    assert "retr" not in text
    assert text.count("Registering exporter with controller") == 1
    assert lab.status("idle") == "Available"
    online = lab.condition("exporters", "idle", "Online")
    assert online["status"] == "True"
    assert lab.events("idle").count("ExporterOnline") <= 1
    assert "ExporterOffline" not in lab.events("idle")
