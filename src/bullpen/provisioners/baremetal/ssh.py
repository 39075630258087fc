"""Connects to a host by SSH: prepares it, starts its agent, and carries the agent's messages.

The host's key must be the one in its settings; a key is never trusted because it was seen first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import platform
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from pathlib import Path

import asyncssh
import msgspec

from bullpen.core.targets.backends import HostLoad
from bullpen.errors import LabError, Refused, Unreachable
from bullpen.kit.ids import Ids
from bullpen.placements.base import InstanceSpec, Key
from bullpen.placements.local.wire import Frames, frame
from bullpen.provisioners.baremetal import attach, environment, messages
from bullpen.provisioners.baremetal.environment import Environment
from bullpen.provisioners.baremetal.host_setup import LABS
from bullpen.provisioners.baremetal.links import Visit
from bullpen.provisioners.baremetal.messages import (
    ANSWERS,
    PROTOCOL,
    Answer,
    Changed,
    Command,
    Done,
    Ensure,
    Finish,
    Hello,
    List,
    Listed,
    Remove,
    Retire,
    UpdateCredentials,
)
from bullpen.provisioners.baremetal.parameters import HostParameters
from bullpen.provisioners.base import Instance

log = logging.getLogger("bullpen.provisioners")

PRIVATE_KEY = "ssh-privatekey"
"""Key of the Secret, as Kubernetes names it in Secrets for SSH."""

CERTIFICATE = "ssh-publickey-cert"
"""Key of the Secret: a certificate of that key, for hosts that trust an authority."""

CONNECT_SECONDS_MAX = 15.0
KEEPALIVE_SECONDS = 5
KEEPALIVES_MISSED_MAX = 3
"""A host that does not answer so many in a row is gone."""

COMMAND_SECONDS_MAX = 60.0
UPLOAD_SECONDS_MAX = 600.0
CALL_SECONDS_MAX = 90.0
"""A removal takes the longest: the exporter is given time to end."""

HELLO_SECONDS_MAX = attach.START_SECONDS_MAX + 10
LAST_BYTES_MAX = 2000
AGENTS_MAX = 6
"""Agents of one lab at one host, each with an SSH session: servers allow ten by default."""


ClientKey = asyncssh.SSHKey | tuple[asyncssh.SSHKey, asyncssh.SSHCertificate]


class SshConnector:
    """Connects to hosts."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._uploading = asyncio.Lock()
        """One archive is written and sent at a time."""

    async def __call__(self, visit: Visit) -> SshLink:
        host = visit.host
        async with _explained(host):
            connection = await asyncssh.connect(
                host.address,
                host.port,
                username=host.user,
                client_keys=[_client_key(visit)],
                known_hosts=([_host_key(host)], [], []),
                preferred_auth="publickey",
                config=None,
                agent_path=None,
                connect_timeout=CONNECT_SECONDS_MAX,
                login_timeout=CONNECT_SECONDS_MAX,
                keepalive_interval=KEEPALIVE_SECONDS,
                keepalive_count_max=KEEPALIVES_MISSED_MAX,
            )
        try:
            async with _explained(host):
                found = Setup(connection, visit, self._ids)
                await found.probe()
                wanted = await asyncio.to_thread(environment.current)
                if wanted.digest not in found.environments:
                    async with self._uploading:
                        await found.provide(wanted)
                return await _linked(connection, visit, found, wanted)
        except BaseException:
            connection.abort()
            raise


@contextlib.asynccontextmanager
async def _explained(host: HostParameters) -> AsyncIterator[None]:
    """Turns errors of the connection into ours, with what is to be done."""
    where = f"{host.user}@{host.address}:{host.port}"
    try:
        yield
    except asyncssh.HostKeyNotVerifiable:
        raise Refused(
            f"{where} has another key than hostKey says; compare it with"
            " /etc/ssh/ssh_host_*_key.pub on the host before you change hostKey"
        ) from None
    except asyncssh.PermissionDenied:
        raise Refused(
            f"{where} does not accept the key in {PRIVATE_KEY} of the Secret;"
            f" add its public key to ~/.ssh/authorized_keys of {host.user}"
        ) from None
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise Unreachable(f"{where}: {str(error) or 'no answer'}") from None


