"""``bullpen schedule``: what a claim would get, and why not; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, assert_never

import click

from bullpen import errors
from bullpen.api.paths import Document
from bullpen.cli import manifests
from bullpen.cli.options import namespaced, output
from bullpen.cli.output import echo_document, table
from bullpen.cli.schedule_lab import TIME, Lab, live_objects, parse_duration, read_lab
from bullpen.cli.schedule_pods import Answered, answer_pods, funnel_rows
from bullpen.core.claims import k8srm
from bullpen.core.claims.allocator import Answer, Verdict
from bullpen.core.claims.claim_lab import (
    ClaimDecision,
    Hold,
    Preempted,
    PreemptedLease,
    Serve,
)
from bullpen.core.claims.claim_queue import WaitReason
from bullpen.core.claims.explanation import Explanation
from bullpen.core.claims.work import BUDGET
from bullpen.errors import BadRequest, Invalid, NotFound
from bullpen.kit import times
from bullpen.kit.clock import SystemClock

BUDGET_MAX = 10_000_000
BRIEF, FULL = "brief", "full"
DEVICES_MAX = 500
"""Devices of which --explain=full says what keeps them away."""

Away = Mapping[str, tuple[str, ...]]
"""By device, what keeps it from each alternative of a claim."""


class _Misuse(click.UsageError):
    exit_code = Answered.INVALID


class _Schedule(click.Group):
    """Exits with its own codes also for errors of the command line and of the service."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*args, **more)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from error
        except (BadRequest, Invalid, NotFound) as error:
            return _failed(error, Answered.INVALID)
        except errors.LabError as error:
            return _failed(error, Answered.UNAVAILABLE)


def _failed(error: errors.LabError, code: Answered) -> Answered:
    click.echo(f"bullpen: {error.message}", err=True)
    return code


F = TypeVar("F", bound=Callable[..., Any])


def _asking(function: F) -> F:
    """The options that say what is asked, of which lab."""
    for option in (
        click.option("--data", default=None, help="Data directory of the service to ask."),
        click.option("--at", default="", help="The time to answer for [default: now]."),
        click.option("--inventory", default="", help="A snapshot instead of the live lab."),
        click.option(
            "-f", "--filename", "paths", multiple=True, help="File with claims; may be repeated."
        ),
    ):
        function = option(function)
    return namespaced(function)


@click.group(cls=_Schedule, invoke_without_command=True)
@_asking
@click.option("--waited", default="0s", help="How long the claims have waited already.")
@click.option(
    "--queue",
    "queue",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[FILE]",
    help="Decide all claims of the lab together, as one queue, with those of FILE.",
)
@click.option(
    "--explain",
    "explained",
    is_flag=False,
    flag_value=BRIEF,
    default=None,
    type=click.Choice((BRIEF, FULL)),
    metavar="[full]",
    help="Show what the answer is based on; with full also what keeps each device away.",
)
@click.option("--live", is_flag=True, help="Read the lab from the service, as without --inventory.")
@click.option("--dry-run", is_flag=True, help="Change nothing, which is always so.")
@click.option(
    "--budget",
    type=click.IntRange(1, BUDGET_MAX),
    default=BUDGET,
    show_default=True,
    help="Combinations to try for each claim.",
)
@output("table", "json", "yaml")
@click.pass_context
def schedule(
    ctx: click.Context,
    paths: tuple[str, ...],
    inventory: str,
    at: str,
    data: str | None,
    namespace: str,
    waited: str,
    queue: str | None,
    explained: str | None,
    live: bool,
    dry_run: bool,
    budget: int,
    output: str,
) -> int | None:
    """Show which devices each claim in the files would get. Nothing is changed."""
    if ctx.invoked_subcommand is not None:
        return None
    if live and inventory:
        raise click.UsageError("--live and --inventory exclude each other")
    found = [document for _, document in manifests.documents((*paths, *([queue] if queue else ())))]
    if any(document.get("apiVersion") == k8srm.API_VERSION for document in found):
        more = [document for _, document in manifests.documents((inventory,) if inventory else ())]
        return answer_pods([*more, *found], budget=budget, form=output, explained=bool(explained))
    lab = read_lab(found, inventory, at, data, namespace)
    if queue is not None:
        return _answer_queue(lab, budget=budget, form=output)
    answers = [(claim, lab.explain(claim, parse_duration(waited), budget)) for claim in lab.claims]
    devices = lab.devices()[:DEVICES_MAX] if explained == FULL else ()
    away = [lab.why_not(claim, devices) if devices else {} for claim, _ in answers]
    if output == "table":
        for (claim, answer), whys in zip(answers, away, strict=True):
            click.echo(_text(claim.metadata.name, answer, whys, explained=bool(explained)))
    else:
        rows = [
            _row(claim.metadata.name, answer, whys, explained=bool(explained))
            for (claim, answer), whys in zip(answers, away, strict=True)
        ]
        echo_document({"time": times.text(lab.now), "claims": rows}, output)
    return max(_code(answer) for _, answer in answers)


