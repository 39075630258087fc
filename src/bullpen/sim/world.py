"""Everything a run consists of: one seed, one thread, one clock.

Its parts have separate random sources, so that what one part draws does not affect the
others.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random

from bullpen.app.sources import Sources
from bullpen.identity.subjects import Role, secret_name
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.provisioners.base import InstancePhase, InstanceSpec, Key, Provisioner
from bullpen.provisioners.fake import Faults
from bullpen.registry.registry import Registry
from bullpen.sim import virtual_time
from bullpen.sim.checkers import (
    AllocatedIsTrue,
    BookedBegins,
    CeilingHolds,
    ClaimsAreWhole,
    CountersSuffice,
    EndedStaysEnded,
    EndsHaveReasons,
    EpochsGrow,
    LeasedMembersStay,
    LeasesAreKept,
    LeasesKeepTheirExporters,
    ObjectsComeToRest,
    OneLeaseEach,
    OneLeasePerLife,
    OnlyEndedAreLabelled,
    PoolDevicesAreHeld,
)
from bullpen.sim.disk import Disk
from bullpen.sim.hangs import Hangs
from bullpen.sim.history import History
from bullpen.sim.homes import STALE_MAX, ClusterHome, EmbeddedHome, PlayedApi
from bullpen.sim.keys import cheap_keys
from bullpen.sim.lasting_checkers import (
    CountHolds,
    DisksAreKept,
    OneTargetPerDisk,
    RemovedOnce,
)
from bullpen.sim.lasting_storage import LastingStorage
from bullpen.sim.machines import Handle, Machines
from bullpen.sim.network import Network
from bullpen.sim.plan import Home, Plan
from bullpen.sim.players import Part, Player
from bullpen.sim.process import ROUTER_ENDPOINT, ROUTER_NAME, Process, RouterProcess, Surroundings
from bullpen.sim.routers import PlayedRouter
from bullpen.sim.trace import CommitRecorder, Trace
from bullpen.sim.truth import Fact, Raw, Truth, Violation
from bullpen.sim.virtual_time import SkewedClock
from bullpen.sim.watchers import Watcher

RESTART = 1.0
"""Seconds until a process that died is restarted."""

PULSE, PULSE_CALM = 0.5, 30.0
"""Seconds between two checks whether the service lives, with faults and without."""

KNOWN_LATE = 2.0
"""Seconds until all processes know the durable state, besides the lag of a watch."""


class World:
    def __init__(self, plan: Plan, clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, virtual_time.VirtualLoop):
            loop.when_restless(self.restless)
        self.plan = plan
        self.tasks = asyncio.TaskGroup()
        self.clock = SkewedClock(clock)
        self.trace = Trace(loop.time)
        self.violations: list[Violation] = []
        self.broken = asyncio.Event()
        self.deleted: set[str] = set()
        """Uids of objects that an operator has deleted."""

        self.truth = Truth(loop.time, self.breaks)
        ids = RandomIds(self.chance("ids"))
        self.disk = Disk(self.chance("disk"), self.truth.committed, history=plan.weather.history)
        self.hangs = Hangs()
        self.api = PlayedApi(self.chance("api"), plan.weather, self.hangs)
        slack = KNOWN_LATE + 3 * plan.weather.lag_max + 4 * plan.weather.delay_max
        slack += STALE_MAX if plan.weather.stale else 0.0
        self.history = History(
            self.truth, loop.time, self.breaks, last_seen=self.api.last_seen, slack=slack
        )
        self._watch_truth(slack)
        self.home: EmbeddedHome | ClusterHome
        if plan.home is Home.EMBEDDED:
            self.home = EmbeddedHome(self.disk, self.clock, ids, self.api)
        else:
            self.home = ClusterHome(self.disk, self.clock, ids, self.api)
        faults = Faults(boot_seconds=plan.boot, start_failed=plan.weather.start_failed)
        self.lasting_storage = LastingStorage(self.chance("lasting storage"))
        self.machines = Machines(
            self.chance("machines"), faults, self.tasks, self.hangs, self.lasting_storage.contents
        )
        self.machines.backend.listen(self._machine_changed)
        self.network = Network(self.chance("network"), plan.weather, self.front, self.hangs)
        self.processes: list[Process] = []
        self.apart: RouterProcess | None = None
        """The router in a process of its own."""

        self._api_was_down = 0.0
        """When there was last no API: in the embedded home, after a crash."""

        self.players: dict[Key, asyncio.Task[None]] = {}
        self.down: set[str] = set()
        """Boards that are switched off."""

        self._watchers: list[Watcher] = []
        self._calm = False
        self._around = Surroundings(
            home=self.home,
            provisioner=self._provisioner,
            sources=Sources(clock=self.clock, ids=ids, chance=self.chance("service")),
            keys=cheap_keys(self.clock),
            failed=self._failed,
            say=self.say,
            events=plan.events,
            disk_storage=self.lasting_storage,
        )

    def chance(self, part: str) -> random.Random:
        return random.Random(f"{part}-{self.plan.seed}-{self.plan.home}")

    def say(self, who: str, what: str) -> None:
        self.trace.say(who, what)

    # Promises

    def _watch_truth(self, slack: float) -> None:
        self.truth.check(
            OneLeaseEach(),
            EndedStaysEnded(),
            OnlyEndedAreLabelled(),
            BookedBegins(),
            LeasesAreKept(self.deleted.__contains__),
            EndsHaveReasons(self.truth.get),
            EpochsGrow(),
            OneLeasePerLife(),
            ObjectsComeToRest(),
            CeilingHolds(lambda: self.api.last_seen() - slack),
            LeasesKeepTheirExporters(self._lease),
            LeasedMembersStay(self._lease, self._excused),
            CountHolds(lambda: self.api.last_seen() - slack),
            OneTargetPerDisk(),
            DisksAreKept(
                self.deleted.__contains__,
                lambda: self.api.last_seen() - slack,
                self.clock.now,
            ),
            RemovedOnce(),
            ClaimsAreWhole(self.truth.all),
            AllocatedIsTrue(self._lease),
            CountersSuffice(),
            PoolDevicesAreHeld(),
            CommitRecorder(self.history, self.say),
        )

    def _lease(self, namespace: str, name: str) -> Raw | None:
        return self.truth.get("Lease", namespace, name)

    def _excused(self, fact: Fact) -> bool:
        """Whether a leased member may be deleted: its machine is gone, or an operator did it."""
        meta = fact.last["metadata"]
        owners = {owner["uid"] for owner in meta.get("ownerReferences") or ()}
        asked = meta["uid"] in self.deleted or owners & self.deleted
        return bool(asked) or not self.is_up((fact.namespace, fact.name), meta["uid"])

    def is_up(self, key: Key, uid: str) -> bool:
        found = self.machines.backend.instance(key)
        up = found is not None and found.phase is InstancePhase.RUNNING
        return up and found is not None and found.owner_uid == uid

    def breaks(self, violation: Violation) -> None:
        self.say("VIOLATION", str(violation))
        self.violations.append(violation)
        self.broken.set()

    def restless(self) -> None:
        text = f"more than {virtual_time.TURNS_MAX} turns within a second"
        self.breaks(Violation("the lab comes to rest", text, self.time))

    def _failed(self, process: Process, error: BaseException) -> None:
        text = f"{process.name}: {type(error).__name__}: {error}"
        self.breaks(Violation("nothing fails by surprise", text, self.time))

    @property
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    # Processes

    def front(self) -> Process | None:
        """The process that answers calls: the newest one that is ready."""
        return next((p for p in reversed(self.processes) if p.ready), None)

    def start(self) -> Process:
        process = Process(f"lab-{len(self.processes)}", self._around)
        process.router.joined = lambda ticket: self.history.joined(ticket.stream)
        self.processes.append(process)
        process.start(self.tasks)
        return process

    def start_router(self) -> None:
        """Start the router that is a process of its own."""
        self.apart = RouterProcess(self.home.remote, self._around)
        self.apart.router.joined = lambda ticket: self.history.joined(ticket.stream)
        self.apart.start(self.tasks)

    async def restart_router(self, seconds: float) -> None:
        """Kill that router, and restart it after this many seconds."""
        if self.apart is not None:
            self.stop_router()
            await asyncio.sleep(seconds)
            self.start_router()

    def stop_router(self) -> None:
        if self.apart is not None:
            self.apart.crash()
            self.apart = None

    async def overlap(self, seconds: float) -> None:
        """Start another process while the old ones continue for a while."""
        old = [process for process in self.processes if process.alive]
        self.start()
        await asyncio.sleep(seconds)
        for process in old:
            process.crash()

    async def supervise(self) -> None:
        """Start the service whenever none of its processes is alive."""
        while True:
            if not any(process.alive for process in self.processes):
                await asyncio.sleep(RESTART if self.processes else 0.0)
                self.start()
            self._look_at_streams()
            await asyncio.sleep(PULSE_CALM if self._calm else PULSE)

    def _look_at_streams(self) -> None:
        routing: list[Process | RouterProcess] = [*self.processes]
        if self.apart is not None:
            routing.append(self.apart)
        if self.home.registry is None:
            self._api_was_down = self.time
        informed = [p.router for p in routing if self.informed(p.router)]
        self.history.streams(
            [t.lease for router in informed for t in router.streams()],
            reachable_since=self._api_was_down,
        )

    def _provisioner(self, process: Process) -> Provisioner:
        return Handle(self.machines, process)

    def informed(self, router: PlayedRouter) -> bool:
        """Whether a router can know which leases have ended."""
        name = ROUTER_NAME if router.endpoint == ROUTER_ENDPOINT else router.endpoint
        return not self.api.was_cut(name)

    def router(self, endpoint: str) -> PlayedRouter | None:
        if endpoint == ROUTER_ENDPOINT:
            return self.apart.router if self.apart is not None else None
        return next((p.router for p in self.processes if p.name == endpoint and p.alive), None)

    def registry(self) -> Registry | None:
        return self.home.registry

    def watch(self) -> None:
        """Start a watcher."""
        for kind in ("Exporter", "Lease"):
            watcher = Watcher(
                self.truth,
                self.registry,
                self.breaks,
                self.chance(f"watch-{kind}"),
                version="jumpstarter.dev/v1alpha1",
                kind=kind,
            )
            self._watchers.append(watcher)
            self.tasks.create_task(watcher.run())

    # Exporters

    def _machine_changed(self, key: Key) -> None:
        """A running machine has an exporter; a stopped one has none."""
        found = self.machines.backend.instance(key)
        if found is not None and found.phase is InstancePhase.RUNNING:
            if key not in self.players:
                self._play(key, self._virtual(self.machines.specs[key]))
        else:
            self.unplug(key)

    def _virtual(self, spec: InstanceSpec) -> Part:
        backend = self.machines.backend
        token = spec.connection.token
        served: list[str] = []

        def began(lease: str) -> None:
            served.append(lease)
            if spec.profile.single_use and len(set(served)) > 1:
                text = f"the machine of {spec.key[1]} served {' and '.join(served)}"
                self.breaks(Violation("a single-use target serves one lease", text, self.time))
            backend.begin_lease(spec.key)

        return Part(
            namespace=spec.key[0],
            name=spec.key[1],
            token=lambda: token,
            began=began,
            ended=lambda lease: backend.end_lease(spec.key),
        )

    def plug(self, namespace: str, name: str) -> None:
        """Switch a physical exporter on."""
        self._play((namespace, name), self._board(namespace, name))

    def _board(self, namespace: str, name: str) -> Part:
        return Part(
            namespace=namespace,
            name=name,
            token=lambda: self.token(Role.EXPORTER, namespace, name),
        )

    def _play(self, key: Key, part: Part) -> None:
        self.players[key] = self.tasks.create_task(Player(self, part).run())

    async def shadow(self, namespace: str, name: str, seconds: float) -> None:
        """A second exporter with the config of another one."""
        part = self._board(namespace, name)
        task = self.tasks.create_task(Player(self, part).run())
        await asyncio.sleep(seconds)
        task.cancel()

    def unplug(self, key: Key) -> None:
        """Switch an exporter off without notice."""
        task = self.players.pop(key, None)
        if task is not None:
            task.cancel()

    def token(self, role: Role, namespace: str, name: str) -> str:
        """The token in the Secret; empty if there is none."""
        secret = self.truth.get("Secret", namespace, secret_name(role, name))
        return base64.b64decode((secret or {}).get("data", {}).get("token", "")).decode()

    # The end of all faults

    def heal(self) -> None:
        self._calm = True
        for watcher in self._watchers:
            watcher.calm = True
        self.hangs.heal()
        self.network.heal()
        self.api.heal()
        self.machines.heal()
        self.lasting_storage.heal()
        self.disk.delay_max = 0.0
        self.disk.stuck_until = self.disk.full_until = 0.0

    def logged(self, record: logging.LogRecord) -> None:
        """A bug that the service logs breaks the run."""
        error = record.exc_info[1] if record.exc_info else None
        if any(process.alive for process in self.processes):
            text = f"{record.getMessage()}: {type(error).__name__}: {error}"
            self.breaks(Violation("nothing fails by surprise", text, self.time))
