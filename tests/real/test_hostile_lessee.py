"""A lessee with root in its guest and a hole in every driver, against the host.

Each attack is made three times: from the guest, from where QEMU runs, and from the exporter.
The service runs as root, and as an ordinary user.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.linux_guest import build
from support.qemu_pools import CLASS, apply_class, apply_set, shell, until
from support.real_service import BIN, READY_SECONDS_MAX, Service, eventually, kill_family

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
ORDINARY = 65_432
SECRET = "a-secret-of-the-host"
MIB = 1 << 20
HOLE = {"name": "hole", "type": "hostile_driver.Hole"}
DRIVERS = [HOLE, {"name": "power", "ref": "qemu.power"}, {"name": "serial", "ref": "qemu.console"}]
UNCHECKED = {
    "name": "unchecked",
    "type": "hostile_driver.UncheckedQemu",
    "config": {
        "arch": "aarch64",
        "smp": 1,
        "mem": "128M",
        "default_partitions": {"bios": "/usr/lib/u-boot/qemu_arm64/u-boot.bin"},
    },
}


class ConfiguredService(Service):
    """A service with hostile drivers, of root or of an ordinary user."""

    def __init__(self, data: Path, *arguments: str, user: int) -> None:
        super().__init__(data, *arguments)
        self.user = user

    def start(self) -> None:
        command = [str(BIN / "bullpen"), "up", "--data", str(self.data), *self.arguments]
        if self.user != os.geteuid():
            runner = [sys.executable, str(HERE / "ordinary_user.py"), str(self.user)]
            command = [*runner, str(self.data.parent), *command]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, text=True, env=environment
            )
        eventually(self._ready, seconds=READY_SECONDS_MAX, what="bullpen up being ready")


@dataclass(frozen=True, kw_only=True)
class Lab:
    service: Service
    secret: Path
    """Of the service's own user, readable for it alone."""

    shared: Path
    """Of the host, in a place where people keep things, readable for everybody."""

    images: dict[str, str]

    @property
    def is_root(self) -> bool:
        assert isinstance(self.service, ConfiguredService)
        return self.service.user == 0

    def attack(self, pool: str, story: str) -> Any:
        """What a script prints that has a lease on a member of the pool."""
        process = shell(self.service, pool, str(BIN / "python"), "-c", PREAMBLE + story)
        output, _ = process.communicate(timeout=300)
        answers = [line for line in output.splitlines() if line.startswith("ANSWER ")]
        assert answers, output
        return json.loads(answers[-1].removeprefix("ANSWER "))


PREAMBLE = f"""
import json, sys
sys.path.insert(0, {str(HERE.parent)!r})
from jumpstarter.utils.env import env
from support.linux_guest import root_shell, with_network

def answer(found):
    print("ANSWER " + json.dumps(found), flush=True)

def everywhere(target, command):
    return {{way: target.hole.call(way, command) for way in ("beside", "inside")}}

"""


@contextlib.contextmanager
def lab_of(
    directory: Path, images: dict[str, str], *, user: int, mode: str = "preferred"
) -> Iterator[Lab]:
    directory.chmod(0o755)
    secret, shared = directory / "secret", directory / "shared"
    for path, access in ((secret, 0o600), (shared, 0o644)):
        path.write_text(SECRET.ljust(MIB, "."))
        path.chmod(access)
    config = directory / "config.yaml"
    config.write_text(yaml.safe_dump({"sandbox": {"mode": mode}}))
    service = ConfiguredService(directory / "data", "--config", str(config), user=user)
    arguments = ("--port-base", "0", "--listen", "127.0.0.1")
    service.arguments = (*service.arguments, *arguments)
    for path in (directory, *directory.iterdir()):
        os.chown(path, user, user)
    service.start()
    try:
        yield Lab(service=service, secret=secret, shared=shared, images=images)
    finally:
        assert service.stop() == 0
    assert [p for p in psutil.process_iter() if str(directory) in _arguments(p)] == []


def _arguments(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("images")
    found = build(directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    return found


@pytest.fixture(scope="module", params=["root", "an ordinary user"])
def lab(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    images: dict[str, str],
) -> Iterator[Lab]:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root can run the service as root")
    user = 0 if request.param == "root" else (os.geteuid() or ORDINARY)
    directory = tmp_path_factory.mktemp("lab")
    own = {}
    for name in ("kernel", "initrd"):
        own[name] = str(directory / Path(images[name]).name)
        Path(own[name]).write_bytes(Path(images[name]).read_bytes())
        Path(own[name]).chmod(0o644)
    with lab_of(directory, {**images, **own}, user=user) as found:
        linux = {
            "arch": "x86_64",
            "accel": "tcg",
            "resources": {"cpu": 1, "memory": "256Mi", "storage": "64Mi"},
            "kernel": {"path": own["kernel"]},
            "initrd": {"path": own["initrd"]},
            "append": images["append"],
            "hostfwd": {"hello": {"guestPort": 7}},
        }
        document = {
            **CLASS,
            "metadata": {"name": "linux"},
            "spec": {"provisioner": "qemu.jumpstarter.dev", "parameters": linux},
        }
        found.service.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))
        for name in ("hostile", "neighbour"):
            apply_set(
                found.service, name, drivers=DRIVERS, virtualTargetClassName="linux",
                minAvailableReplicas=1,
            )  # fmt: skip
            until(found.service, name, availableReplicas=1)
        yield found


