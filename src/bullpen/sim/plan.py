"""What happens in a run, worked out from its seed before anything starts.

Each step has a seed of its own, so that leaving one out changes no other: that is how a
failing run is made short. A seed enables only some kinds of faults, because a run with all
of them at once rarely gets far enough to be interesting.
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
    """A Kubernetes API elsewhere; the service is replaced while it still runs."""


class Act(StrEnum):
    """What a step does."""

    # People at work
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

    # What goes wrong
    CRASH = "crash"
    SUCCESSION = "succession"
    CUT_CLIENT = "cut-client"
    CUT_EXPORTER = "cut-exporter"
    CUT_ROUTER = "cut-router"
    CUT_API = "cut-api"
    SLOW_DISK = "slow-disk"
    STUCK_DISK = "stuck-disk"
    FULL_DISK = "full-disk"
    CLOCK = "clock"
    MACHINE_DIES = "machine-dies"
    BACKEND_AWAY = "backend-away"
    BACKEND_HANGS = "backend-hangs"
    BACKEND_REFUSES = "backend-refuses"
    EXPORTER_VANISHES = "exporter-vanishes"
    EXPORTER_FLAPS = "exporter-flaps"
    EXPORTER_TWICE = "exporter-twice"


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
"""How often each thing people do is done, against the others."""

FAULTS = tuple(act for act in Act if act not in WORK)
ONLY_CLUSTER = frozenset({Act.SUCCESSION, Act.CUT_API})
ONLY_EMBEDDED = frozenset({Act.SLOW_DISK, Act.STUCK_DISK, Act.FULL_DISK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What goes wrong a little all the time: chances between 0 and 1, times in seconds."""

    lost: float = 0.0
    """A message, either way, that never arrives."""

    doubled: float = 0.0
    """A call that arrives twice."""

    delay_max: float = 0.01
    refused: float = 0.0
    """A write that is said to be in conflict though it is not."""

    unanswered: float = 0.0
    """A write that is made, and whose writer is told that the API did not answer."""

    broken: float = 0.0
    """A watch that ends, each time it is read."""

    lag_max: float = 0.0
    """How far behind what is watched may be."""

    start_failed: float = 0.0
    history: int = 50_000
    """Changes that are kept; the fewer, the more often a watch must list again."""


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
    weather: Weather
    steps: tuple[Step, ...]
    lasts: float
    """Seconds until faults stop."""

    boards: int
    """Physical exporters."""

    ceilings: tuple[int, ...]
    """The most members of each set; the first is single-use."""

    boot: tuple[float, float] = (1.0, 4.0)
    events: bool = False
    """Whether Events are written too. Nothing depends on them, and they are most writes."""


CLOCK_JUMP_MAX = 20.0
"""Seconds by which a clock is set wrong at a time."""

LASTS = (15.0, 60.0)
STEPS_MAX = 40


def plan(seed: int, home: Home) -> Plan:
    """The run a seed stands for."""
    chance = random.Random(f"plan-{seed}-{home}")
    lasts = chance.uniform(*LASTS)
    return Plan(
        seed=seed,
        home=home,
        weather=_weather(chance, home),
        steps=_steps(chance, home, lasts),
        lasts=lasts,
        boards=chance.randint(1, 3),
        ceilings=tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 2))),
        events=chance.random() < 0.2,
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
    )


def _steps(chance: random.Random, home: Home, lasts: float) -> tuple[Step, ...]:
    foreign = ONLY_EMBEDDED if home is Home.CLUSTER else ONLY_CLUSTER
    possible = [act for act in FAULTS if act not in foreign]
    faults = {act: chance.uniform(0.1, 2.0) for act in possible if chance.random() < 0.35}
    count = chance.randint(5, STEPS_MAX)
    share = chance.uniform(0.1, 0.5) if faults else 0.0
    found: list[tuple[float, Act, int]] = []
    for _ in range(count):
        weights: Mapping[Act, float] = faults if chance.random() < share else WORK
        act = chance.choices(tuple(weights), tuple(weights.values()))[0]
        found.append((chance.uniform(0, lasts), act, chance.getrandbits(32)))
    found.sort()
    return tuple(
        Step(number=number, at=at, act=act, seed=seed)
        for number, (at, act, seed) in enumerate(found)
    )
