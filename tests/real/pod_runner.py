"""Runs one rendered Pod as processes of this machine, the way a node would.

Every container gets this machine's files as its image, read-only, and the Pod's volumes; it
runs as the Pod's user, without any privilege. Needs root, to make the mounts with.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from support.real_service import BIN

PROBE_SECONDS_MAX = 40.0
STOP_SECONDS_MAX = 15.0

CONTAINER = """\
set -eu
mount -t tmpfs none {box}
mkdir {box}/upper {box}/work {box}/root
mount -t overlay overlay -o lowerdir=/,upperdir={box}/upper,workdir={box}/work {box}/root
cd {box}/root
chmod 755 root
mkdir -p {points}
mount -t proc none proc
mount -t tmpfs none dev
for device in null zero full random urandom; do
    touch dev/$device; mount --bind /dev/$device dev/$device
done
touch dev/termination-log; mount --bind {log} dev/termination-log
mount -o remount,ro .
{mounts}
exec chroot . setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs \\
    --inh-caps -all --bounding-set -all --pdeathsig KILL -- \\
    env -i -C {cwd} PATH={path} {env} {command}
"""


class RunningPod:
    """A Pod from its Secrets to its end."""

    def __init__(
        self,
        directory: Path,
        pod: dict[str, Any],
        secrets: dict[str, Any],
        claims: Path | None = None,
    ) -> None:
        """``claims`` has a directory for each PersistentVolumeClaim; it outlives the Pod."""
        self.pod = pod
        self.spec = pod["spec"]
        self._directory = directory
        self._user = self.spec["securityContext"]["runAsUser"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._claims = claims or directory / "claims"
        self._claimed: dict[str, str] = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in self.spec["volumes"]
            if "persistentVolumeClaim" in volume
        }
        for volume in self.spec["volumes"]:
            self._make_volume(volume, secrets)

    def start(self) -> None:
        """As a node does: one after the other, sidecars up before the next."""
        for container in self.spec.get("initContainers", ()):
            process = self._run(container)
            if container.get("restartPolicy") == "Always":
                self._await_probe(container)
            else:
                assert process.wait(PROBE_SECONDS_MAX) == 0, self.log(container["name"])
        (main,) = self.spec["containers"]
        self._run(main)
        self._await_probe(main)

    def annotate(self, name: str, value: str) -> None:
        (self._volume("podinfo") / "annotations").write_text(f"{name}={json.dumps(value)}\n")

    def wait(self) -> tuple[int, dict[str, str]]:
        """What the main container returned, and its last words."""
        code = self._processes["exporter"].wait(PROBE_SECONDS_MAX)
        said: dict[str, str] = json.loads(self._last_words("exporter").read_text())
        return code, said

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def stop(self) -> None:
        """Main container first, sidecars after it."""
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                (first,) = psutil.Process(process.pid).children()
                first.terminate()
                process.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _volume(self, name: str) -> Path:
        if name in self._claimed:
            return self._claims / self._claimed[name]
        return self._directory / "volumes" / name

    def _last_words(self, name: str) -> Path:
        return self._directory / f"{name}.termination-log"

    def _make_volume(self, volume: dict[str, Any], secrets: dict[str, Any]) -> None:
        path = self._volume(volume["name"])
        path.mkdir(parents=True, exist_ok="persistentVolumeClaim" in volume)
        if "secret" in volume:
            for key, value in secrets[volume["secret"]["secretName"]].items():
                (path / key).write_bytes(base64.b64decode(value))
        if "downwardAPI" in volume:
            (path / "annotations").write_text("")
        for found in (path, *path.iterdir()):
            os.chown(found, self._user, self._user)

    def _run(self, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        name = container["name"]
        box = self._directory / f"{name}.box"
        box.mkdir()
        words = self._last_words(name)
        words.touch()
        words.chmod(0o666)
        mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
        # A mount below another comes after it, and its place is made in that other.
        lines = [f"mkdir -p .{path}; mount --bind {self._volume(m['name'])} .{path}"
                 + (f"; mount -o remount,ro,bind .{path}" if m.get("readOnly") else "")
                 for path, m in sorted(mounts.items())]  # fmt: skip
        script = CONTAINER.format(
            box=box,
            points=" ".join(f".{path}" for path in mounts),
            log=words,
            mounts="\n".join(lines),
            user=self._user,
            cwd=container.get("workingDir", "/"),
            path=f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            env=" ".join(
                shlex.quote(f"{item['name']}={item['value']}") for item in container.get("env", ())
            ),
            command=shlex.join([*container["command"], *container.get("args", ())]),
        )
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation",
                 "private", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self._processes[name]

    def _await_probe(self, container: dict[str, Any]) -> None:
        # sh -c "test KIND PATH || …"
        _, kind, path, *_ = container["startupProbe"]["exec"]["command"][2].split()
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        point = next(point for point in mounts if path.startswith(point))
        seen = self._volume(mounts[point]) / Path(path).relative_to(point)
        end = time.monotonic() + PROBE_SECONDS_MAX
        while not (seen.is_socket() if kind == "-S" else seen.exists()):
            running = self._processes[container["name"]].poll() is None
            assert running, self.log(container["name"])
            assert time.monotonic() < end, self.log(container["name"])
            time.sleep(0.05)
