"""``kill -9`` at any moment loses nothing that was acknowledged, and halves nothing."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from store_child import LIMITS, WRITERS
from store_values import checksum

from bullpen.store.base import Change, Entry, Verb
from bullpen.store.sqlite import SqliteStore

ROUNDS = 100
SEED = 20_260_101
WRITING_SECONDS_MAX = 0.15
CHILD = Path(__file__).with_name("store_child.py")


@dataclass(frozen=True)
class Report:
    """One line of the child: who says that what happened."""

    revision: int
    key: str
    verb: str
    checksum: str


@dataclass
class Survivor:
    """What the database must hold after the next kill, learned from the kills before."""

    path: Path
    revision: int = 0
    state: dict[str, Entry] = field(default_factory=dict)

    async def check(self, acknowledged: list[Report], seen: list[Report], copy: Path) -> None:
        store = await SqliteStore.open(copy, limits=LIMITS)
        try:
            changes = await _changes(store, self.revision)
            entries = {entry.key: entry for entry in store.scan("").entries}
        finally:
            await store.close()
        for change in changes:
            self._apply(change)
        assert entries == self.state
        reports = [_report(change) for change in changes]
        assert seen == reports[: len(seen)], "the watcher saw each change once and in order"
        assert {*acknowledged} <= {*reports}, "an acknowledged write is missing"
        assert len(reports) - len(acknowledged) <= WRITERS, "more was written than was asked for"

    def _apply(self, change: Change) -> None:
        """The change follows on the state before it, and on nothing else."""
        before = self.state.pop(change.key, None)
        assert change.revision == self.revision + 1
        assert change.previous == (before.value if before else None)
        assert (change.verb is Verb.CREATED) is (before is None)
        if change.verb is not Verb.DELETED:
            self.state[change.key] = Entry(change.key, change.value, change.revision)
        self.revision = change.revision


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_killed_store_keeps_what_it_acknowledged_and_nothing_halfway(
    tmp_path: Path,
) -> None:
    rng = random.Random(SEED)
    survivor = Survivor(tmp_path / "store.db")
    for number in range(ROUNDS):
        print(f"seed {SEED} round {number} from revision {survivor.revision}")
        acknowledged, seen = _kill_a_child(survivor, rng)
        # Every other time the next child gets the files as the kill left them.
        copy = _copy(survivor.path, tmp_path / "copy") if number % 2 else survivor.path
        if copy.exists():
            await survivor.check(acknowledged, seen, copy)
    assert survivor.revision > ROUNDS * 10
    assert survivor.revision > LIMITS.history_count_max, "history was never cleared out"


def _kill_a_child(survivor: Survivor, rng: random.Random) -> tuple[list[Report], list[Report]]:
    arguments = [survivor.path, survivor.revision, rng.getrandbits(30)]
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if rng.random() < 0.9:
            assert child.stdout.readline() == b"ready\n"
        # Otherwise it may be hit while it opens, recovers or creates the file.
        time.sleep(rng.uniform(0, WRITING_SECONDS_MAX))
        child.kill()
        output = child.stdout.read()
    whole = output[: output.rfind(b"\n") + 1].decode().splitlines()
    return _reports(whole, "ack"), _reports(whole, "saw")


def _reports(lines: list[str], what: str) -> list[Report]:
    words = [line.split() for line in lines if line.startswith(what)]
    return [Report(int(revision), key, verb, seal) for _, revision, key, verb, seal in words]


def _report(change: Change) -> Report:
    seal = checksum(change.key, change.revision, change.value)
    return Report(change.revision, change.key, change.verb.value, seal)


def _copy(path: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, directory)
    return directory / path.name


async def _changes(store: SqliteStore, since: int) -> list[Change]:
    changes: list[Change] = []
    watch = store.watch("", since=since)
    while watch.position < store.revision:
        changes += await watch.next()
    return changes
