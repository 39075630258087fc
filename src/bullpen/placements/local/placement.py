"""The supervisor: runs workloads as processes of this machine and tracks them.

It runs in the service's process and survives everything below it. Its state is also on
disk, so that a new process finds it after the service was killed. It starts no processes
itself: it tells the zygote what to fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bullpen.core.targets.instances import ExitReason, Instance
from bullpen.errors import LabError, NoCapacity, StorageFailed, Unreachable
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.placements.base import Key, Listener, Site, Workload
from bullpen.placements.local import capacity, layout, processes
from bullpen.placements.local.artifacts import ArtifactCache
from bullpen.placements.local.capacity import Limits, Usage
from bullpen.placements.local.children import STOP_SECONDS_MAX
from bullpen.placements.local.confinement import Confinement, Sandboxing
from bullpen.placements.local.connection import Link, ZygoteSettings
from bullpen.placements.local.held import Held
from bullpen.placements.local.keeper import ZygoteKeeper
from bullpen.placements.local.kvm import Kvm
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.outfitting import Outfitter, SandboxSettings
from bullpen.placements.local.wire import (
    Event,
    Exited,
    Hello,
    Noted,
    Registered,
    Retire,
    Spawn,
    Stop,
)

log = logging.getLogger("bullpen.placements")

STOP_MARGIN_SECONDS = 5.0
"""Added to the zygote's own timeout, before the supervisor kills by itself."""

KILL_LOOKS_MAX = 200
KILL_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    data: Path
    limits: Limits
    zygote: ZygoteSettings = field(default_factory=ZygoteSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)


