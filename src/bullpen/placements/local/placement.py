"""The supervisor: runs workloads as processes of this machine and tracks them.

It runs in the service's process and survives everything below it. Its state is also on
disk, so that a new process finds it after the service was killed. It starts no processes
itself: it tells the zygote what to fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.drivers.target_files import AttachedDisk
from bullpen.errors import LabError, NoCapacity, ProgramMissing, Refused, StorageFailed, Unreachable
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.placements.base import Key, Listener, Site, Workload
from bullpen.placements.local import capacity, kvm, layout, processes, retention
from bullpen.placements.local.artifacts import ArtifactCache
from bullpen.placements.local.capacity import Limits, Usage
from bullpen.placements.local.children import STOP_SECONDS_MAX
from bullpen.placements.local.confinement import Confinement, Sandboxing
from bullpen.placements.local.connection import Link, ZygoteHandle, ZygoteSettings
from bullpen.placements.local.host_sandbox import HostSandbox, SandboxSettings
from bullpen.placements.local.kvm import Kvm
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.local_instance import LocalInstance
from bullpen.placements.local.retention import RetentionLimits
from bullpen.placements.local.wire import (
    ChangeDisks,
    DisksChanged,
    Event,
    Exited,
    Hello,
    KvmFailed,
    Noted,
    Paused,
    Registered,
    Retire,
    Spawn,
    Stop,
)

log = logging.getLogger("bullpen.placements")

STOP_MARGIN_SECONDS = 5.0
"""Added to the zygote's own timeout, before the supervisor kills by itself."""

CHANGE_SECONDS_MAX = 60.0
"""How long a machine may take to attach, detach or grow its disks."""

RETENTION_LOOK_SECONDS = 3600.0
"""How often the age of retained directories is checked; their number and size when one is added."""

