"""The steps of a run, derived from its seed before anything starts.

Each step has its own seed, so that omitting one changes no other: this allows shrinking a
failing run. A seed enables only some kinds of faults, because a run with all of them at
once rarely gets far enough to be interesting.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Home(StrEnum):
    EMBEDDED = "embedded"
    """One process that owns its store."""

    CLUSTER = "cluster"
    """A separate Kubernetes API; the service is replaced while it still runs."""


class Size(StrEnum):
    """How much happens in a run."""

    TINY = "tiny"
    """A board, perhaps a pool of one, a few seconds: thousands of different runs in minutes."""

    SMALL = "small"
    """A few leases in a lab of a few targets."""

    USUAL = "usual"
    LARGE = "large"
    """Hundreds of consecutive leases, in a lab that is often congested."""

    DENSE = "dense"
    """The same with few waiting clients: the most leases in the least time."""

    LASTING = "lasting"
    """A pool of lasting targets with disks, which is scaled, edited and shrunk by name."""

    CLAIMS = "claims"
    """Claims for several targets compete with leases. No other size has claims."""

    EXTREMES = "extremes"
    """Beside ordinary work, people write objects with fields at the extremes of their schema."""


class Act(StrEnum):
    """What a step does."""

    # Actions of people
    LEASE = "lease"
    BOOK = "book"
    NAMED = "named"
    STRANGER = "stranger"
    SCALE = "scale"
    EDIT_CLASS = "edit-class"
    REMAKE_SET = "remake-set"
    DISABLE = "disable"
    POLICY = "policy"
    DELETE_LEASE = "delete-lease"
    DELETE_EXPORTER = "delete-exporter"
    CLAIM = "claim"
    EXTREME = "extreme"

    # The same, with a pool of lasting targets
    SCALE_POOL = "scale-pool"
    REMOVE_BY_NAME = "remove-by-name"
    EDIT_TEMPLATE = "edit-template"
    PAUSE_POOL = "pause-pool"
    DELETE_TARGET = "delete-target"
    STOP_TARGET = "stop-target"
    GROW_DISKS = "grow-disks"
    CHANGE_DISKS = "change-disks"

    # Faults
    CRASH = "crash"
    SUCCESSION = "succession"
    CUT_CLIENT = "cut-client"
    CUT_EXPORTER = "cut-exporter"
    CUT_ROUTER = "cut-router"
    ROUTER_CRASH = "router-crash"
    CUT_API = "cut-api"
    SLOW_DISK = "slow-disk"
    STUCK_DISK = "stuck-disk"
    FULL_DISK = "full-disk"
    CLOCK = "clock"
    MACHINE_DIES = "machine-dies"
    BACKEND_AWAY = "backend-away"
    BACKEND_HANGS = "backend-hangs"
    BACKEND_REFUSES = "backend-refuses"
    BACKEND_TWICE = "backend-twice"
    EXPORTER_VANISHES = "exporter-vanishes"
    EXPORTER_FLAPS = "exporter-flaps"
    EXPORTER_TWICE = "exporter-twice"
    BACKEND_LIES = "backend-lies"
    ROTATION = "rotation"
    EXPORTER_HANGS = "exporter-hangs"
    SERVICE_HANGS = "service-hangs"
    ROUTER_HANGS = "router-hangs"
    STORAGE_FAILS = "storage-fails"
    STORAGE_HANGS = "storage-hangs"
    STORAGE_FULL = "storage-full"
    MACHINE_PAUSED = "machine-paused"


WORK: Mapping[Act, int] = {
    Act.LEASE: 20,
    Act.BOOK: 2,
    Act.NAMED: 4,
    Act.STRANGER: 4,
    Act.SCALE: 3,
    Act.EDIT_CLASS: 1,
    Act.REMAKE_SET: 1,
    Act.DISABLE: 2,
    Act.POLICY: 1,
    Act.DELETE_LEASE: 1,
    Act.DELETE_EXPORTER: 1,
}
"""Relative frequency of each action of people."""

LASTING_WORK: Mapping[Act, int] = {
    Act.LEASE: 16,
    Act.NAMED: 2,
    Act.DISABLE: 1,
    Act.DELETE_LEASE: 1,
    Act.DELETE_EXPORTER: 1,
    Act.SCALE_POOL: 5,
    Act.REMOVE_BY_NAME: 6,
    Act.EDIT_TEMPLATE: 2,
    Act.PAUSE_POOL: 1,
    Act.DELETE_TARGET: 2,
    Act.STOP_TARGET: 1,
}
"""The same in a lab with a pool of lasting targets."""

WORKS = (*WORK, *LASTING_WORK, Act.CLAIM, Act.EXTREME, Act.GROW_DISKS, Act.CHANGE_DISKS)
FAULTS = tuple(act for act in Act if act not in WORKS)
ADDED = frozenset({Act.BACKEND_LIES, Act.ROTATION})
"""Faults with a chance of their own: adding one changes no other step of any seed."""

HANGS = frozenset({Act.EXPORTER_HANGS, Act.ROUTER_HANGS, Act.SERVICE_HANGS})
"""The same, added later."""

ADDED_LASTING = frozenset({Act.GROW_DISKS, Act.MACHINE_PAUSED})
"""The same in runs with lasting targets."""

ADDED_DISKS = frozenset({Act.CHANGE_DISKS})
"""The same, added later: people change what becomes of disks, and which there are."""

ONLY_CLUSTER = frozenset({Act.SUCCESSION, Act.CUT_API})
ONLY_EMBEDDED = frozenset({Act.SLOW_DISK, Act.STUCK_DISK, Act.FULL_DISK})
ONLY_LASTING = frozenset({Act.STORAGE_FAILS, Act.STORAGE_HANGS, Act.STORAGE_FULL})
"""Faults of the storage of lasting disks, in runs that have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Continuous low-level faults: probabilities between 0 and 1, times in seconds."""

    lost: float = 0.0
    """A message, in either direction, that never arrives."""

    doubled: float = 0.0
    """A call that arrives twice."""

    delay_max: float = 0.01
    refused: float = 0.0
    """A write that is reported as conflicting although it is not."""

    unanswered: float = 0.0
    """A write that succeeds but is reported as unanswered."""

    broken: float = 0.0
    """A watch that breaks, per read."""

    lag_max: float = 0.0
    """Maximum delay of a watch."""

    stale: float = 0.0
    """A list with the state of some seconds ago."""

    rewound: float = 0.0
    """A watch that starts too early, so that changes are delivered again."""

    start_failed: float = 0.0
    history: int = 50_000
    """Changes that are retained; with fewer, watches must list again more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    number: int
    at: float
    act: Act
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    seed: int
    home: Home
    size: Size
    weather: Weather
    steps: tuple[Step, ...]
    lasts: float
    """Seconds until faults stop."""

    boards: int
    """Physical exporters."""

    ceilings: tuple[int, ...]
    """The ceiling of each set; the first set is single-use."""

    boot: tuple[float, float]
    real: float
    """The probability that a lease requests a board and not a member of a pool."""

    dials: tuple[int, ...]
    """The possible numbers of connections of a client."""

    holds_max: float
    """Maximum seconds a client uses a target."""

    durations: tuple[int, ...]
    """The possible durations of leases, in seconds."""

    events: bool
    """Whether Events are written too. Nothing depends on them, and they are a third of writes."""

    router: bool
    """Whether a router runs in a process of its own."""

    lasting: int = 0
    """Members of the pool of lasting targets; 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """The bounds of a size."""

    lasts: tuple[float, float]
    steps: tuple[int, int]
    leases: int = WORK[Act.LEASE]
    """Relative frequency of lease requests among the actions of people."""

    claims: int = 0
    """The same of claims."""

    extremes: int = 0
    """The same of objects at the extremes of their schema."""

    faults: tuple[float, float]
    """The share of steps that are faults."""

    boards: tuple[int, int]
    pools: tuple[int, int]
    ceilings: tuple[int, int]
    boot: tuple[float, float] = (1.0, 4.0)
    real: float = 0.4
    """The share of leases that request a board."""

    dials: tuple[int, ...] = (0, 1, 2)
    holds_max: float = 20.0
    durations: tuple[int, ...] = (10, 30, 120, 3600)
    events: float
    """The share of runs with Events."""

    lasting: int = 0
    """The most members that the pool of lasting targets begins with; 0 without a pool."""


EXTENTS: Mapping[Size, _Extent] = {
    Size.TINY: _Extent(
        lasts=(2.0, 10.0),
        steps=(2, 7),
        faults=(0.3, 0.7),
        boards=(1, 1),
        pools=(0, 1),
        ceilings=(1, 1),
        boot=(0.5, 1.0),
        holds_max=5.0,
        durations=(5, 10, 30),
        events=0.1,
    ),
    Size.SMALL: _Extent(
        lasts=(5.0, 25.0),
        steps=(3, 12),
        faults=(0.2, 0.6),
        boards=(1, 1),
        pools=(1, 1),
        ceilings=(1, 2),
        boot=(0.5, 2.0),
        holds_max=8.0,
        events=0.3,
    ),
    Size.USUAL: _Extent(
        lasts=(15.0, 60.0),
        steps=(5, 40),
        faults=(0.1, 0.5),
        boards=(1, 3),
        pools=(1, 2),
        ceilings=(1, 4),
        events=0.5,
    ),
    Size.LARGE: _Extent(
        lasts=(1_000.0, 2_000.0),
        steps=(800, 1_600),
        faults=(0.01, 0.05),
        boards=(8, 12),
        pools=(0, 1),
        ceilings=(2, 4),
        real=0.9,
        dials=(0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
        holds_max=4.0,
        durations=(10, 30),
        events=0.02,
    ),
    Size.DENSE: _Extent(
        lasts=(1_000.0, 2_000.0),
        steps=(1_200, 2_400),
        leases=120,
        faults=(0.002, 0.02),
        boards=(12, 16),
        pools=(0, 1),
        ceilings=(1, 2),
        real=0.95,
        dials=(0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
        holds_max=1.0,
        durations=(3, 6),
        events=0.02,
    ),
    Size.LASTING: _Extent(
        lasts=(10.0, 60.0),
        steps=(5, 30),
        faults=(0.1, 0.5),
        boards=(1, 1),
        pools=(0, 0),
        ceilings=(1, 1),
        boot=(0.5, 2.0),
        real=0.2,
        holds_max=8.0,
        events=0.2,
        lasting=3,
    ),
    Size.CLAIMS: _Extent(
        lasts=(15.0, 60.0),
        steps=(5, 30),
        leases=12,
        claims=20,
        faults=(0.1, 0.5),
        boards=(2, 4),
        pools=(0, 2),
        ceilings=(1, 3),
        durations=(10, 30, 120),
        events=0.3,
    ),
    Size.EXTREMES: _Extent(
        lasts=(10.0, 40.0),
        steps=(5, 25),
        extremes=60,
        faults=(0.1, 0.4),
        boards=(1, 2),
        pools=(0, 1),
        ceilings=(1, 3),
        events=0.3,
    ),
}


def plan(seed: int, home: Home, size: Size = Size.USUAL) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"plan-{seed}-{home}-{size}")
    extent = EXTENTS[size]
    lasts = chance.uniform(*extent.lasts)
    router = chance.random() < 0.5
    return Plan(
        seed=seed,
        home=home,
        size=size,
        weather=_weather(chance, home),
        steps=(
            *_steps(chance, home, extent, lasts, router=router),
            *_added(ADDED, ADDED_NUMBER, random.Random(f"added-{seed}-{home}-{size}"), lasts),
            *_added(HANGS, HANGS_NUMBER, random.Random(f"hangs-{seed}-{home}-{size}"), lasts),
            *_added(
                ADDED_LASTING if extent.lasting else frozenset(),
                ADDED_LASTING_NUMBER,
                random.Random(f"lasting-{seed}-{home}-{size}"),
                lasts,
            ),
            *_added(
                ADDED_DISKS if extent.lasting else frozenset(),
                ADDED_DISKS_NUMBER,
                random.Random(f"disks-{seed}-{home}-{size}"),
                lasts,
            ),
        ),
        lasts=lasts,
        boards=chance.randint(*extent.boards),
        ceilings=tuple(
            chance.randint(*extent.ceilings) for _ in range(chance.randint(*extent.pools))
        ),
        boot=extent.boot,
        real=extent.real,
        dials=extent.dials,
        holds_max=extent.holds_max,
        durations=extent.durations,
        events=chance.random() < extent.events,
        router=router,
        lasting=chance.randint(1, extent.lasting) if extent.lasting else 0,
    )


def _weather(chance: random.Random, home: Home) -> Weather:
    def some(most: float) -> float:
        return chance.uniform(0, most) if chance.random() < 0.4 else 0.0

    lost, doubled, delay = some(0.05), some(0.1), some(0.5)
    failed, short = some(0.3), chance.random() < 0.3
    cluster = home is Home.CLUSTER
    return Weather(
        lost=lost,
        doubled=doubled,
        delay_max=max(0.005, delay),
        start_failed=failed,
        history=chance.randint(5, 100) if short else 50_000,
        refused=some(0.15) if cluster else 0.0,
        unanswered=some(0.1) if cluster else 0.0,
        broken=some(0.1) if cluster else 0.0,
        lag_max=some(1.0) if cluster else 0.0,
        stale=some(0.5) if cluster else 0.0,
        rewound=some(0.5) if cluster else 0.0,
    )


def _steps(
    chance: random.Random, home: Home, extent: _Extent, lasts: float, *, router: bool
) -> tuple[Step, ...]:
    foreign = ONLY_EMBEDDED if home is Home.CLUSTER else ONLY_CLUSTER
    absent = frozenset() if router else frozenset({Act.ROUTER_CRASH})
    if not extent.lasting:
        absent |= ONLY_LASTING
    added = ADDED | HANGS | ADDED_LASTING | ADDED_DISKS
    possible = [act for act in FAULTS if act not in foreign | absent | added]
    faults: dict[Act, float] = {
        act: chance.uniform(0.1, 2.0) for act in possible if chance.random() < 0.35
    }
    work = dict(LASTING_WORK) if extent.lasting else {**WORK, Act.LEASE: extent.leases}
    if extent.claims:
        work[Act.CLAIM] = extent.claims
    if extent.extremes:
        work[Act.EXTREME] = extent.extremes
    count = chance.randint(*extent.steps)
    share = chance.uniform(*extent.faults) if faults else 0.0
    found: list[tuple[float, Act, int]] = []
    for _ in range(count):
        weights = faults if chance.random() < share else work
        act = chance.choices(tuple(weights), tuple(weights.values()))[0]
        found.append((chance.uniform(0, lasts), act, chance.getrandbits(32)))
    found.sort()
    return tuple(
        Step(number=number, at=at, act=act, seed=seed)
        for number, (at, act, seed) in enumerate(found)
    )


def _added(
    acts: frozenset[Act], first: int, chance: random.Random, lasts: float
) -> tuple[Step, ...]:
    """Steps of the added acts, numbered from ``first``."""
    found = [
        (chance.uniform(0, lasts), act, chance.getrandbits(32))
        for act in sorted(acts)
        for _ in range(chance.choice((0, 0, 1, 2)))
    ]
    return tuple(
        Step(number=number, at=at, act=act, seed=seed)
        for number, (at, act, seed) in enumerate(sorted(found), start=first)
    )


ADDED_NUMBER = 1_000_000
HANGS_NUMBER = 3_000_000
ADDED_LASTING_NUMBER = 2_000_000
ADDED_DISKS_NUMBER = 4_000_000
