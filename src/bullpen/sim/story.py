"""Carries out the steps of a plan: actions of people, and faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from bullpen.app.services import Services
from bullpen.errors import LabError
from bullpen.identity.subjects import Role, secret_name
from bullpen.provisioners.base import InstancePhase, Key
from bullpen.services.callers import Claim
from bullpen.services.lease_requests import Edit
from bullpen.sim.claimants import Claimant
from bullpen.sim.clients import Client, Job
from bullpen.sim.extremes import Extremist
from bullpen.sim.lasting_operator import LastingOperator
from bullpen.sim.network import router_link
from bullpen.sim.operators import CLIENTS, OTHER, SPACE, STRANGER, Operator
from bullpen.sim.plan import Act, Home, Step
from bullpen.sim.truth import Violation
from bullpen.sim.world import World

STEPS_TO_CRASH_MAX = 60
"""Maximum turns of the event loop before a crash, so that it can hit any await."""

TOKEN_LOOK = 0.5
"""Seconds between two looks whether a board has a new token."""

CLOCK_JUMPS_MAX = (1.0, 20.0, 600.0, 4 * 3600.0)
"""Maximum seconds by which the wall clock is set at a time, longer than any token lasts."""


class Story:
    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._lasting = LastingOperator(world, operator)
        self._acts: dict[Act, Callable[[random.Random], Awaitable[None]]] = {
            Act.LEASE: self._lease,
            Act.BOOK: self._book,
            Act.NAMED: self._named,
            Act.STRANGER: self._stranger,
            Act.SCALE: self._scale,
            Act.EDIT_CLASS: self._operator.edit_class,
            Act.REMAKE_SET: self._remake_set,
            Act.DISABLE: self._disable,
            Act.POLICY: self._police,
            Act.DELETE_LEASE: self._delete_lease,
            Act.DELETE_EXPORTER: self._delete_exporter,
            Act.SCALE_POOL: self._lasting.scale,
            Act.REMOVE_BY_NAME: self._lasting.remove_by_name,
            Act.EDIT_TEMPLATE: self._lasting.edit_template,
            Act.PAUSE_POOL: self._lasting.pause,
            Act.DELETE_TARGET: self._lasting.delete_target,
            Act.STOP_TARGET: self._lasting.stop_target,
            Act.GROW_DISKS: self._grow_disks,
            Act.CHANGE_DISKS: self._lasting.change_disks,
            Act.CLAIM: Claimant(world, operator).claim,
            Act.EXTREME: Extremist(operator).write,
            Act.CRASH: self._crash,
            Act.SUCCESSION: self._succession,
            Act.CUT_CLIENT: self._cut_client,
            Act.CUT_EXPORTER: self._cut_exporter,
            Act.CUT_ROUTER: self._cut_router,
            Act.ROUTER_CRASH: self._router_crash,
            Act.CUT_API: self._cut_api,
            Act.SLOW_DISK: self._slow_disk,
            Act.STUCK_DISK: self._stuck_disk,
            Act.FULL_DISK: self._full_disk,
            Act.CLOCK: self._jump,
            Act.MACHINE_DIES: self._machine_dies,
            Act.BACKEND_AWAY: self._backend_away,
            Act.BACKEND_HANGS: self._backend_hangs,
            Act.BACKEND_REFUSES: self._backend_refuses,
            Act.BACKEND_TWICE: self._backend_twice,
            Act.EXPORTER_VANISHES: self._exporter_vanishes,
            Act.EXPORTER_FLAPS: self._exporter_flaps,
            Act.EXPORTER_TWICE: self._exporter_twice,
            Act.BACKEND_LIES: self._backend_lies,
            Act.ROTATION: self._rotation,
            Act.EXPORTER_HANGS: self._exporter_hangs,
            Act.SERVICE_HANGS: self._service_hangs,
            Act.ROUTER_HANGS: self._router_hangs,
            Act.STORAGE_FAILS: self._storage_fails,
            Act.STORAGE_HANGS: self._storage_hangs,
            Act.STORAGE_FULL: self._storage_full,
            Act.MACHINE_PAUSED: self._machine_paused,
        }

    async def tell(self) -> None:
        """Run each step at its time; long steps run concurrently with the next ones.

        Faults stop when the plan says so; steps that are still running then finish.
        """
        began, plan = self._world.time, self._world.plan
        async with asyncio.TaskGroup() as acting:
            for step in sorted(plan.steps, key=lambda step: step.at):
                await asyncio.sleep(max(0.0, began + step.at - self._world.time))
                self._world.say("step", f"{step.number} {step.act}")
                acting.create_task(self._step(step))
            await asyncio.sleep(max(0.0, began + plan.lasts - self._world.time))
            self._world.say("faults", "stop")
            self._world.heal()

    async def _step(self, step: Step) -> None:
        await self._acts[step.act](random.Random(step.seed))

    # People

    def _job(self, chance: random.Random, **asked: str | float | None) -> Job:
        client = chance.choice(CLIENTS)
        rest = [name for name in CLIENTS if name != client]
        return Job(
            client=client,
            duration=float(chance.choice(self._world.plan.durations)),
            holds=chance.uniform(0, self._world.plan.holds_max),
            patience=chance.choice((5.0, 30.0, 120.0)),
            dials=chance.choice(self._world.plan.dials),
            extends=chance.random() < 0.2,
            hands_to=chance.choice(rest) if chance.random() < 0.15 else "",
            vanishes=chance.random() < 0.15,
            **asked,  # type: ignore[arg-type]
        )

    async def _run(self, job: Job) -> None:
        await Client(self._world, job).run()

    def _selector(self, chance: random.Random) -> str:
        plan = self._world.plan
        if plan.lasting and chance.random() >= plan.real:
            return "board=lasting"
        if chance.random() < plan.real or not plan.ceilings:
            return "board=real"
        return f"board=virtual{chance.randrange(len(plan.ceilings))}"

    async def _lease(self, chance: random.Random) -> None:
        selector = self._selector(chance)
        await self._run(self._job(chance, selector=selector))

    async def _book(self, chance: random.Random) -> None:
        selector, later = self._selector(chance), chance.uniform(1, 30)
        await self._run(self._job(chance, selector=selector, begin_in=later))

    async def _named(self, chance: random.Random) -> None:
        names = [where[2] for where in self._world.truth.objects if where[0] == "Exporter"]
        if names:
            await self._run(self._job(chance, exporter=chance.choice(sorted(names))))

    async def _stranger(self, chance: random.Random) -> None:
        """A client of another namespace, and another client of this one, try to use a lease."""
        leases = [where[2] for where in self._world.truth.objects if where[0] == "Lease"]
        if not leases:
            return
        name = chance.choice(sorted(leases))
        thief = chance.choice([client for client in CLIENTS if client != self._holder(name)])
        foreign = self._world.token(Role.CLIENT, OTHER, STRANGER)
        claims = (
            _claim(foreign, OTHER, STRANGER),
            _claim(foreign, SPACE, thief),
            _claim(self._world.token(Role.CLIENT, SPACE, thief), SPACE, thief),
        )
        for claim in claims:
            for attempt in (_dial, _release, _take_over):
                await self._must_fail(claim, name, attempt)

    def _holder(self, lease: str) -> str:
        return self._world.history.holder(SPACE, lease)

    async def _must_fail(
        self, claim: Claim, lease: str, attempt: Callable[[Services, Claim, str], Awaitable[None]]
    ) -> None:
        async def work(services: Services) -> None:
            await attempt(services, claim, lease)

        try:
            await self._world.network.call(STRANGER, work)
        except LabError:
            return
        if self._holder(lease) == claim.name:
            # The lease was transferred meanwhile.
            return
        text = f"{claim.name} could {attempt.__name__.strip('_')} lease {lease}"
        self._world.breaks(Violation("a client uses only what is its own", text, self._world.time))

    async def _scale(self, chance: random.Random) -> None:
        if self._world.plan.ceilings:
            number = chance.randrange(len(self._world.plan.ceilings))
            await self._operator.scale(number, chance)

    async def _remake_set(self, chance: random.Random) -> None:
        ceilings = self._world.plan.ceilings
        if ceilings:
            number = chance.randrange(len(ceilings))
            await self._operator.remake_set(number, ceilings[number], chance)

    async def _disable(self, chance: random.Random) -> None:
        name = f"board{chance.randrange(self._world.plan.boards)}"
        await self._operator.disable(name, chance.uniform(1, 20))

    async def _police(self, chance: random.Random) -> None:
        vip = chance.choice(CLIENTS)
        await self._operator.change("Client", vip, {"metadata": {"labels": {"vip": "yes"}}})
        await self._operator.police(chance.uniform(5, 30))

    async def _delete_lease(self, chance: random.Random) -> None:
        leases = [lease["metadata"]["name"] for lease in self._world.truth.all("Lease")]
        if leases:
            await self._operator.delete("Lease", SPACE, chance.choice(sorted(leases)))

    async def _delete_exporter(self, chance: random.Random) -> None:
        found = [e["metadata"]["name"] for e in self._world.truth.all("Exporter")]
        members = sorted(name for name in found if not name.startswith("board"))
        if members:
            await self._operator.delete("Exporter", SPACE, chance.choice(members))

    # The service

    async def _crash(self, chance: random.Random) -> None:
        """Kill the service, at whatever it is waiting for."""
        for _ in range(chance.randrange(STEPS_TO_CRASH_MAX)):
            await asyncio.sleep(0)
        front = self._world.front() or self._world.processes[-1]
        front.crash()

    async def _succession(self, chance: random.Random) -> None:
        """Another process takes over before the old one has noticed."""
        await self._world.overlap(chance.uniform(0, 20))

    async def _jump(self, chance: random.Random) -> None:
        most = chance.choice(CLOCK_JUMPS_MAX)
        jump = timedelta(seconds=chance.uniform(-most, most))
        self._world.clock.jump(jump)
        self._world.say("clock", f"jumps by {jump.total_seconds():.3f} s")

    async def _cut_api(self, chance: random.Random) -> None:
        for process in self._world.processes:
            self._world.api.cut(process.name, chance.uniform(0.5, 15))
        if self._world.apart is not None:
            self._world.api.cut(self._world.apart.name, chance.uniform(0.5, 15))

    async def _slow_disk(self, chance: random.Random) -> None:
        self._world.disk.delay_max = chance.uniform(0.01, 0.5)
        await asyncio.sleep(chance.uniform(1, 20))
        self._world.disk.delay_max = 0.0

    async def _stuck_disk(self, chance: random.Random) -> None:
        self._world.disk.stuck(chance.uniform(1, 10))

    async def _full_disk(self, chance: random.Random) -> None:
        self._world.disk.full_until = self._world.time + chance.uniform(0.1, 5)

    # The network

    async def _cut_client(self, chance: random.Random) -> None:
        self._world.network.cut(chance.choice(CLIENTS), chance.uniform(1, 20))

    async def _cut_exporter(self, chance: random.Random) -> None:
        if key := self._any_player(chance):
            self._world.network.cut(key[1], chance.uniform(1, 30))

    async def _cut_router(self, chance: random.Random) -> None:
        peers = [*CLIENTS, *(name for _, name in sorted(self._world.players))]
        self._world.network.cut(router_link(chance.choice(peers)), chance.uniform(1, 20))

    async def _router_crash(self, chance: random.Random) -> None:
        await self._world.restart_router(chance.uniform(0.1, 15))

    # Machines and exporters

    async def _machine_dies(self, chance: random.Random) -> None:
        backend = self._world.machines.backend
        up = [key for key in backend.held() if _is_running(backend.instance(key))]
        if up:
            key = chance.choice(up)
            self._world.say(key[1], "dies")
            backend.crash(key)

    async def _machine_paused(self, chance: random.Random) -> None:
        """The host of a machine has no space for what it writes, for a while."""
        backend = self._world.machines.backend
        up = [key for key in backend.held() if _is_running(backend.instance(key))]
        if not up:
            return
        key = chance.choice(up)
        self._world.say(key[1], "is paused")
        backend.pause(key, "its host has no space")
        await asyncio.sleep(chance.uniform(1, 20))
        if key in backend.held():
            backend.pause(key, "")

    async def _grow_disks(self, chance: random.Random) -> None:
        """Disks become larger, under their machines or, where those cannot, in a restart."""
        fixed = chance.random() < 0.5
        self._world.machines.backend.disks_fixed = "it has no slots" if fixed else ""
        await self._lasting.grow(chance)

    async def _backend_away(self, chance: random.Random) -> None:
        self._world.machines.away_until = self._world.time + chance.uniform(1, 20)

    async def _backend_hangs(self, chance: random.Random) -> None:
        self._world.machines.hangs_until = self._world.time + chance.uniform(1, 20)

    async def _backend_refuses(self, chance: random.Random) -> None:
        self._world.machines.refuses_until = self._world.time + chance.uniform(1, 10)

    async def _backend_twice(self, chance: random.Random) -> None:
        self._world.machines.doubles_until = self._world.time + chance.uniform(1, 20)

    async def _backend_lies(self, chance: random.Random) -> None:
        self._world.machines.lies_until = self._world.time + chance.uniform(1, 20)

    async def _rotation(self, chance: random.Random) -> None:
        """A token is replaced; its owner is given the new one, and the old one is worth nothing."""
        boards = [(Role.EXPORTER, f"board{n}") for n in range(self._world.plan.boards)]
        role, name = chance.choice([*boards, *((Role.CLIENT, client) for client in CLIENTS)])
        before = self._world.token(role, SPACE, name)
        await self._operator.delete("Secret", SPACE, secret_name(role, name))
        if role is Role.EXPORTER:
            await self._new_config(name, before)

    async def _new_config(self, board: str, before: str) -> None:
        """An exporter reads its token once, so it is restarted when there is a new one."""
        while (token := self._world.token(Role.EXPORTER, SPACE, board)) in ("", before):
            if token == before:
                # "Not found" may mean a deletion that was not durable, and that a full disk undid.
                await self._operator.delete("Secret", SPACE, secret_name(Role.EXPORTER, board))
            await asyncio.sleep(TOKEN_LOOK)
        if board not in self._world.down:
            self._world.unplug((SPACE, board))
            self._world.plug(SPACE, board)

    async def _exporter_hangs(self, chance: random.Random) -> None:
        if key := self._any_player(chance):
            self._world.hangs.hang(key[1], chance.uniform(1, 30))

    async def _service_hangs(self, chance: random.Random) -> None:
        """Every process of the service but the router of its own; its disk waits with it."""
        for process in self._world.processes:
            if process.alive:
                seconds = chance.uniform(0.5, 15)
                self._world.api.hang(process.name, seconds)
                if self._world.plan.home is Home.EMBEDDED:
                    self._world.disk.stuck(seconds)

    async def _router_hangs(self, chance: random.Random) -> None:
        if self._world.apart is not None:
            self._world.api.hang(self._world.apart.name, chance.uniform(0.5, 15))

    async def _storage_fails(self, chance: random.Random) -> None:
        self._world.lasting_storage.fails_until = self._world.time + chance.uniform(1, 20)

    async def _storage_hangs(self, chance: random.Random) -> None:
        self._world.lasting_storage.hangs_until = self._world.time + chance.uniform(1, 20)

    async def _storage_full(self, chance: random.Random) -> None:
        self._world.lasting_storage.full_until = self._world.time + chance.uniform(1, 20)

    async def _exporter_vanishes(self, chance: random.Random) -> None:
        await self._off_and_on(chance, chance.uniform(5, 40))

    async def _exporter_flaps(self, chance: random.Random) -> None:
        for _ in range(chance.randint(2, 4)):
            await self._off_and_on(chance, chance.uniform(0.1, 4))
            await asyncio.sleep(chance.uniform(0.1, 3))

    async def _off_and_on(self, chance: random.Random, seconds: float) -> None:
        name = f"board{chance.randrange(self._world.plan.boards)}"
        if name in self._world.down:
            return
        self._world.down.add(name)
        self._world.say(name, f"is off for {seconds:.3f} s")
        self._world.unplug((SPACE, name))
        await asyncio.sleep(seconds)
        self._world.down.remove(name)
        self._world.plug(SPACE, name)

    async def _exporter_twice(self, chance: random.Random) -> None:
        """A second process with the same config, for a while."""
        name = f"board{chance.randrange(self._world.plan.boards)}"
        if name not in self._world.down:
            await self._world.shadow(SPACE, name, chance.uniform(1, 10))

    def _any_player(self, chance: random.Random) -> Key | None:
        return chance.choice(sorted(self._world.players)) if self._world.players else None


def _is_running(instance: object) -> bool:
    return getattr(instance, "phase", None) is InstancePhase.RUNNING


def _claim(token: str, namespace: str, name: str) -> Claim:
    return Claim(token=token, role=Role.CLIENT, namespace=namespace, name=name)


async def _dial(services: Services, claim: Claim, lease: str) -> None:
    await services.switchboard.dial(await services.callers.client(claim), lease)


async def _release(services: Services, claim: Claim, lease: str) -> None:
    await services.leases.release(await services.callers.client(claim), lease, idempotent=True)


async def _take_over(services: Services, claim: Claim, lease: str) -> None:
    await services.leases.update(
        await services.callers.client(claim), lease, Edit(client=claim.name)
    )
