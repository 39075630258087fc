"""The agent of a host: runs instances there as ``bullpen up`` does, for a service elsewhere.

It is started by ``attach`` and outlives the SSH connection. Its instances end with it when no
service has been connected for ``ORPHAN_SECONDS_MAX``; this is what makes it safe for the service
to give them up. Agents of several versions run side by side, each with a directory of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from bullpen import __version__
from bullpen.core.targets.backends import LOST_AFTER
from bullpen.errors import LabError, Refused
from bullpen.kit.clock import Clock, SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.base import Key
from bullpen.placements.local import layout, processes
from bullpen.placements.local.capacity import host_limits, host_load
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.placements.local.processes import ProcessId
from bullpen.placements.local.wire import Frames, frame
from bullpen.provisioners.baremetal import messages
from bullpen.provisioners.baremetal.host_setup import ENVIRONMENT_LOCK
from bullpen.provisioners.baremetal.messages import (
    COMMANDS,
    PROTOCOL,
    Answer,
    Changed,
    Command,
    Done,
    Ensure,
    Failure,
    Finish,
    Hello,
    List,
    Listed,
    Remove,
    Retire,
    UpdateCredentials,
)
from bullpen.provisioners.baremetal.recipe import PRELOAD, HostRecipe
from bullpen.provisioners.base import Instance, Provisioner
from bullpen.provisioners.placed import PlacedProvisioner

log = logging.getLogger("bullpen.agent")

REPLACE_SECONDS_MAX = 120.0
"""How long instances survive without an agent: a service may take so long to start another."""

ORPHAN_SECONDS_MAX = LOST_AFTER.total_seconds() - REPLACE_SECONDS_MAX
"""Whether the agent is alone or gone, its instances have ended when the service calls them lost."""

UNSENT_BYTES_MAX = 8 << 20
"""A service that leaves this much unread is disconnected."""

READ_BYTES = 1 << 16
STATE, LOCK, LOG, SOCKET = "agent.json", "agent.lock", "agent.log", "agent"


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """How ``attach`` finds a running agent."""

    process: ProcessId
    socket: str


class Agent:
    """Serves every service that connects, one command of an instance after the other."""

    def __init__(
        self, provisioner: Provisioner, placement: LocalPlacement, *, orphan_seconds_max: float
    ) -> None:
        self._provisioner = provisioner
        self._placement = placement
        self._orphan_seconds_max = orphan_seconds_max
        self._services: set[asyncio.StreamWriter] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._finishing = self._ended = False
        self.finished = False
        """It was told to finish, and has."""

        self._news = asyncio.Event()
        """Something changed that may be a reason to end."""

        provisioner.listen(self._tell)

    @contextlib.asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        """Serve at ``path`` while the context is open."""
        server = await asyncio.start_unix_server(self._serve, path=path)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                yield
                self._tasks = None
            # Every command that was received has been answered.
        finally:
            server.close()
            for writer in self._services:
                writer.close()

    def end(self) -> None:
        """End now, with all instances."""
        self._ended = True
        self._news.set()

    async def over(self) -> None:
        """Return when it was told to end, has finished, or was left alone for long."""
        while not self._ended:
            self._news.clear()
            if self._finishing and not await self._provisioner.observe_all():
                self.finished = True
                return
            alone = not self._services
            try:
                async with asyncio.timeout(self._orphan_seconds_max if alone else None):
                    await self._news.wait()
            except TimeoutError:
                log.warning("no service has connected for long", extra={"key": "agent"})
                return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._services.add(writer)
        self._news.set()
        frames = Frames(COMMANDS)
        try:
            found = await self._provisioner.observe_all()
            self._send(writer, Hello(protocol=PROTOCOL, version=__version__, instances=found))
            while data := await reader.read(READ_BYTES):
                for command in frames.feed(data):
                    if isinstance(command, Finish):
                        self._finishing = True
                        self._news.set()
                    elif self._tasks is not None:
                        self._tasks.create_task(self._answer(writer, command))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            log.warning("connection ended", extra={"key": "agent", "cause": error})
        finally:
            self._services.discard(writer)
            writer.close()
            self._news.set()

    async def _answer(self, writer: asyncio.StreamWriter, command: Command) -> None:
        assert not isinstance(command, Finish)
        if isinstance(command, List):
            found = await self._provisioner.observe_all()
            problem, load = self._placement.problem, host_load()
            listed = Listed(id=command.id, instances=found, problem=problem, load=load)
            self._send(writer, listed)
            return
        try:
            instance = await self._perform(command)
        except LabError as error:
            self._send(writer, Done(id=command.id, failure=messages.failure(error)))
        except Exception as error:
            # Everything else here must not end with one command.
            log.exception("command failed", extra={"key": type(command).__name__})
            failure = Failure(reason=LabError.reason, message=f"{type(error).__name__}: {error}")
            self._send(writer, Done(id=command.id, failure=failure))
        else:
            self._send(writer, Done(id=command.id, instance=instance))

    async def _perform(
        self, command: Ensure | UpdateCredentials | Remove | Retire
    ) -> Instance | None:
        match command:
            case Ensure(spec=spec):
                if self._finishing:
                    raise Refused("its agent is being replaced by another version")
                return await self._provisioner.ensure(spec)
            case UpdateCredentials(spec=spec):
                await self._provisioner.update_credentials(spec)
            case Remove(key=key):
                await self._provisioner.remove(key)
            case Retire(key=key):
                await self._provisioner.retire(key)
        return None

    def _tell(self, key: Key) -> None:
        self._news.set()
        if self._tasks is not None:
            self._tasks.create_task(self._changed(key))

    async def _changed(self, key: Key) -> None:
        found = {each.key: each for each in await self._provisioner.observe_all()}
        for writer in tuple(self._services):
            self._send(writer, Changed(key=key, instance=found.get(key)))

    def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        if writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            writer.transport.abort()
            return
        writer.write(frame(answer))


async def serve(data: Path, *, orphan_seconds_max: float, clock: Clock) -> None:
    """Run an agent with its instances below ``data``."""
    zygote = ZygoteSettings(load=PRELOAD, orphan_seconds_max=REPLACE_SECONDS_MAX)
    settings = LocalSettings(data=data, limits=host_limits(), zygote=zygote)
    placement = LocalPlacement(settings, clock=clock, ids=RandomIds())
    recipe = HostRecipe(host_arch=platform.machine())
    async with placement.running():
        agent = Agent(
            PlacedProvisioner(recipe, placement), placement, orphan_seconds_max=orphan_seconds_max
        )
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, agent.end)
        with tempfile.TemporaryDirectory(prefix="bullpen-") as runtime:
            path = Path(runtime) / SOCKET
            async with agent.serving(path):
                state = AgentState(process=processes.identify(os.getpid()), socket=str(path))
                layout.write(data / STATE, msgspec.json.encode(state))
                await agent.over()
                (data / STATE).unlink(missing_ok=True)
    if agent.finished:
        clear(data)


def clear(data: Path) -> None:
    """Delete the directory of an agent that will not run again, except what classes retain.

    Its lock goes last: until then no other agent can start there.
    """
    kept = (Layout(data).retained.name, LOCK)
    for path in [path for path in data.iterdir() if path.name not in kept]:
        if path.is_dir():
            layout.wipe(path)
        else:
            path.unlink(missing_ok=True)
    (data / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        data.rmdir()  # unless something is retained, or another agent has started


@contextlib.contextmanager
def locked(path: Path, how: int) -> Iterator[bool]:
    """Whether this process got the lock, which it has while the context is open."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            # The lock of an agent that has just deleted its directory protects nothing.
            yield os.fstat(file.fileno()).st_nlink > 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--orphan-seconds-max", type=float, default=ORPHAN_SECONDS_MAX)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with (
        locked(given.data / LOCK, fcntl.LOCK_EX) as alone,
        # An environment that is in use is not deleted (see ``host_setup``).
        locked(given.environment / ENVIRONMENT_LOCK, fcntl.LOCK_SH) as usable,
    ):
        if alone and usable:
            patience = given.orphan_seconds_max
            asyncio.run(serve(given.data, orphan_seconds_max=patience, clock=SystemClock()))


if __name__ == "__main__":
    main()