class LocalPlacement:
    """A ``Placement`` on this machine. Use it inside ``running``."""

    def __init__(self, settings: LocalSettings, *, clock: Clock, ids: Ids) -> None:
        self.layout = Layout(settings.data)
        self._limits = settings.limits
        self._clock = clock
        self._ids = ids
        self._artifacts = ArtifactCache(self.layout.cache)
        self._kvm = Kvm(self.layout.cache)
        self._keeper = ZygoteKeeper(
            self.layout, settings.zygote, heard=self._heard, lost=self._lost
        )
        self._outfitter = Outfitter(settings.data, settings.sandbox)
        self._held: dict[Key, Held] = {}
        self._listeners: list[Listener] = []
        self._tasks: asyncio.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[LocalPlacement]:
        """Take over the instances of a previous process; at the end leave nothing running.

        If the user of this context fails, everything is left running, as after a kill: clients may
        be using the instances, and the next start takes them over. Without a next start, they end
        after a while.
        """
        self.layout.instances.mkdir(mode=layout.PRIVATE, parents=True, exist_ok=True)
        await self._recover()
        await self._outfitter.prepare(held.state.token for held in self._held.values())
        failed = True
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                keeping = tasks.create_task(self._keeper.run())
                try:
                    yield self
                    await self._stop_all()
                    failed = False
                finally:
                    keeping.cancel()
        finally:
            if failed and self._held:
                self._keeper.leave()
            else:
                await self._keeper.end()
                self._outfitter.close()

    @property
    def sandboxing(self) -> Sandboxing:
        """The sandbox of instances here, to be reported to users."""
        return self._outfitter.sandboxing

    # Used by provisioners

    def warm(self) -> None:
        """Start the zygote now, so that the first instance need not wait for it."""
        self._keeper.want()

    async def start(self, workload: Workload) -> Instance:
        held = self._held.get(workload.key)
        if held is not None:
            return held.instance
        if self._keeper.problem:
            raise Unreachable(self._keeper.problem)
        self._outfitter.refuse()
        problem = capacity.shortage(
            workload.needs,
            self._usage(),
            self._limits,
            free_bytes=capacity.free_memory(),
            disk_bytes=capacity.free_disk(self.layout.instances),
        )
        if problem:
            raise NoCapacity(f"this host has no capacity for {'/'.join(workload.key)}: {problem}")
        return self._accept(workload)

    async def stop(self, key: Key) -> None:
        held = self._held.get(key)
        if held is None:
            return
        if held.removing is None:
            assert self._tasks is not None, "used outside of running()"
            held.removing = self._tasks.create_task(self._remove(held))
        # A caller that does not wait for the end must not leave the removal half done.
        problem = await asyncio.shield(held.removing)
        if problem:
            raise StorageFailed(problem)

    async def _remove(self, held: Held) -> str:
        """Stop it and remove its files; returns why that is not possible, or an empty string."""
        await self._end(held)
        try:
            await asyncio.to_thread(self._put_away, held)
        except OSError as error:
            held.removing = None
            return f"{held.directory} cannot be removed: {error}"
        del self._held[held.key]
        self._tell(held.key)
        return ""

    async def retire(self, key: Key) -> None:
        held = self._held.get(key)
        if held is None or held.exited:
            return
        if held.spawned and self._keeper.link is not None:
            self._keeper.link.send(Retire(key=key))
        elif held.launching is not None:
            held.launching.cancel()
            self._exit(held, ExitReason.COMPLETED, "retired before it was started")

    async def observe_all(self) -> tuple[Instance, ...]:
        return tuple(self._held[key].instance for key in sorted(self._held))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # Starting

    def _usage(self) -> Usage:
        used = Usage()
        for held in self._held.values():
            if not held.exited:
                used = used.plus(held.state.memory_bytes, held.state.cpus)
        return used

    def _accept(self, workload: Workload) -> Instance:
        assert self._tasks is not None, "used outside of running()"
        user = self._outfitter.user({held.state.user for held in self._held.values()})
        state = layout.state_of(workload, token=self._ids.uid(), user=user)
        held = Held(state, self.layout.instance(workload.key), detail="accepted")
        self._held[workload.key] = held
        held.launching = self._tasks.create_task(self._launch(held, workload))
        self._tell(held.key)
        return held.instance

    async def _launch(self, held: Held, workload: Workload) -> None:
        try:
            site = await self._site(workload)
            config = workload.config(site)
            layout.prepare(held.directory, held.state, workload.spec.credentials)
            confinement = self._outfitter.confinement(held.state, workload.needs, site)
            link = await self._keeper.ready()
        except LabError as error:
            self._exit(held, ExitReason.START_FAILED, error.message)
        except OSError as error:
            self._exit(held, ExitReason.START_FAILED, f"its directory cannot be created: {error}")
        except Exception as error:
            log.exception("launch failed", extra={"key": held.key})
            self._exit(held, ExitReason.START_FAILED, f"{type(error).__name__}: {error}")
        else:
            held.spawned = True
            link.send(_spawn(held, config, link, confinement))

    async def _site(self, workload: Workload) -> Site:
        needs = workload.needs
        paths = {item: await self._artifacts.find(item) for item in needs.artifacts}
        kvm = bool(needs.kvm_for) and await self._kvm.works_for(needs.kvm_for)
        return Site(artifacts=paths, kvm=kvm)

    # Ending

    async def _end(self, held: Held) -> None:
        """Return when no process of it is left and no task works on it."""
        if held.launching is not None:
            held.launching.cancel()
            await asyncio.wait((held.launching,))
        if held.spawned and not held.gone.is_set() and self._keeper.link is not None:
            self._keeper.link.send(Stop(key=held.key))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS_MAX + STOP_MARGIN_SECONDS):
                    await held.gone.wait()
        if held.spawned and not held.gone.is_set():
            await self._kill((held,))
        if held.cleaning is not None:
            await asyncio.wait((held.cleaning,))

    def _put_away(self, held: Held) -> None:
        if held.state.retain and held.directory.exists():
            destination = self.layout.retained_as(held.key, self._clock.now())
            layout.retain(held.directory, destination)
        else:
            layout.wipe(held.directory)

    def _exit(self, held: Held, reason: ExitReason, detail: str) -> None:
        """Record the exit of an instance. Its processes are gone; its files are removed now."""
        held.gone.set()
        if held.exited:
            return
        held.exit(reason, detail)
        log.info("instance ended", extra={"key": held.key, "reason": reason, "cause": detail})
        if not held.state.retain and held.removing is None:
            assert self._tasks is not None
            held.cleaning = self._tasks.create_task(self._clean(held))
        self._tell(held.key)

    async def _clean(self, held: Held) -> None:
        try:
            await asyncio.to_thread(layout.keep_evidence, held.directory)
        except OSError as error:
            # Not final: removal tries again and reports to its caller.
            log.warning("instance directory not cleaned", extra={"key": held.key, "cause": error})

    async def _kill(self, held: Iterable[Held]) -> None:
        """Kill processes whose zygote can no longer do it."""
        leaders = {one.state.token: layout.read_process(one.directory) for one in held}
        for _ in range(KILL_LOOKS_MAX):
            if not await asyncio.to_thread(processes.kill_instances, leaders):
                return
            await asyncio.sleep(KILL_LOOK_SECONDS)
        log.error("processes cannot be killed", extra={"key": sorted(leaders)})

    async def _stop_all(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            for key in tuple(self._held):
                stopping.create_task(self._stop_anyway(key))

    async def _stop_anyway(self, key: Key) -> None:
        try:
            await self.stop(key)
        except StorageFailed as error:
            # No process runs any more; the next start finds the files and tries again.
            log.warning("instance not removed", extra={"key": key, "cause": error.message})

    # Events of the zygote

    def _heard(self, event: Event) -> None:
        held = None if isinstance(event, Hello) else self._held.get(event.key)
        if isinstance(event, Exited):
            if held is not None:
                self._exit(held, event.reason, event.detail)
            self._note(event.key)
        elif isinstance(event, Registered) and held is not None:
            held.register()
            self._tell(held.key)

    def _note(self, key: Key) -> None:
        if self._keeper.link is not None:
            self._keeper.link.send(Noted(key=key))

    async def _lost(self) -> None:
        """The zygote ended: finish its work."""
        lost = [held for held in self._held.values() if held.spawned and not held.gone.is_set()]
        await self._kill(lost)
        for held in lost:
            self._exit(held, ExitReason.LOST, "the process that holds all exporters exited")

    # Taking over from a previous process

    async def _recover(self) -> None:
        # Read first: exporters of an abandoned zygote remove their own files.
        found = [(place, layout.read_state(place)) for place in self.layout.found()]
        hello = await self._keeper.take_over()
        for directory, state in found:
            if state is None:
                layout.wipe(directory)
                continue
            held = self._held[state.key] = Held(state, directory, detail="taken over")
            held.take_over(hello)
            if held.exited:
                self._note(held.key)
        lost = [held for held in self._held.values() if held.exited]
        await self._kill(lost)
        if self._held:
            facts = {"key": self.layout.instances, "held": len(self._held), "ended": len(lost)}
            log.info("instances adopted", extra=facts)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _spawn(held: Held, config: bytes, link: Link, confinement: Confinement | None) -> Spawn:
    return Spawn(
        key=held.key,
        token=held.state.token,
        directory=str(held.directory),
        runtime=str(link.runtime / layout.runtime_name(held.state.token)),
        config=msgspec.Raw(config),
        single_use=held.state.single_use,
        retain=held.state.retain,
        confinement=confinement,
    )