@schedule.command()
@click.option("--data", default=None, help="Data directory of the service to ask.")
@namespaced
@output("yaml", "json")
def snapshot(data: str | None, namespace: str, output: str) -> None:
    """Print the lab as --inventory reads it."""
    items = live_objects(data, namespace)
    meta = {"annotations": {TIME: times.text(SystemClock().now().replace(microsecond=0))}}
    echo_document({"apiVersion": "v1", "kind": "List", "metadata": meta, "items": items}, output)


@schedule.command("why-not")
@click.argument("claim")
@click.argument("device")
@_asking
def why_not_command(
    claim: str,
    device: str,
    paths: tuple[str, ...],
    inventory: str,
    at: str,
    data: str | None,
    namespace: str,
) -> None:
    """Show which conditions of CLAIM keep DEVICE from it."""
    found = [document for _, document in manifests.documents(paths)]
    lab = read_lab(found, inventory, at, data, namespace)
    for known in lab.claims:
        if known.metadata.name == claim:
            for line in lab.why_not(known, (device,))[device]:
                click.echo(line)
            return
    raise BadRequest(f"no DeviceClaim {claim} is in the files that -f names")


def _code(found: Explanation) -> Answered:
    if found.answer.verdict is Verdict.SATISFIED:
        return Answered.LATER if found.booked else Answered.NOW
    if found.answer.verdict is Verdict.UNKNOWN:
        return Answered.UNKNOWN
    return Answered.LATER if found.possible else Answered.NEVER


def _summary(found: Explanation) -> str:
    code = _code(found)
    if code is Answered.LATER:
        return f"from {times.text(found.starts)}" if found.starts else "later"
    return {
        Answered.NOW: "now",
        Answered.UNKNOWN: "unknown: the work budget was used up",
    }.get(code, "never with this inventory")


def _text(name: str, found: Explanation, away: Away, *, explained: bool) -> str:
    lines = [f"{name}: {_summary(found)}"]
    if found.answer.members:
        lines.append(table(("request", "alternative", "device"), _members(found.answer)))
    lines += [f"  {reason}" for reason in found.reasons]
    if found.relaxation:
        lines.append(f"  it could be served {found.relaxation}")
    if explained:
        lines += [f"  {funnel}" for funnel in found.funnels]
        in_the_way = (*found.blockers, *found.kept)
        lines += [f"  in the way: {blocker}" for blocker in in_the_way]
        lines.append(f"  combinations tried: {found.answer.steps}")
    lines += [f"  {device}: {'; '.join(said)}" for device, said in away.items()]
    return "\n".join(lines)


def _members(answer: Answer) -> list[tuple[str, int, str]]:
    return [(member.request, member.alternative, member.device) for member in answer.members]


def _row(name: str, found: Explanation, away: Away, *, explained: bool) -> Document:
    row: Document = {
        "name": name,
        "verdict": found.answer.verdict.name.capitalize(),
        "possible": found.possible,
        "starts": times.text(found.starts) if found.starts else None,
        "members": [
            {"request": request, "alternative": number, "device": device}
            for request, number, device in _members(found.answer)
        ],
        "reasons": [str(reason) for reason in found.reasons],
        "relaxation": found.relaxation,
    }
    if explained:
        row["funnels"] = funnel_rows(found)
        row["blockers"] = [str(blocker) for blocker in (*found.blockers, *found.kept)]
        row["steps"] = found.answer.steps
    if away:
        row["devices"] = {device: list(said) for device, said in away.items()}
    return row


def _answer_queue(lab: Lab, *, budget: int, form: str) -> Answered:
    """Decide all claims in one pass, and print the decisions in the order of the queue."""
    decisions = lab.decide(budget)
    rows = [_decided(decision) for decision in decisions]
    headers = ("claim", "decision", "starts", "devices")
    if form == "table":
        click.echo(table(headers, [(*row[:3], ", ".join(row[3])) for row in rows]))
    else:
        echo_document([dict(zip(headers, row, strict=True)) for row in rows], form)
    return max(_queue_code(decision) for decision in decisions)


def _decided(decision: ClaimDecision) -> tuple[str, str, str, list[str]]:
    """The claim, what was decided, when it starts, and its devices; or who ends for whom."""
    match decision:
        case Serve(begin=begin):
            name, devices = decision.claim.metadata.name, list(decision.answer.devices)
            if begin is None:
                return name, "Start", "now", devices
            return name, "Book", times.text(begin), devices
        case Hold():
            starts = times.text(decision.starts) if decision.starts else ""
            return decision.claim.metadata.name, decision.reason, starts, list(decision.kept)
        case Preempted():
            return decision.claim.metadata.name, f"ends for {decision.by.claim}", "", []
        case PreemptedLease():
            return f"lease {decision.lease.metadata.name}", f"ends for {decision.by.claim}", "", []
        case _:
            assert_never(decision)


def _queue_code(decision: ClaimDecision) -> Answered:
    if not isinstance(decision, Hold):
        booked = isinstance(decision, Serve) and decision.begin is not None
        return Answered.LATER if booked else Answered.NOW
    if decision.reason == WaitReason.UNSATISFIABLE:
        return Answered.NEVER
    return Answered.UNKNOWN if decision.reason == WaitReason.UNKNOWN else Answered.LATER
