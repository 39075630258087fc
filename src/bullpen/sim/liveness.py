"""What must happen within bounded virtual time once faults have stopped.

First the lab is left alone until its own back-off periods are over; then a free target must
be assigned within a boot time and two seconds, a dead exporter detected within five, a lease
ended within two seconds of its time, although the wall clock is set, and of its maximum,
although it was extended, a booked lease served at its begin, although others ask for all
boards before, equal requests served in their order, and a pool without members say so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from bullpen.api.kinds.virtualtargetpool import DISK_TEMPLATE, FREE_SINCE
from bullpen.app.services import Services
from bullpen.controllers.leases import lease_retention
from bullpen.errors import LabError
from bullpen.kit import durations, times
from bullpen.sim import claim_liveness, pool_liveness
from bullpen.sim.checkers import SINGLE_USE
from bullpen.sim.clients import Client, Job
from bullpen.sim.lasting_operator import POOL
from bullpen.sim.network import DEADLINE
from bullpen.sim.operators import CLIENTS, SPACE, Operator, set_labels, set_name
from bullpen.sim.plan import Size
from bullpen.sim.process import SETTINGS
from bullpen.sim.truth import Raw, Violation, is_active, status
from bullpen.sim.world import KNOWN_LATE, World

SETTLE_MAX = 900.0
"""Seconds until everything left over must be gone: the longest back-off, doubled."""

PROMISED = 2.0
"""Seconds beyond a boot time within which a lease is served."""

NOTICED_MAX = 5.0
ENDED_MAX = 2.0
"""Seconds within which an overdue lease has ended, whatever the wall clock did."""

HELD = 30.0
"""Seconds that a lease whose end is checked lasts."""

QUEUED = 4
"""Clients that wait for a board at the same time."""

BOOKED_IN = 20.0
"""Seconds until a lease begins that is booked while nothing else happens."""

CLOCK_STEP = timedelta(hours=1)
TIDY_MAX = 5.0
"""Seconds for ongoing activity, such as a shrinking pool."""

COLLECTED_MAX = 5.0
"""Seconds within which a free disk is deleted that is older than its ttl."""

LOOK = 1.0


async def check(world: World) -> None:
    claims = world.plan.size is Size.CLAIMS
    if claims:
        await claim_liveness.release_all(world)
    await _settle(world)
    world.history.check()
    await _all_served(world)
    await _dead_is_noticed(world)
    await _ends_in_time(world)
    await _maximum_holds(world)
    await _tidy(world, TIDY_MAX)
    await _queue_is_in_order(world)
    await _tidy(world, TIDY_MAX)
    await _booked_is_kept(world)
    if claims:
        await _tidy(world, TIDY_MAX)
        await claim_liveness.check(world)
    await pool_liveness.check(world)
    # A pool may be removing surplus members at this very moment.
    await _tidy(world, TIDY_MAX)
    await _forgotten(world)


async def _forgotten(world: World) -> None:
    """Ended leases are kept as long as promised, and no longer."""
    # Its announcements every two seconds would be the only activity from now on.
    world.stop_router()
    now = world.clock.now()
    # A lease that ended before the clock was set back may have ended in the future.
    ends = [datetime.fromisoformat(status(lease)["endTime"]) for lease in _ended(world)]
    longest = SETTINGS.retention + lease_retention.pause(SETTINGS.retention)
    await asyncio.sleep((max([now, *ends]) - now + longest).total_seconds() + LOOK)
    for lease in _ended(world):
        text = f"lease {lease['metadata']['name']} ended long ago and is still there"
        world.breaks(Violation("ended leases are forgotten", text, world.time))


def _ended(world: World) -> Iterator[Raw]:
    for lease in world.truth.all("Lease"):
        if "clientRef" in lease["spec"] and status(lease).get("ended"):
            yield lease


async def _settle(world: World) -> None:
    """All clients release their leases; then nothing half-done may be left."""
    # A client may still wait for the answer to an earlier lost call.
    await asyncio.sleep(DEADLINE + LOOK)
    await _until(world, lambda: not world.machines.late, SETTLE_MAX, "the backend goes on")
    await _until(world, lambda: world.front() is not None, SETTLE_MAX, "the service is not ready")
    await _give_back(world)
    await _tidy(world, SETTLE_MAX)


async def _tidy(world: World, seconds: float) -> None:
    """Wait until nothing is left over, at most this long."""
    await _until(world, lambda: not any(untidy(world)), seconds, lambda: _first(untidy(world)))


async def _give_back(world: World) -> None:
    for lease in list(world.truth.all("Lease")):
        meta, spec = lease["metadata"], lease.get("spec") or {}
        if status(lease).get("ended") or "clientRef" not in spec:
            continue
        client = spec["clientRef"]["name"]
        if client not in CLIENTS:
            continue

        async def work(services: Services, client: str = client, name: str = meta["name"]) -> None:
            found = services.views.clients.get(SPACE, client)
            assert found is not None
            await services.leases.release(found, name, idempotent=True)

        try:
            await world.network.call(client, work)
        except LabError as error:
            world.say(client, f"cannot give back {meta['name']}: {error.reason}")


def untidy(world: World) -> Iterator[str]:
    """What should not exist when there is no activity."""
    truth = world.truth
    exporters = {e["metadata"]["uid"]: e for e in truth.all("Exporter")}
    backend = world.machines.backend
    for key in backend.held():
        found = backend.instance(key)
        if found is not None and found.owner_uid not in exporters:
            yield f"the machine of {key[1]} has no owner"
    for exporter in exporters.values():
        yield from _untidy_exporter(world, exporter)
    for lease in truth.all("Lease"):
        if is_active(lease):
            yield f"lease {lease['metadata']['name']} is still active"
    for pool in truth.all("ExporterSet"):
        yield from _untidy_pool(pool, list(exporters.values()))
    for pool in truth.all("VirtualTargetPool"):
        yield from _untidy_lasting(world, pool)


def _untidy_pool(pool: Raw, exporters: list[Raw]) -> Iterator[str]:
    meta, spec = pool["metadata"], pool["spec"]
    members = [e for e in exporters if _owned(e, meta["uid"])]
    free = [e for e in members if _is_free(e)]
    if len(free) < spec.get("minAvailableReplicas", 0):
        yield f"pool {meta['name']} has {len(free)} free members, not as many as it should"
    if spec["maxReplicas"] and len(members) > spec["maxReplicas"]:
        yield f"pool {meta['name']} has {len(members)} members, more than it may"


def _untidy_lasting(world: World, pool: Raw) -> Iterator[str]:
    """The count is exact, every member is ready with a disk of its own, no removal is open."""
    meta, spec = pool["metadata"], pool["spec"]
    members = [t for t in world.truth.all("VirtualTarget") if _owned(t, meta["uid"])]
    # An Explicit pool keeps what a higher count made before.
    least, most = spec["replicas"], spec["replicas"]
    if spec["scaleDownPolicy"] == "Explicit":
        most = max(most, len(members))
    if not least <= len(members) <= most:
        yield f"pool {meta['name']} has {len(members)} members, not {least}"
    if not all(_condition(member, "Ready") for member in members):
        yield f"a member of pool {meta['name']} is not ready"
    if spec.get("removals"):
        yield f"pool {meta['name']} has removals that are not done"
    used = [disk for member in members for disk in status(member).get("disks") or ()]
    if len(set(used)) != len(members) * len(spec["virtualDiskTemplates"]):
        yield f"the {len(members)} members of pool {meta['name']} have the disks {sorted(used)}"
    yield from _untidy_disks(world, spec, set(used))
    for disk in world.truth.all("VirtualDisk"):
        name, said = disk["metadata"]["name"], status(disk)
        full = any(each["reason"] == "NoSpace" for each in said.get("conditions") or ())
        if name in used and said.get("capacity") != disk["spec"]["size"] and not full:
            yield f"disk {name} has {said.get('capacity')}, not {disk['spec']['size']}"
    counted = status(pool)
    if (counted.get("replicas"), counted.get("updatedReplicas")) != (len(members), len(members)):
        yield f"pool {meta['name']} says {counted.get('updatedReplicas')} members are updated"


def _untidy_disks(world: World, spec: Raw, used: set[str]) -> Iterator[str]:
    """Disks that should be gone, and those that belong to the wrong object."""
    reclaims = {each["name"]: each["reclaim"] for each in spec["virtualDiskTemplates"]}
    old: Counter[str] = Counter()
    for disk in world.truth.all("VirtualDisk"):
        meta = disk["metadata"]
        template = meta["labels"][DISK_TEMPLATE]
        reclaim = reclaims.get(template)
        if reclaim is None:
            yield f"disk {meta['name']} is left, and there is no template {template}"
            continue
        owner = "VirtualTargetPool" if reclaim["onScaleDown"] == "Retain" else "VirtualTarget"
        if not any(each["kind"] == owner for each in meta.get("ownerReferences", ())):
            yield f"disk {meta['name']} does not belong to a {owner}"
        since, ttl = meta.get("annotations", {}).get(FREE_SINCE), reclaim.get("ttl")
        if meta["name"] not in used and ttl and since:
            due = times.parse(since) + durations.parse(ttl) + timedelta(seconds=COLLECTED_MAX)
            old[template] += due < world.clock.now()
    for template, count in sorted(old.items()):
        if count > reclaims[template].get("keep", 0):
            yield f"{count} disks of template {template} are older than its ttl"


def _is_free(exporter: Raw) -> bool:
    used = SINGLE_USE in (exporter["metadata"].get("annotations") or {}) and bool(
        status(exporter).get("leaseEpoch")
    )
    return _condition(exporter, "Online") and not status(exporter).get("leaseRef") and not used


def _owned(exporter: Raw, uid: str) -> bool:
    owners = exporter["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def _untidy_exporter(world: World, exporter: Raw) -> Iterator[str]:
    meta, said = exporter["metadata"], status(exporter)
    if said.get("leaseRef"):
        yield f"exporter {meta['name']} is held by {said['leaseRef']['name']}"
    if meta.get("deletionTimestamp"):
        yield f"exporter {meta['name']} is still going"
    key = (meta["namespace"], meta["name"])
    if key in world.players and not _condition(exporter, "Online"):
        yield f"exporter {meta['name']} runs and is not online"


async def _all_served(world: World) -> None:
    """As many clients at once as there are targets of each kind."""
    boot = world.plan.boot[1]
    async with asyncio.TaskGroup() as tasks:
        _ask(world, tasks, "board=real", world.plan.boards, boot + PROMISED)
        lasting = world.truth.get("VirtualTargetPool", SPACE, POOL)
        if lasting is not None:
            _ask(world, tasks, "board=lasting", lasting["spec"]["replicas"], boot + PROMISED)
        for number in range(len(world.plan.ceilings)):
            found = world.truth.get("ExporterSet", SPACE, set_name(number))
            if found is not None:
                selector = f"board={set_labels(number)['board']}"
                promised = served_within(found, boot=boot, now=world.clock.now())
                _ask(world, tasks, selector, found["spec"]["maxReplicas"], promised)


def served_within(pool: Raw, *, boot: float, now: datetime) -> float:
    """Seconds within which as many leases as a pool may have members must be served.

    One boot, unless the last members failed to start: then there is a pause, which the pool
    reports, and after it one member is started alone, and with each success twice as many.
    """
    failures = status(pool).get("startFailures")
    if not failures:
        return boot + PROMISED
    pause = (datetime.fromisoformat(failures["retryTime"]) - now).total_seconds()
    rounds, up = 0, 0
    while up < pool["spec"]["maxReplicas"]:
        rounds, up = rounds + 1, up + max(1, 2 * up)
    return max(0.0, pause) + rounds * boot + PROMISED


def _ask(
    world: World, tasks: asyncio.TaskGroup, selector: str, count: int, promised: float
) -> None:
    for number in range(count):
        job = Job(
            client=CLIENTS[number % len(CLIENTS)],
            selector=selector,
            duration=3600.0,
            holds=4 * promised,
            patience=4 * promised,
            dials=1,
        )
        tasks.create_task(_served(world, job, promised))


async def _served(world: World, job: Job, promised: float) -> None:
    client = Client(world, job)
    await client.run()
    waited = world.history.waited(SPACE, client.lease)
    text = ""
    if waited is None:
        text = f"a lease for {job.selector} was not served"
    elif waited > promised:
        text = f"a lease for {job.selector} took {waited:.1f} s, not {promised:.1f} s"
    elif not client.connected:
        text = f"the holder of a lease for {job.selector} could not connect"
    if text:
        world.breaks(Violation("once faults stop, leases are served", text, world.time))


async def _dead_is_noticed(world: World) -> None:
    """A dead exporter is reported in time, whatever the wall clock does. The steps cancel out."""

    def offline() -> bool:
        return not _condition(world.truth.get("Exporter", SPACE, "board0"), "Online")

    for step in (-CLOCK_STEP, CLOCK_STEP):
        world.unplug((SPACE, "board0"))
        world.clock.jump(step)
        await _until(world, offline, NOTICED_MAX, "a dead exporter is still online")
        world.plug(SPACE, "board0")
        await asyncio.sleep(NOTICED_MAX)


async def _ends_in_time(world: World) -> None:
    """Leases of clients that vanish end at their time: it comes, or the clock is set past it.

    A clock that is set back makes no lease longer. The steps cancel each other out.
    """
    for step in (-CLOCK_STEP, CLOCK_STEP):
        job = Job(
            client=CLIENTS[0],
            selector="board=real",
            duration=HELD,
            holds=0.0,
            patience=4 * NOTICED_MAX,
            vanishes=True,
        )
        client = Client(world, job)
        await client.run()
        world.clock.jump(step)
        left = HELD if step < timedelta(0) else 0.0
        # A board that serves nobody breaks another promise, which was checked before.
        if world.history.waited(SPACE, client.lease) is not None:
            await _until_ended(world, client.lease, left + ENDED_MAX)


async def _maximum_holds(world: World) -> None:
    """A lease that is extended with kubectl beyond what a policy allows ends at its maximum."""
    operator = Operator(world)
    await operator.limit(HELD)
    await asyncio.sleep(KNOWN_LATE)
    client = Client(world, _board_job(duration=HELD / 2, patience=4 * NOTICED_MAX, vanishes=True))
    await client.run()
    if world.history.waited(SPACE, client.lease) is not None:
        await operator.change("Lease", client.lease, {"spec": {"duration": "1h"}})
        await _until_ended(world, client.lease, HELD + ENDED_MAX)
    await operator.unlimit()
    await asyncio.sleep(KNOWN_LATE)


async def _queue_is_in_order(world: World) -> None:
    """More clients than boards ask one after the other, and get their boards in that order."""
    clients = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(world.plan.boards + QUEUED):
            job = _board_job(duration=3600.0, holds=HELD, patience=(QUEUED + 2) * HELD)
            clients.append(Client(world, job))
            tasks.create_task(clients[-1].run())
            await asyncio.sleep(LOOK)
    served = [world.history.served(SPACE, client.lease) for client in clients]
    for number, (one, other) in enumerate(pairwise(served)):
        if one is None or other is None or one > other:
            text = f"request {number + 2} was served at {other} s, the one before at {one} s"
            world.breaks(Violation("equal requests are served in order", text, world.time))


async def _booked_is_kept(world: World) -> None:
    """One board is left for a booked lease, and a short lease uses it until then."""
    booked = Client(world, _board_job(duration=HELD, begin_in=BOOKED_IN, patience=4 * BOOKED_IN))
    short = Client(world, _board_job(duration=BOOKED_IN / 2, patience=BOOKED_IN))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(booked.run())
        await asyncio.sleep(LOOK)
        for _ in range(world.plan.boards):
            job = _board_job(duration=3600.0, holds=4 * BOOKED_IN, patience=2 * BOOKED_IN)
            tasks.create_task(Client(world, job).run())
        await asyncio.sleep(LOOK)
        tasks.create_task(short.run())
    for client, promised in ((booked, BOOKED_IN + PROMISED), (short, PROMISED)):
        waited = world.history.waited(SPACE, client.lease)
        if waited is None or waited > promised:
            which = "the booked lease" if client is booked else "a short lease before it"
            text = f"{which} was not served within {promised:.0f} s"
            world.breaks(Violation("what is booked is kept", text, world.time))


def _board_job(
    *,
    duration: float,
    patience: float,
    holds: float = 0.0,
    begin_in: float | None = None,
    vanishes: bool = False,
) -> Job:
    return Job(
        client=CLIENTS[0],
        selector="board=real",
        begin_in=begin_in,
        duration=duration,
        holds=holds,
        patience=patience,
        dials=0,
        vanishes=vanishes,
    )


async def _until_ended(world: World, name: str, seconds: float) -> None:
    def ended() -> bool:
        lease = world.truth.get("Lease", SPACE, name)
        return lease is None or bool(status(lease).get("ended"))

    end = world.time + seconds
    while not ended():
        if world.time >= end:
            text = f"lease {name} goes on, which had to end within {seconds:.0f} s"
            world.breaks(Violation("a lease ends in time", text, world.time))
            return
        await asyncio.sleep(ENDED_MAX / 20)


def _condition(document: Raw | None, type_: str) -> bool:
    found = status(document).get("conditions") or ()
    return any(item["type"] == type_ and item["status"] == "True" for item in found)


def _first(texts: Iterator[str]) -> str:
    return next(texts, "")


async def _until(
    world: World, holds: Callable[[], bool], seconds: float, what: str | Callable[[], str]
) -> None:
    end = world.time + seconds
    while not holds():
        if world.time >= end:
            text = what if isinstance(what, str) else what()
            promise = "once faults stop, the lab converges"
            world.breaks(Violation(promise, f"{text} after {seconds:.0f} s", world.time))
            return
        await asyncio.sleep(min(LOOK, seconds / 50))
