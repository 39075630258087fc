"""The simulator has no numbers of its own for what production decides.

A checker that leans on the simulator's own time-out proves that number, not the product's.
Every number here belongs to the published programs, to the faults, to the promises, or to a
run; a number of the service is imported from where production takes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bullpen.sim
from bullpen.cluster import transport
from bullpen.runtime import silence
from bullpen.sim import homes, network

SOURCE = Path(bullpen.sim.__file__).parent

PUBLISHED_PROGRAMS = {
    "clients.POLL": "jmp asks again for its lease",
    "clients.RETRY": "a client calls a service again that does not answer",
    "clients.DIALS_MAX": "jmp dials again",
    "clients.RELEASES_MAX": "a client releases again",
    "network.DEADLINE": "a caller waits for an answer that was lost",
    "players.RETRY": "jmp run opens a lost stream again",
    "players.STREAM_RETRIES_MAX": "jmp run gives up its process",
    "players.REPORT_RETRIES_MAX": "jmp run gives up a report",
    "players.NOTICE_SECONDS": "jmp run listens",
    "lasting_operator.REPLICAS_MAX": "members that an operator asks for",
    "operators.ATTEMPTS_MAX": "kubectl edit is tried again",
    "operators.PAUSE": "kubectl edit is tried again",
}
FAULTS = {
    "homes.STALE_MAX": "age of a stale list",
    "homes.CATCH_UP": "lag of a process that was cut off",
    "hangs.LOOK": "when a process that hung goes on",
    "homes.REWOUND_MAX": "repeated revisions of a watch",
    "lasting_storage.DONE": "a storage that fails",
    "lasting_storage.PATIENCE": "a storage that hangs",
    "machines.PATIENCE": "a backend that hangs",
    "machines.TAKES": "a backend that answers",
    "machines.LEFT_OUT": "a backend that lies",
    "story.TOKEN_LOOK": "when a board gets its new config",
    "story.STEPS_TO_CRASH_MAX": "when a process is killed",
    "story.CLOCK_JUMPS_MAX": "steps of the clock",
    "world.RESTART": "somebody restarts a dead process",
}
PROMISES = {
    "liveness.SETTLE_MAX": "everything left over is gone",
    "liveness.PROMISED": "a lease is served",
    "liveness.NOTICED_MAX": "a dead exporter is reported",
    "liveness.ENDED_MAX": "an overdue lease ends",
    "liveness.TIDY_MAX": "a pool that shrinks is done",
    "claim_liveness.SERVED_MAX": "a claim is served",
    "claim_liveness.RELEASED_MAX": "a released claim ends",
    "pool_liveness.SAID_MAX": "a pool without members says so",
    "liveness.COLLECTED_MAX": "a disk that is too old is gone",
    "pool_liveness.HEALED_MAX": "a pool has its members again",
    "world.KNOWN_LATE": "every process knows the durable state",
}
RUN = {
    "campaign.GC_THRESHOLDS": "garbage collection",
    "campaign.RUNS_MAX": "runs of one process",
    "claim_liveness.BOOKED_IN": "a claim that is booked",
    "claim_liveness.DEAR_COST": "a class that costs more than others",
    "claim_liveness.LOOK": "between two looks of a checker",
    "claim_liveness.ROUND": "leases of a stream",
    "claim_liveness.SHARE_ROUND": "leases that others have while a client waits for its share",
    "claim_liveness.SEAT_USED": "how long a licence is used",
    "claim_liveness.USED": "the use of a board that counts much",
    "claimants.ADMIN_EACH": "claims with admin access",
    "claimants.AFTER_MAX": "an alternative that opens later",
    "extremes.CHANGES": "fields that have an extreme value",
    "extremes.STAYS": "how long such an object stays",
    "schema_extremes.NUMBERS": "values of fields that are integers",
    "lasting_checkers.SAME_CLOCK": "two readings of one clock",
    "liveness.HELD": "a lease whose end is checked",
    "liveness.QUEUED": "clients that wait",
    "liveness.BOOKED_IN": "a lease that is booked",
    "liveness.LOOK": "between two looks of a checker",
    "plan.ADDED_LASTING_NUMBER": "the number of a step",
    "plan.ADDED_DISKS_NUMBER": "the number of a step",
    "plan.ADDED_NUMBER": "the number of a step",
    "plan.HANGS_NUMBER": "the number of a step",
    "pool_liveness.LOOK": "between two looks of a checker",
    "pool_liveness.REFUSES": "a backend that refuses",
    "run.READY": "before the first step",
    "trace.TAIL_MAX": "lines that are kept",
    "virtual_time.TURNS_MAX": "turns of the loop at one moment",
    "virtual_time.RESOLUTION": "resolution of virtual time",
    "virtual_time.CANCELLED_MAX": "cancelled timers",
    "watchers.PATIENCE": "a watcher that checks",
    "watchers.PATIENCE_CALM": "a watcher that checks",
    "world.PULSE": "between two looks at the processes",
    "world.PULSE_CALM": "between two looks at the processes",
}
KNOWN = PUBLISHED_PROGRAMS | FAULTS | PROMISES | RUN

WAITS = ("sleep", "timeout", "call_later")
STEP_SECONDS_MAX = 0.1
"""A literal wait up to this long looks again at a condition, and models nothing."""


def numbers(node: ast.expr) -> bool:
    """Whether an expression is made of numbers only."""
    if isinstance(node, ast.Tuple | ast.List):
        return bool(node.elts) and all(numbers(element) for element in node.elts)
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return all(numbers(c) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr))
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def constants(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        value = node.value
        targets: list[ast.expr] = [*node.targets] if isinstance(node, ast.Assign) else [node.target]
        if value is not None and numbers(value):
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (
                    f"{path.stem}.{name.id}" for name in names if isinstance(name, ast.Name)
                )


def test_every_number_of_the_simulator_is_known_not_to_be_one_of_the_service() -> None:
    found = {name for path in SOURCE.glob("*.py") for name in constants(path)}
    assert found == set(KNOWN), "import a number of the service; list any other one here"


def literal_waits(path: Path) -> Iterator[tuple[int, float]]:
    """The lines that wait for a literal number of seconds, and the number."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        first = node.args[0]
        if node.func.attr in WAITS and isinstance(first, ast.Constant):
            assert isinstance(first.value, int | float), f"{path.name}:{node.lineno}"
            yield node.lineno, first.value


def test_no_wait_of_the_simulator_hides_a_number() -> None:
    hidden = [
        f"{path.name}:{line}"
        for path in sorted(SOURCE.glob("*.py"))
        for line, seconds in literal_waits(path)
        if seconds > STEP_SECONDS_MAX
    ]
    assert not hidden


@pytest.mark.parametrize(
    ("model", "production", "name"),
    [
        (network, silence, "SILENCE_SECONDS_MAX"),
        (network, silence, "DETECTION_SECONDS_MAX"),
        (homes, transport, "REQUEST_SECONDS_MAX"),
        (homes, transport, "CONNECT_SECONDS_MAX"),
    ],
)
def test_the_network_of_the_simulator_has_the_timeouts_of_production(
    model: object, production: object, name: str
) -> None:
    assert vars(model)[name] is vars(production)[name]