def pid_of(lab: Lab, pool: str) -> int:
    """The exporter of a pool's only member."""
    (directory,) = (lab.service.data / "instances").glob(f"default.{pool}-*")
    return int(json.loads((directory / "process.json").read_text())["pid"])


def sandboxed(lab: Lab, name: str) -> dict[str, Any]:
    found: Any = lab.service.get("virtualtargetclass", name).get("status", {})
    return next((dict(c) for c in found.get("conditions", ()) if c["type"] == "Sandboxed"), {})


def test_the_class_says_what_its_targets_are_confined_to(lab: Lab) -> None:
    eventually(lambda: sandboxed(lab, "linux"), what="the condition")
    found = sandboxed(lab, "linux")
    log = lab.service.log.read_text()
    missing = "sandbox layer not available" in log
    assert found["status"] == ("False" if missing else "True")
    assert found["reason"] == ("LayersMissing" if missing else "AllLayers")
    assert ("bullpen doctor" in found["message"]) is missing


def test_no_file_of_the_host_is_read(lab: Lab) -> None:
    data = lab.service.data
    (neighbour,) = (data / "instances").glob("default.neighbour-*")
    paths = [
        lab.secret,
        lab.shared,
        data / "state.db",
        data / "kubeconfig",
        data / "clients" / "default.yaml",
        neighbour / "instance.json",
        neighbour / "log",
        *sorted((data / "auth").iterdir()),
        *(path for path in (data / "pki").rglob("*.key")),
    ]
    assert all(path.is_file() for path in paths)
    story = f"""
with env() as target:
    found = {{}}
    for path in {list(map(str, paths))!r}:
        found[path] = everywhere(target, f"head -c 200 {{path}} | base64")
        code = f"print(open({{path!r}}, 'rb').read(20))"
        found[path]["python"] = target.hole.call("python", code)
    answer(found)
"""
    for path, ways in lab.attack("hostile", story).items():
        for way, said in ways.items():
            refused = "No such file" in said or "Permission denied" in said
            assert refused, f"{path} was read {way}: {said}"


def test_no_file_of_the_host_is_written(lab: Lab) -> None:
    places = ["/etc", "/usr", "/usr/local/bin", "/dev/shm", str(lab.service.data), "/var/lib"]
    story = f"""
with env() as target:
    places = {places!r}
    answer({{p: everywhere(target, f"touch {{p}}/left-by-a-lessee && echo done") for p in places}})
"""
    lab.attack("hostile", story)
    assert [p for p in places if (Path(p) / "left-by-a-lessee").exists()] == []


def test_where_qemu_runs_there_is_no_host(lab: Lab) -> None:
    port = lab.service.endpoints["apiserver"].rpartition(":")[2].strip("/")
    pid = pid_of(lab, "neighbour")
    story = f"""
with env() as target:
    answer({{
        "listed": target.hole.call("inside", "echo /* /home/* /root/* /tmp/*"),
        "loopback": target.hole.call("inside", "echo > /dev/tcp/127.0.0.1/{port} && echo reached"),
        "interfaces": target.hole.call("inside", "cat /proc/net/dev"),
        "killed": target.hole.call("inside", "kill -9 {pid} && echo killed"),
        "everything": target.hole.call("inside", "kill -9 -1; echo survived"),
        "environment": target.hole.call("inside", "export"),
        "rights": target.hole.call("inside", "unshare -m true && echo more rights"),
    }})
"""
    found = lab.attack("hostile", story)
    assert "reached" not in found["loopback"]
    assert "refused" in found["loopback"], "there is a loopback, and nobody on it"
    assert "killed" not in found["killed"]
    assert psutil.pid_exists(pid)
    assert "/proc" not in found["listed"].split()
    assert str(lab.service.data.parent) not in found["listed"]
    assert "PYTHONPATH" not in found["environment"]


def test_other_instances_are_out_of_reach(lab: Lab) -> None:
    pid = pid_of(lab, "neighbour")
    story = f"""
with env() as target:
    answer({{
        "environment": everywhere(target, "tr '\\\\0' ' ' < /proc/{pid}/environ"),
        "root": everywhere(target, "ls /proc/{pid}/root/ /proc/{pid}/cwd/"),
        "memory": everywhere(target, "head -c 1 /proc/{pid}/mem | wc -c"),
        "killed": target.hole.call("inside", "kill {pid}"),
        "killed beside": "" if {not lab.is_root} else target.hole.call("beside", "kill {pid}"),
    }})
"""
    found = lab.attack("hostile", story)
    for what in ("environment", "root"):
        for way, said in found[what].items():
            assert "Permission denied" in said or "No such file" in said, f"{what} {way}: {said}"
    assert psutil.pid_exists(pid)
    if lab.is_root:
        assert "not permitted" in found["killed beside"]