KILL_LOOKS_MAX = 200
KILL_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    data: Path
    limits: Limits
    zygote: ZygoteSettings = field(default_factory=ZygoteSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    retention: RetentionLimits = field(default_factory=RetentionLimits)


class LocalPlacement:
    """A ``Placement`` on this machine. Use it inside ``running``."""

    def __init__(self, settings: LocalSettings, *, clock: Clock, ids: Ids) -> None:
        self.layout = Layout(settings.data)
        self._limits = settings.limits
        self._retention = settings.retention
        self._retained = asyncio.Event()
        """A directory was retained since the limits were last enforced."""

        self._clock = clock
        self._ids = ids
        self._artifacts = ArtifactCache(self.layout.cache)
        self._kvm = Kvm(self.layout.cache)
        self._zygote = ZygoteHandle(
            self.layout, settings.zygote, heard=self._heard, lost=self._lost
        )
        self._sandbox = HostSandbox(settings.data, settings.sandbox)
        self._instances: dict[Key, LocalInstance] = {}
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
        await self._sandbox.prepare(local.state.token for local in self._instances.values())
        failed = True
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                keeping = tasks.create_task(self._zygote.run())
                sweeping = tasks.create_task(self._sweep_retained())
                try:
                    yield self
                    await self._stop_all()
                    failed = False
                finally:
                    keeping.cancel()
                    sweeping.cancel()
        finally:
            if failed and self._instances:
                self._zygote.leave()
            else:
                await self._zygote.end()
                self._sandbox.close()

    @property
    def problem(self) -> str:
        """Why no instance can be started or controlled now; empty if all is well."""
        if self._zygote.silent:
            return "the process that holds all exporters does not answer and is being replaced"
        return self._zygote.problem

    @property
    def sandboxing(self) -> Sandboxing:
        """The sandbox of instances here, to be reported to users."""
        return self._sandbox.sandboxing

    # Used by provisioners

    def warm(self) -> None:
        """Start the zygote now, so that the first instance need not wait for it."""
        self._zygote.want()

    async def start(self, workload: Workload) -> Instance:
        local = self._instances.get(workload.key)
        if local is not None:
            return local.instance
        if self._zygote.problem:
            raise Unreachable(self._zygote.problem)
        self._sandbox.refuse()
        missing = capacity.missing_programs(workload.needs)
        if missing:
            raise ProgramMissing(missing)
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
        local = self._instances.get(key)
        if local is None:
            return
        if local.removing is None:
            assert self._tasks is not None, "used outside of running()"
            local.removing = self._tasks.create_task(self._remove(local))
        # A caller that does not wait for the end must not leave the removal half done.
        problem = await asyncio.shield(local.removing)
        if problem:
            raise StorageFailed(problem)

    async def _remove(self, local: LocalInstance) -> str:
        """Stop it and remove its files; returns why that is not possible, or an empty string."""
        await self._end(local)
        try:
            await asyncio.to_thread(self._put_away, local)
        except OSError as error:
            local.removing = None
            return f"{local.directory} cannot be removed: {error}"
        del self._instances[local.key]
        if local.state.retain:
            self._retained.set()
        self._tell(local.key)
        return ""

    async def retire(self, key: Key) -> None:
        local = self._instances.get(key)
        if local is None or local.exited:
            return
        if local.spawned and self._zygote.link is not None:
            self._zygote.link.send(Retire(key=key))
        elif local.launching is not None:
            local.launching.cancel()
            self._exit(local, ExitReason.COMPLETED, "retired before it was started")

    async def change_disks(self, workload: Workload) -> None:
        local, link = self._instances.get(workload.key), self._zygote.link
        if local is None or local.instance.phase is not InstancePhase.RUNNING or link is None:
            raise Unreachable("it is not running")
        if local.changed is not None:
            raise Unreachable("an earlier change of its disks is under way")
        files = self._disks(workload)
        try:
            layout.attach(local.directory, local.state, files.values())
        except OSError as error:
            raise StorageFailed(f"its disks cannot be attached: {error}") from None
        local.changed = asyncio.get_running_loop().create_future()
        link.send(ChangeDisks(key=local.key, disks=self._attached(workload, files)))
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                problem = await local.changed
        except TimeoutError:
            raise Unreachable(f"no answer within {CHANGE_SECONDS_MAX:g} s") from None
        finally:
            local.changed = None
        if problem:
            raise Refused(problem)
        layout.detach(local.directory, files.values())

    async def update_credentials(self, key: Key, credentials: Mapping[str, bytes]) -> None:
        local = self._instances.get(key)
        if local is None or local.instance.phase is not InstancePhase.RUNNING:
            return
        try:
            layout.put_credentials(local.directory, local.state, credentials)
        except OSError as error:
            raise StorageFailed(f"its credentials cannot be written: {error}") from None

    async def grant(self, key: Key, files: Mapping[str, bytes]) -> None:
        local = self._instances.get(key)
        if local is None or local.instance.phase is not InstancePhase.RUNNING:
            return
        try:
            layout.put_granted(local.directory, local.state, files)
        except OSError as error:
            raise StorageFailed(f"what it is granted cannot be written: {error}") from None

    def _attached(self, workload: Workload, files: dict[str, Path]) -> tuple[AttachedDisk, ...]:
        return tuple(
            AttachedDisk(
                name=disk.name,
                path=str(self.layout.attached(workload.key, files[disk.name].name)),
                size_bytes=disk.size_bytes,
            )
            if disk.name in files
            else AttachedDisk(name=disk.name, path="", read_only=True)
            for disk in workload.spec.profile.disks
        )

    async def observe_all(self) -> tuple[Instance, ...]:
        return tuple(self._instances[key].instance for key in sorted(self._instances))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def capacity(self) -> tuple[Usage, Limits]:
        """What is promised to instances, of what there is."""
        return self._usage(), self._limits

    # Starting

    def _usage(self) -> Usage:
        used = Usage()
        for local in self._instances.values():
            if not local.exited:
                used = used.plus(local.state.memory_bytes, local.state.cpus)
        return used

    def _accept(self, workload: Workload) -> Instance:
        assert self._tasks is not None, "used outside of running()"
        user = self._sandbox.user({local.state.user for local in self._instances.values()})
        state = layout.state_of(workload, token=self._ids.uid(), user=user)
        local = LocalInstance(state, self.layout.instance(workload.key), detail="accepted")
        self._instances[workload.key] = local
        local.launching = self._tasks.create_task(self._launch(local, workload))
        self._tell(local.key)
        return local.instance

    async def _launch(self, local: LocalInstance, workload: Workload) -> None:
        try:
            site = await self._site(workload)
            await self._warn_without_kvm(local, workload, site)
            config = workload.config(site)
            spec = workload.spec
            layout.prepare(local.directory, local.state, spec.credentials, workload.granted)
            layout.attach(local.directory, local.state, self._disks(workload).values())
            confinement = self._sandbox.confinement(local.state, workload.needs, site)
            link = await self._zygote.ready()
        except LabError as error:
            self._exit(local, ExitReason.START_FAILED, error.message)
        except OSError as error:
            self._exit(local, ExitReason.START_FAILED, f"its directory cannot be created: {error}")
        except Exception as error:
            log.exception("launch failed", extra={"key": local.key})
            self._exit(local, ExitReason.START_FAILED, f"{type(error).__name__}: {error}")
        else:
            local.spawned = True
            link.send(_spawn(local, config, link, confinement))

    async def _site(self, workload: Workload) -> Site:
        needs = workload.needs
        paths = {item: await self._artifacts.find(item) for item in needs.artifacts}
        works = bool(needs.kvm_for) and await self._kvm.works_for(needs.kvm_for)
        disks = {
            name: self.layout.attached(workload.key, file.name)
            for name, file in self._disks(workload).items()
        }
        return Site(artifacts=paths, kvm=works, disks=disks)

    async def _warn_without_kvm(self, local: LocalInstance, workload: Workload, site: Site) -> None:
        """A machine that could use KVM runs without it, because KVM does not work here."""
        arch = workload.needs.kvm_for
        problem = await self._kvm.known_problem(arch) if arch and not site.kvm else None
        if problem:
            local.warn(kvm.unused(problem))

    def _disks(self, workload: Workload) -> dict[str, Path]:
        """The files of the lasting disks of a workload."""
        given = workload.spec.profile.disks
        return {disk.name: self.layout.disk(disk.key, disk.uid) for disk in given if disk.uid}

    # Ending

    async def _end(self, local: LocalInstance) -> None:
        """Return when no process of it is left and no task works on it."""
        if local.launching is not None:
            local.launching.cancel()
            await asyncio.wait((local.launching,))
        if local.spawned and not local.gone.is_set() and self._zygote.link is not None:
            self._zygote.link.send(Stop(key=local.key))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS_MAX + STOP_MARGIN_SECONDS):
                    await local.gone.wait()
        if local.spawned and not local.gone.is_set():
            await self._kill((local,))
        if local.cleaning is not None:
            await asyncio.wait((local.cleaning,))

    def _put_away(self, local: LocalInstance) -> None:
        if local.state.retain and local.directory.exists():
            destination = self.layout.retained_as(local.key, self._clock.now())
            layout.retain(local.directory, destination)
        else:
            layout.wipe(local.directory)

    async def _sweep_retained(self) -> None:
        """Delete retained directories beyond the limits, until cancelled."""
        while True:
            self._retained.clear()
            try:
                gone = await asyncio.to_thread(
                    retention.sweep, self.layout, self._retention, now=self._clock.now()
                )
            except OSError as error:
                log.warning("retained directories not deleted", extra={"cause": error})
            else:
                for kept in gone:
                    facts = {"directory": kept.name, "bytes": kept.bytes}
                    log.info("retained directory deleted", extra=facts)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETENTION_LOOK_SECONDS):
                    await self._retained.wait()

    def _exit(self, local: LocalInstance, reason: ExitReason, detail: str) -> None:
        """Record the exit of an instance. Its processes are gone; its files are removed now."""
        local.gone.set()
        if local.exited:
            return
        local.exit(reason, detail)
        log.info("instance ended", extra={"key": local.key, "reason": reason, "cause": detail})
        if not local.state.retain and local.removing is None:
            assert self._tasks is not None
            local.cleaning = self._tasks.create_task(self._clean(local))
        self._tell(local.key)

    async def _clean(self, local: LocalInstance) -> None:
        try:
            await asyncio.to_thread(layout.keep_evidence, local.directory)
        except OSError as error:
            # Not final: removal tries again and reports to its caller.
            log.warning("instance directory not cleaned", extra={"key": local.key, "cause": error})

    async def _kill(self, local: Iterable[LocalInstance]) -> None:
        """Kill processes whose zygote can no longer do it."""
        leaders = {one.state.token: layout.read_process(one.directory) for one in local}
        for _ in range(KILL_LOOKS_MAX):
            if not await asyncio.to_thread(processes.kill_instances, leaders):
                return
            await asyncio.sleep(KILL_LOOK_SECONDS)
        log.error("processes cannot be killed", extra={"key": sorted(leaders)})

    async def _stop_all(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            for key in tuple(self._instances):
                stopping.create_task(self._stop_anyway(key))

    async def _stop_anyway(self, key: Key) -> None:
        try:
            await self.stop(key)
        except StorageFailed as error:
            # No process runs any more; the next start finds the files and tries again.
            log.warning("instance not removed", extra={"key": key, "cause": error.message})

    # Events of the zygote

    def _heard(self, event: Event) -> None:
        local = None if isinstance(event, Hello) else self._instances.get(event.key)
        if isinstance(event, Exited):
            if local is not None:
                self._exit(local, event.reason, event.detail)
            self._note(event.key)
        elif isinstance(event, DisksChanged) and local is not None:
            local.answer(event.problem)
        elif isinstance(event, Paused) and local is not None:
            local.pause(event.problem)
            self._tell(local.key)
        elif isinstance(event, Registered) and local is not None:
            local.register()
            self._tell(local.key)
        elif isinstance(event, KvmFailed) and self._tasks is not None:
            self._tasks.create_task(self._kvm.distrust(event.arch, event.problem))
            if local is not None:
                local.warn(kvm.unused(event.problem))
                self._tell(local.key)

    def _note(self, key: Key) -> None:
        if self._zygote.link is not None:
            self._zygote.link.send(Noted(key=key))

    async def _lost(self, cause: str) -> None:
        """The zygote ended: finish its work."""
        lost = [
            local for local in self._instances.values() if local.spawned and not local.gone.is_set()
        ]
        await self._kill(lost)
        for local in lost:
            self._exit(local, ExitReason.LOST, cause)

    # Taking over from a previous process

    async def _recover(self) -> None:
        # Read first: exporters of an abandoned zygote remove their own files.
        found = [(place, layout.read_state(place)) for place in self.layout.found()]
        hello = await self._zygote.take_over()
        for directory, state in found:
            if state is None:
                layout.wipe(directory)
                continue
            local = self._instances[state.key] = LocalInstance(
                state, directory, detail="taken over"
            )
            local.take_over(hello)
            if local.exited:
                self._note(local.key)
        lost = [local for local in self._instances.values() if local.exited]
        await self._kill(lost)
        if self._instances:
            facts = {"key": self.layout.instances, "held": len(self._instances), "ended": len(lost)}
            log.info("instances adopted", extra=facts)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _spawn(
    local: LocalInstance, config: bytes, link: Link, confinement: Confinement | None
) -> Spawn:
    return Spawn(
        key=local.key,
        token=local.state.token,
        directory=str(local.directory),
        runtime=str(link.runtime / layout.runtime_name(local.state.token)),
        config=msgspec.Raw(config),
        single_use=local.state.single_use,
        retain=local.state.retain,
        keep=local.state.keep,
        confinement=confinement,
    )
