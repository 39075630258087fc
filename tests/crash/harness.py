"""The crash harness: round after round of harm to a lab of real processes.

    make crash ROUNDS=500 SEED=1

Each round lets clients work, harms something at a random moment, and then wants everything
back: every acknowledged lease where it was, no exporter with two, exporters and pools ready,
nothing left behind. The seed decides what is harmed and when; the rest is the machine's.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from crash_faults import DISK_FAULTS, FAULTS, Fault, Trouble
from crash_lab import READY_SECONDS_MAX, SETTLED_SECONDS_MAX, SHELF, CrashLab, crash_lab
from crash_traffic import Traffic, quiet
from crash_watch import LeaseWatch

from support.lab_helpers import Refusal
from support.real_service import eventually

WORK_SECONDS_MAX = 0.8
"""How long clients work before something happens."""

LONG_PAUSE_SHARE = 0.2
"""Of the pauses, how many take their whole time; the others are short, for the sake of rounds."""

SHORT_PAUSE_SECONDS = 3.0
JMP_EVERY = 25
"""Rounds after which the real ``jmp`` takes a board and switches it on; also after the last."""

LOOK_SECONDS = 0.1


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Summary:
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ready: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)

    def lines(self, lab: CrashLab, traffic: Traffic, watch: LeaseWatch) -> list[str]:
        account = traffic.account
        return [
            f"rounds      {self.rounds}",
            f"faults      {', '.join(f'{name} {n}' for name, n in sorted(self.faults.items()))}",
            f"leases      {account.acknowledged} acknowledged, {account.acquired} ready, "
            f"{account.dialled} dialled, {account.refused} calls refused or unanswered",
            f"watch       {watch.seen} changes seen and judged, {watch.resumes} resumptions, "
            f"{watch.relists} lists",
            f"ready after {_spread(self.ready)} (service started to service ready)",
            f"settled     {_spread(self.settled)} (end of the fault to everything back)",
            f"helped      {lab.helped} programs started again as a service manager would",
            "violations  0",
        ]


def run(
    root: Path,
    *,
    rounds: int,
    seed: int,
    pause_seconds: float,
    only: str = "",
    verbose: bool = False,
) -> list[str]:
    """That many rounds; the summary. Raises ``Violation`` or ``AssertionError``."""
    chance = random.Random(seed)
    summary = Summary()
    with crash_lab(root) as lab:
        every = {**FAULTS, **(DISK_FAULTS if lab.disk else {})}
        faults = {fault: weight for fault, weight in every.items() if only in fault.__name__}
        _settle(lab)
        watch, traffic = LeaseWatch(lab.lab), Traffic(lab.alice, seed)
        watch.start()
        traffic.start()
        try:
            for number, fault in enumerate(_chosen(faults, rounds, chance), 1):
                said = _round(lab, traffic, watch, fault, chance, pause_seconds, summary)
                if number % JMP_EVERY == 0 or number == rounds:
                    _jmp_works(lab)
                if verbose:
                    print(f"{number:5} {said}", flush=True)
        finally:
            quiet(traffic)
            watch.stop()
        return summary.lines(lab, traffic, watch)


def _chosen(faults: dict[Fault, int], rounds: int, chance: random.Random) -> list[Fault]:
    """Each once, in any order, then by their weights."""
    each = chance.sample([*faults], len(faults))
    return (each + chance.choices([*faults], [*faults.values()], k=rounds))[:rounds]


def _round(
    lab: CrashLab,
    traffic: Traffic,
    watch: LeaseWatch,
    fault: Fault,
    chance: random.Random,
    pause_seconds: float,
    summary: Summary,
) -> str:
    lab.zygote()
    traffic.resume()
    time.sleep(chance.random() * WORK_SECONDS_MAX)
    short = chance.random() > LONG_PAUSE_SHARE
    pause = min(pause_seconds, SHORT_PAUSE_SECONDS) if short else pause_seconds
    ready = fault(Trouble(lab=lab, chance=chance, pause_seconds=pause))
    begun = time.monotonic()
    lab.help()
    eventually(traffic.pause, seconds=SETTLED_SECONDS_MAX, what="the clients pausing")
    last = _settle(lab)
    settled = time.monotonic() - begun
    _judge(lab, traffic, watch)
    summary.rounds += 1
    summary.faults[fault.__name__] += 1
    summary.settled.append(settled)
    if ready:
        summary.ready.append(ready)
        if ready > READY_SECONDS_MAX:
            raise Violation(f"ready only after {ready:.1f} s")
    return f"{fault.__name__:24} ready {ready:4.1f} s  settled {settled:4.1f} s  {last}"


def _settle(lab: CrashLab) -> str:
    """Wait until everything is back; what came last."""
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    last = ""
    while missing := lab.settled():
        if time.monotonic() > deadline:
            raise Violation(f"not back after {SETTLED_SECONDS_MAX} s: {missing}\n{lab.tail()}")
        last = missing
        lab.help()
        time.sleep(LOOK_SECONDS)
    return last


def _judge(lab: CrashLab, traffic: Traffic, watch: LeaseWatch) -> None:
    account = traffic.account
    wrongs = [*watch.violations, *account.wrongs]
    if not watch.running:
        wrongs.append("the watch has ended")
    for name, exporter in account.held.items():
        wrongs += _lease_wrongs(lab, name, exporter)
    if wrongs:
        raise Violation("; ".join(wrongs))


def _lease_wrongs(lab: CrashLab, name: str, exporter: str) -> list[str]:
    """An acknowledged lease is there; on a board that still exists it also goes on."""
    try:
        status = lab.lab.get("leases", name)["status"]
    except Refusal as error:
        return [f"the acknowledged lease {name} is lost: {error}"]
    found = (status.get("exporterRef") or {}).get("name", "")
    if exporter and found != exporter:
        return [f"{name} was on {exporter} and is on {found or 'none'}"]
    if status.get("ended") and found in SHELF:
        return [f"{name} on {found} has ended by itself: {json.dumps(status)}"]
    return []


def _jmp_works(lab: CrashLab) -> None:
    done = lab.lab.jmp(lab.bob, "shell", "-l", "board=qemu", "--", "j", "power", "on", check=False)
    if done.returncode:
        raise Violation(f"jmp shell ended with {done.returncode}: {done.stdout}{done.stderr}")


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "never"
    ordered = sorted(seconds)
    middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    return f"p50 {middle:.1f} s, p95 {high:.1f} s, longest {ordered[-1]:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=30.0, help="seconds of a SIGSTOP, at most")
    parser.add_argument("--only", default="", help="faults with this in their name")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="crash-") as directory:
        try:
            lines = run(
                Path(directory),
                rounds=options.rounds,
                seed=options.seed,
                pause_seconds=options.pause,
                only=options.only,
                verbose=True,
            )
        except (Violation, AssertionError) as error:
            print(f"VIOLATION with seed {options.seed}: {error}", flush=True)
            return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