def _client_key(visit: Visit) -> ClientKey:
    """The key that the service proves its identity with, and its certificate if it has one."""
    given = visit.credentials.get(PRIVATE_KEY)
    if not given:
        raise Refused(f"the Secret of the ProviderConfig has no {PRIVATE_KEY}")
    try:
        key = asyncssh.import_private_key(given)
    except asyncssh.KeyImportError as error:
        raise Refused(f"{PRIVATE_KEY} of the Secret cannot be used: {error}") from None
    certificate = visit.credentials.get(CERTIFICATE)
    if not certificate:
        return key
    try:
        return key, asyncssh.import_certificate(certificate)
    except asyncssh.KeyImportError as error:
        raise Refused(f"{CERTIFICATE} of the Secret cannot be used: {error}") from None


def _host_key(host: HostParameters) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(host.host_key)
    except asyncssh.KeyImportError as error:
        raise Refused(f"hostKey cannot be used: {error}") from None


class Setup:
    """What a host has, and what it lacks before an agent can run there."""

    def __init__(self, connection: asyncssh.SSHClientConnection, visit: Visit, ids: Ids) -> None:
        self._connection = connection
        self._host = visit.host
        self._lab = visit.lab
        self._ids = ids
        self.directory = ""
        self.home = ""
        """The directory of its environments."""

        self.environments: frozenset[str] = frozenset()
        self.agents: tuple[str, ...] = ()

    async def probe(self) -> None:
        """Ask what is there. Raises ``Refused`` if no agent of ours can run there."""
        said = await self._script("probe", self._host.directory, self._lab)
        try:
            found = json.loads(said)
        except ValueError:
            raise Refused(f"{self._host.python} said: {said.strip() or 'nothing'}") from None
        ours = list(sys.version_info[:2])
        if found["python"] != ours:
            wanted, has = (".".join(map(str, version)) for version in (ours, found["python"]))
            raise Refused(
                f"{self._host.python} is Python {has}, and this service runs with {wanted}:"
                f" install python{wanted} there and name it in python of the host"
            )
        machine = found["machine"]
        if machine != platform.machine():
            raise Refused(f"it is {machine}; hosts must be {platform.machine()}, as this machine")
        if self._host.arch and self._host.arch != machine:
            raise Refused(f"it is {machine}, and arch says {self._host.arch}")
        self.directory, self.home = found["directory"], found["home"]
        self.environments = frozenset(found["environments"])
        self.agents = tuple(sorted(found["agents"]))

    async def provide(self, wanted: Environment) -> None:
        """Give the host the environment of this service, unless it got it meanwhile."""
        await self.probe()
        if wanted.digest in self.environments:
            return
        target = f"{self.home}/.{wanted.digest}-{self._ids.uid()}"
        with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
            archive = Path(directory) / "environment"
            await asyncio.to_thread(wanted.write, archive)
            async with asyncio.timeout(UPLOAD_SECONDS_MAX):
                await self._run(f"cat > {shlex.quote(target)}", stdin=archive)
        await self._script("unpack", self.home, wanted.digest, target)
        log.info("environment copied", extra={"key": self._host.name, "digest": wanted.digest})

    def command(self, agent: str, *, started: Environment | None) -> str:
        """The command that connects with an agent; ``started`` if it is to be started."""
        place = f"{self.home}/{environment.current().digest}"
        data = f"{self.directory}/{LABS}/{self._lab}/{agent}"
        words = ["env", f"PYTHONPATH={place}", self._host.python, "-s"]
        words += ["-m", "bullpen.provisioners.baremetal.attach", "--data", data]
        words += ["--environment", place] if started is not None else []
        return shlex.join(words)

    async def _script(self, *arguments: str) -> str:
        """Run ``host_setup`` there."""
        source = resources.files("bullpen.provisioners.baremetal").joinpath("host_setup.py")
        command = shlex.join([self._host.python, "-", *arguments])
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            return await self._run(command, input=source.read_bytes())

    async def _run(
        self, command: str, *, input: bytes | None = None, stdin: Path | None = None
    ) -> str:
        given = {"input": input} if stdin is None else {"stdin": stdin}
        done = await self._connection.run(command, check=False, encoding=None, **given)
        if done.exit_status != 0:
            last = _text(done.stderr).strip().rpartition("\n")[2]
            raise Refused(f"{command.split()[0]} failed there: {last or done.exit_status}")
        return _text(done.stdout)


