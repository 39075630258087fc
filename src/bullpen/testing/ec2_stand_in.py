"""A stand-in for Amazon EC2, with a real SSH server as each machine.

    python -m bullpen.testing.ec2_stand_in --port 5150 --directory machines

The API is that of moto, another project's imitation of AWS. In front of it, this program adds what
moto lacks: creations that are safe to repeat, delays, throttling, missing capacity and lost
answers. AWS itself was never seen by it, signatures are not checked, and all machines share the
kernel and the files of this one: an instance is an ``sshd`` with an address and keys of its own.

It needs moto (``moto[ec2]``, ``flask``, ``flask-cors``) and Debian's ``openssh-server``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import email
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from aiohttp import ClientSession, web

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SSH_PORT = 2222
"""All machines listen on this port, each at an address of its own."""

NETWORK = "127.77"
"""Every address that begins with 127 is this machine's own."""

BODY_BYTES_MAX = 1 << 20
END_SECONDS_MAX = 10.0

CONFIG = """\
ListenAddress {address}:{port}
HostKey {place}/host_key
AuthorizedKeysFile {place}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv EC2_INSTANCE={instance}
"""

_INSTANCE = re.compile(r"<instanceId>(i-[0-9a-f]+)</instanceId>")
_PRIVATE_ADDRESS = re.compile(r"<privateIpAddress>[0-9.]+</privateIpAddress>")
_STATE = re.compile(r"<instanceState>\s*<code>[0-9]+</code>\s*<name>([a-z-]+)</name>")


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on; each is used up by the calls that it meets."""

    throttled: int = 0
    """So many calls are refused with ``RequestLimitExceeded``."""

    answers_lost: int = 0
    """So many calls are carried out, and their connections closed without an answer."""

    full: set[str] = field(default_factory=set)
    """Instance types without capacity."""

    not_offered: set[str] = field(default_factory=set)
    """Instance types that the zones do not offer."""

    interrupted: set[str] = field(default_factory=set)
    """Spot instances that are about to be ended; moto knows no requests for them."""

    not_hibernating: bool = False
    """No instance can hibernate, as if none had finished its start."""


@dataclass(slots=True)
class _Created:
    """The answer to a creation, which is that to every repetition of it."""

    request: dict[str, str]
    body: str
    instance: str


class Ec2StandIn:
    """The proxy in front of moto, and the machines."""

    def __init__(self, moto: str, directory: Path) -> None:
        """``moto``: the URL of its server."""
        self.faults = Faults()
        self.calls: list[str] = []
        self.hibernated: list[str] = []
        """Instances that were told to hibernate; they are stopped, for moto knows no difference."""

        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._starts = 0
        self._moto = moto
        self._directory = directory
        self._created: dict[str, _Created] = {}
        self._creating = asyncio.Lock()
        self._session = ClientSession()

    async def close(self) -> None:
        for instance in [*self.machines]:
            await self._end_machine(instance)
        await self._session.close()

    async def reset(self) -> None:
        """Forget what another server of this process has; moto has one memory for all."""
        async with self._session.post(f"{self._moto}moto-api/reset") as answer:
            answer.raise_for_status()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The answer to one call."""
        body = await request.read()
        fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        action = fields.get("Action", "")
        self.calls.append(action)
        if self.faults.throttled:
            self.faults.throttled -= 1
            return _error(503, "RequestLimitExceeded", "Request limit exceeded.")
        if self.faults.not_hibernating and fields.get("Hibernate") == "true":
            return _error(
                400, "UnsupportedHibernationConfiguration", "The instance cannot hibernate yet."
            )
        if action == "DescribeSpotInstanceRequests":
            return self._interruptions()
        if action == "RunInstances":
            made = await self._run_instances(request, body, fields)
        else:
            made = await self._forward(request, body)
        if made.status == web.HTTPOk.status_code:
            await self._switch_machines(action, fields)
        if self.faults.answers_lost and made.status == web.HTTPOk.status_code:
            self.faults.answers_lost -= 1
            assert request.transport is not None
            request.transport.abort()
        return made

    def _interruptions(self) -> web.Response:
        """The requests of instances that are about to be ended, which is what is asked for."""
        ids = "".join(
            f"<item><instanceId>{each}</instanceId></item>"
            for each in sorted(self.faults.interrupted)
        )
        found = f"<spotInstanceRequestSet>{ids}</spotInstanceRequestSet>"
        name = "DescribeSpotInstanceRequestsResponse"
        return _xml(f"<{name}>{found}</{name}>")

    async def _switch_machines(self, action: str, fields: dict[str, str]) -> None:
        for name, instance in fields.items():
            if not name.startswith("InstanceId."):
                continue
            if fields.get("Hibernate") == "true":
                self.hibernated.append(instance)
            if action in ("TerminateInstances", "StopInstances"):
                await self._end_machine(instance)
            if action == "StartInstances" and instance not in self.machines:
                self._boot(instance)

    async def _run_instances(
        self, request: web.Request, body: bytes, fields: dict[str, str]
    ) -> web.Response:
        token = fields.get("ClientToken", "")
        asked = {k: v for k, v in fields.items() if k not in ("Action", "Version")}
        async with self._creating:
            known = self._created.get(token) if token else None
            if known is not None:
                if known.request != asked:
                    return _error(400, "IdempotentParameterMismatch", "The parameters differ.")
                state = await self._state(request, known.instance)
                return _xml(
                    _STATE.sub(f"<instanceState><code>0</code><name>{state}</name>", known.body)
                )
            if fields["InstanceType"] in self.faults.full:
                return _error(500, "InsufficientInstanceCapacity", "There is no capacity.")
            if fields["InstanceType"] in self.faults.not_offered:
                return _error(400, "Unsupported", "The type is not supported in this zone.")
            made = await self._forward(request, body)
            if made.status == web.HTTPOk.status_code:
                text = made.text or ""
                (instance,) = set(_INSTANCE.findall(text))
                self._start_machine(instance, fields.get("UserData", ""))
                made = _xml(self._readdressed(text))
                if token:
                    self._created[token] = _Created(asked, made.text or "", instance)
            return made

    async def _state(self, request: web.Request, instance: str) -> str:
        """The state of an instance now; terminated if moto does not know it."""
        body = f"Action=DescribeInstances&Version=2016-11-15&InstanceId.1={instance}"
        found = _STATE.findall((await self._forward(request, body.encode())).text or "")
        return str(found[0]) if found else "terminated"

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        kept = ("Content-Type", "Authorization", "X-Amz-Date", "X-Amz-Security-Token")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with self._session.post(self._moto, data=body, headers=headers) as answer:
            text = await answer.text()
        return _xml(self._readdressed(text), status=answer.status)

    def _readdressed(self, text: str) -> str:
        """The answer with the addresses at which the machines really are."""
        parts = re.split(r"(?=<instanceId>)", text)
        for index, part in enumerate(parts):
            found = _INSTANCE.match(part)
            if found and found[1] in self._addresses:
                shown = f"<privateIpAddress>{self._addresses[found[1]]}</privateIpAddress>"
                parts[index] = _PRIVATE_ADDRESS.sub(shown, part)
        return "".join(parts)

    def _start_machine(self, instance: str, user_data: str) -> None:
        """An SSH server with the keys of the user data, as cloud-init would set it up."""
        config = _cloud_config(base64.b64decode(user_data).decode())
        if config is None:
            return
        place = self._directory / instance
        place.mkdir(parents=True, mode=0o700)
        (place / "host_key").touch(mode=0o600)
        (place / "host_key").write_text(config["ssh_keys"]["ed25519_private"])
        (place / "authorized_keys").write_text("\n".join(config["ssh_authorized_keys"]))
        self._boot(instance)

    def _boot(self, instance: str) -> None:
        """Every start gives it another address, as EC2 does with public ones."""
        self._starts += 1
        address = f"{NETWORK}.{self._starts // 250}.{self._starts % 250 + 1}"
        place = self._directory / instance
        (place / "sshd_config").write_text(
            CONFIG.format(address=address, port=SSH_PORT, place=place, instance=instance)
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [SSHD, "-D", "-e", "-f", str(place / "sshd_config")]
        with open(place / "log", "ab") as log:
            self.machines[instance] = subprocess.Popen(command, stderr=log, start_new_session=True)
        self._addresses[instance] = address

    async def _end_machine(self, instance: str) -> None:
        process = self.machines.pop(instance, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait, END_SECONDS_MAX)


@contextlib.asynccontextmanager
async def stand_in(directory: Path, *, port: int = 0) -> AsyncIterator[tuple[Ec2StandIn, str]]:
    """The stand-in, and the URL of its API."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    await asyncio.to_thread(moto.start)
    host, moto_port = moto.get_host_and_port()
    made = Ec2StandIn(f"http://{host}:{moto_port}/", directory)
    await made.reset()
    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await made.close()
        await asyncio.to_thread(moto.stop)


def _cloud_config(user_data: str) -> dict[str, dict[str, str]] | None:
    """Our own part of the user data; None if there is none."""
    for part in email.message_from_string(user_data).walk():
        if part.get_content_type() == "text/cloud-config":
            text = part.get_payload(decode=True)
            assert isinstance(text, bytes)
            found: dict[str, dict[str, str]] = json.loads(text.decode().partition("\n")[2])
            return found
    return None


def _xml(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/xml")


def _error(status: int, code: str, message: str) -> web.Response:
    inner = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    return _xml(
        f"<Response><Errors>{inner}</Errors><RequestID>stand-in</RequestID></Response>",
        status=status,
    )


async def _serve(port: int, directory: Path) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with stand_in(directory, port=port) as (_, url):
        print(  # noqa: T201
            f"stand-in for EC2 at {url}; log in to its machines as {getpass.getuser()},"
            f" port {SSH_PORT}",
            flush=True,
        )
        await ended.wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="ec2_stand_in", description=__doc__)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--directory", type=Path, required=True)
    given = options.parse_args()
    asyncio.run(_serve(given.port, given.directory.resolve()))


if __name__ == "__main__":
    main()