def test_root_in_the_guest_reaches_nothing_and_is_reached_through_its_port(lab: Lab) -> None:
    port = lab.service.endpoints["apiserver"].rpartition(":")[2].strip("/")
    story = f"""
with env() as target:
    target.power.on()
    with target.serial.pexpect() as console, root_shell(console) as run:
        with_network(run)
        run("while :; do echo hello from the guest | nc -l -p 7; done >/dev/null &")
        for _ in range(20):
            with target.qemu.hello.stream() as stream:
                try:
                    heard = bytes(stream.receive()).decode()
                    break
                except Exception as error:
                    heard = repr(error)
        tried = run("for a in 10.0.2.2 10.0.2.3; do nc -w 3 $a {port} </dev/null && echo in; done")
        disk = run("cat /sys/block/vda/size")
        answer({{"heard": heard, "tried": tried, "disk": disk}})
"""
    found = lab.attack("hostile", story)
    assert "hello from the guest" in found["heard"]
    assert "in" not in found["tried"].split()
    assert str(64 * MIB // 512) in found["disk"], "its disk is as large as its class says"


def test_no_more_than_the_class_grants_is_used(lab: Lab) -> None:
    story = """
with env() as target:
    many = "(for i in $(seq 700); do sleep 60 & done) 2>&1 | head -n 1"
    answer({
        "file": everywhere(target, "cd ${TMPDIR:-/tmp}; truncate -s 20G large; ls -l large"),
        "forks": target.hole.call("inside", many),
        "processes": target.hole.call("beside", "ulimit -u"),
        "privileges": target.hole.call("beside", "grep NoNewPrivs /proc/self/status"),
        "capabilities": target.hole.call("beside", "grep CapEff /proc/self/status"),
        "user": target.hole.call("beside", "id -u"),
    })
"""
    found = lab.attack("hostile", story)
    for way, said in found["file"].items():
        assert "File size limit exceeded" in said or "File too large" in said, f"{way}: {said}"
    assert "Resource temporarily unavailable" in found["forks"]
    assert found["processes"].strip() == "512"
    assert found["privileges"].split() == ["NoNewPrivs:", "1"]
    assert int(found["capabilities"].split()[1], 16) == 0
    assert lab.is_root == (int(found["user"]) > 1_000_000), "not the service's user"


def test_an_exporter_that_takes_too_much_memory_ends_alone(lab: Lab) -> None:
    if not lab.is_root:
        assert "limits" in lab.service.log.read_text(), "what cannot be limited is said at start"
        return
    story = """
with env() as target:
    try:
        target.hole.call("python", "x = bytearray(3 << 30)")
        answer("it got them")
    except Exception as error:
        answer(type(error).__name__)
"""
    victim, neighbour = pid_of(lab, "hostile"), pid_of(lab, "neighbour")
    process = shell(lab.service, "hostile", str(BIN / "python"), "-c", PREAMBLE + story)
    eventually(lambda: not psutil.pid_exists(victim), seconds=120, what="its end")
    kill_family(process)
    assert "it got them" not in process.communicate()[0]
    assert psutil.pid_exists(neighbour)
    until(lab.service, "hostile", availableReplicas=1)


@pytest.mark.parametrize("mode", ["preferred", "off"])
def test_the_sandbox_alone_holds_when_a_flashed_image_is_not_checked(
    tmp_path_factory: pytest.TempPathFactory, images: dict[str, str], mode: str
) -> None:
    """Without the sandbox the same image shows a file of the host: the attack is a real one."""
    directory = tmp_path_factory.mktemp("unchecked")
    with lab_of(directory, images, user=os.geteuid(), mode=mode) as lab:
        image = directory / "reader"
        backing = ("-b", str(lab.shared), "-F", "raw")
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", *backing, image, "1M"], check=True
        )
        apply_class(lab.service, "uboot")
        apply_set(
            lab.service, "open", drivers=[UNCHECKED], virtualTargetClassName="uboot",
            minAvailableReplicas=1,
        )  # fmt: skip
        until(lab.service, "open", availableReplicas=1)
        story = f"""
with env() as target:
    target.unchecked.flasher.flash({str(image)!r}, target="root")
    try:
        target.unchecked.power.on()
    except Exception as error:
        answer(str(error))
    else:
        with target.unchecked.console.pexpect() as console:
            console.expect("autoboot", timeout=120)
            console.send("\\n")
            console.expect("=> ", timeout=120)
            console.sendline("virtio read ${{kernel_addr_r}} 0 1; md.b ${{kernel_addr_r}} 20")
            console.expect("=> ", timeout=120)
            answer(console.before.decode())
"""
        found = lab.attack("open", story)
        if mode == "off":
            assert SECRET[:16] in found
            assert sandboxed(lab, "uboot")["reason"] == "SwitchedOff"
        else:
            assert SECRET[:8] not in found
            assert "No such file" in found