def _text(said: object) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else ""


async def _linked(
    connection: asyncssh.SSHClientConnection, visit: Visit, found: Setup, wanted: Environment
) -> SshLink:
    """Open a session with every agent that runs; start our own unless the host is drained."""
    names = [name for name in found.agents if name != wanted.digest]
    if len(names) > AGENTS_MAX:
        raise Unreachable(f"{len(names)} agents of other versions run there, and {AGENTS_MAX} may")
    link = SshLink(connection, visit)
    for name in names:
        await link.open(name, found.command(name, started=None))
    if not visit.host.drain or wanted.digest in found.agents:
        started = None if visit.host.drain else wanted
        await link.open(wanted.digest, found.command(wanted.digest, started=started), own=True)
    return link


class AgentSession(asyncssh.SSHClientSession[bytes]):
    """The messages of one agent."""

    def __init__(
        self, changed: Callable[[Key, Instance | None], None], ended: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._changed = changed
        self._ended = ended
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._frames: Frames[Answer] = Frames(ANSWERS)
        self._waiting: dict[int, asyncio.Future[Done | Listed]] = {}
        self._calls = 0
        self._errors = b""
        self._hello: asyncio.Future[Hello] = loop.create_future()
        self._hello.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.status: int | None = None
        self.closed = False

    # Called by the connection

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if datatype is not None:
            self._errors = (self._errors + data)[-LAST_BYTES_MAX:]
            return
        try:
            for answer in self._frames.feed(data):
                self._take(answer)
        except (ValueError, msgspec.DecodeError) as error:
            self._errors = f"it sent something else than messages: {error}".encode()
            self.close()

    def exit_status_received(self, status: int) -> None:
        self.status = status

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        cause = Unreachable(self._last_words() or str(exc or "its agent has ended"))
        if not self._hello.done():
            self._hello.set_exception(cause)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(cause)
        self._ended()

    def _take(self, answer: Answer) -> None:
        match answer:
            case Hello():
                if not self._hello.done():
                    self._hello.set_result(answer)
            case Changed(key=key, instance=instance):
                self._changed(key, instance)
            case Done(id=number) | Listed(id=number):
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)

    def _last_words(self) -> str:
        return self._errors.decode(errors="replace").strip().rpartition("\n")[2]

    # Called by the link

    async def hello(self) -> Hello:
        async with asyncio.timeout(HELLO_SECONDS_MAX):
            return await self._hello

    def send(self, command: Command) -> None:
        if self._channel is None or self.closed:
            raise Unreachable("the connection to its agent has ended")
        self._channel.write(frame(command))

    async def call(self, make: Callable[[int], Command]) -> Done | Listed:
        """Send a command and return its answer."""
        self._calls += 1
        number = self._calls
        answer: asyncio.Future[Done | Listed] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self.send(make(number))
            async with asyncio.timeout(CALL_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise Unreachable(f"no answer within {CALL_SECONDS_MAX:g} s") from None
        except OSError as error:
            raise Unreachable(f"the connection to its agent has ended: {error}") from None
        finally:
            del self._waiting[number]

    def finish(self) -> None:
        """Send a last message; the session ends once the host has received it."""
        if self._channel is not None and not self.closed:
            self._channel.write(frame(Finish()))
            self._channel.write_eof()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.abort()


class SshLink:
    """The agents of one host, through one connection."""

    def __init__(self, connection: asyncssh.SSHClientConnection, visit: Visit) -> None:
        self._connection = connection
        self._visit = visit
        self._agents: dict[str, AgentSession] = {}
        self._own = ""
        """The agent of this version; empty while the host is drained and has none."""

        self._holders: dict[Key, str] = {}
        self.load: HostLoad | None = None
        self._over = False

    async def open(self, name: str, command: str, *, own: bool = False) -> None:
        """Connect with an agent. One of another version ends with its last instance."""

        session = AgentSession(partial(self._changed, name), partial(self._agent_ended, name))
        await self._connection.create_session(lambda: session, command, encoding=None)
        try:
            hello = await session.hello()
        except Unreachable as error:
            if session.status == attach.ABSENT:
                return
            raise Unreachable(f"its agent does not start: {error.message}") from None
        if hello.protocol != PROTOCOL:
            raise Refused(f"the agent of version {hello.version} there cannot be used by this one")
        self._agents[name] = session
        if own:
            self._own = name
        else:
            session.send(Finish())

    # What the provisioner asks for

    async def list_instances(self) -> tuple[Instance, ...]:
        if self._connection.is_closed():
            raise Unreachable("the connection has ended")
        found: list[Instance] = []
        for name, session in tuple(self._agents.items()):
            try:
                answer = await self._call(session, lambda number: List(id=number))
            except Unreachable:
                if name in self._agents or name == self._own or self._over:
                    raise
                continue  # one of another version that has just finished
            assert isinstance(answer, Listed)
            if answer.problem:
                raise Unreachable(answer.problem)
            found += answer.instances
            self.load = answer.load or self.load
            self._holders |= {each.key: name for each in answer.instances}
        return tuple(sorted(found, key=lambda each: each.key))

    async def ensure(self, spec: InstanceSpec) -> Instance:
        name = self._holders.get(spec.key, self._own)
        if name not in self._agents:
            raise Unreachable("the host is drained, and no agent runs there")
        self._holders[spec.key] = name
        answer = await self._call(self._agents[name], lambda number: Ensure(id=number, spec=spec))
        assert isinstance(answer, Done)
        assert answer.instance is not None, "an instance that was accepted is answered"
        return answer.instance

    async def update_credentials(self, spec: InstanceSpec) -> None:
        if session := self._agents.get(self._holders.get(spec.key, "")):
            await self._call(session, lambda number: UpdateCredentials(id=number, spec=spec))

    async def remove(self, key: Key) -> None:
        if session := self._agents.get(self._holders.get(key, "")):
            await self._call(session, lambda number: Remove(id=number, key=key))

    async def retire(self, key: Key) -> None:
        if session := self._agents.get(self._holders.get(key, "")):
            await self._call(session, lambda number: Retire(id=number, key=key))

    def close(self) -> None:
        self._over = True
        self._connection.abort()

    def leave(self) -> None:
        self._over = True
        for session in self._agents.values():
            session.finish()
        if not self._agents:
            self._connection.close()

    async def _call(self, session: AgentSession, make: Callable[[int], Command]) -> Done | Listed:
        answer = await session.call(make)
        if isinstance(answer, Done) and answer.failure is not None:
            raise _error(answer, self._visit.host)
        return answer

    def _changed(self, agent: str, key: Key, instance: Instance | None) -> None:
        if instance is not None:
            self._holders[key] = agent
        elif self._holders.get(key) == agent:
            del self._holders[key]
        self._visit.changed(key, instance)

    def _agent_ended(self, name: str) -> None:
        """One of another version has finished; without our own the connection is of no use."""
        session = self._agents.pop(name, None)
        if self._over and not self._agents:
            self._connection.close()
        if session is None or self._over:
            return
        left = [key for key, holder in self._holders.items() if holder == name]
        if name != self._own and not left:
            return
        self.close()
        self._visit.lost("the connection to its agent has ended")


def _error(answer: Done, host: HostParameters) -> LabError:
    assert answer.failure is not None
    return messages.error_of(answer.failure, host.name)
