"""``bullpen schedule``: what a claim would get, and why not; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from bullpen import errors
from bullpen.api import codec, yaml
from bullpen.api.accesspolicy import ExporterAccessPolicy
from bullpen.api.client import Client
from bullpen.api.deviceclaim import DeviceClaim
from bullpen.api.deviceclass import DeviceClass
from bullpen.api.devicepool import DevicePool
from bullpen.api.exporter import Exporter
from bullpen.api.fields import Kind
from bullpen.api.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.cli import manifests
from bullpen.cli.connection import Api
from bullpen.cli.get import list_all
from bullpen.cli.options import default_data_directory, namespaced, output
from bullpen.cli.output import echo_document, table
from bullpen.core.claims import k8srm
from bullpen.core.claims.allocator import Allocator, Answer, Verdict
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.explanation import Explanation, explain, why_not
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.lab_inventory import (
    allowed_devices,
    class_definition,
    inventory_of,
    terms_of,
)
from bullpen.core.claims.work import BUDGET
from bullpen.core.leases.access import policies
from bullpen.errors import BadRequest, Invalid, NotFound
from bullpen.kit import durations, times
from bullpen.kit.clock import SystemClock

BUDGET_MAX = 10_000_000
TIME = "device.jumpstarter.dev/snapshot-time"
"""Annotation of a snapshot with the time at which it was taken."""

_PARTS: tuple[type[Kind], ...] = (
    Client,
    DeviceClass,
    DevicePool,
    Exporter,
    ExporterAccessPolicy,
    Lease,
)
"""What a snapshot holds."""


class Answered(IntEnum):
    """Exit codes of this command."""

    NOW = 0
    LATER = 2
    NEVER = 3
    UNKNOWN = 4
    INVALID = 64
    UNAVAILABLE = 69


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
@click.option("--explain", "explained", is_flag=True, help="Show what the answer is based on.")
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
    explained: bool,
    budget: int,
    output: str,
) -> int | None:
    """Show which devices each claim in the files would get. Nothing is changed."""
    if ctx.invoked_subcommand is not None:
        return None
    found = [document for _, document in manifests.documents(paths)]
    if any(document.get("apiVersion") == k8srm.API_VERSION for document in found):
        more = [document for _, document in manifests.documents((inventory,) if inventory else ())]
        return _answer_pods([*more, *found], budget=budget, form=output)
    lab = _lab(found, inventory, at, data, namespace)
    answers = [lab.explain(claim, _duration(waited), budget) for claim in lab.claims]
    rows = [
        _row(claim.metadata.name, answer, explained=explained)
        for claim, answer in zip(lab.claims, answers, strict=True)
    ]
    if output == "table":
        for claim, answer in zip(lab.claims, answers, strict=True):
            click.echo(_text(claim.metadata.name, answer, explained=explained))
    else:
        echo_document({"time": times.text(lab.now), "claims": rows}, output)
    return max(_code(answer) for answer in answers)


@schedule.command()
@click.option("--data", default=None, help="Data directory of the service to ask.")
@namespaced
@output("yaml", "json")
def snapshot(data: str | None, namespace: str, output: str) -> None:
    """Print the lab as --inventory reads it."""
    items = _live(data, namespace)
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
    lab = _lab(found, inventory, at, data, namespace)
    for known in lab.claims:
        if known.metadata.name == claim:
            terms, allowed = terms_of(known.spec), lab.allowed(known)
            for line in why_not(lab.allocator, terms, lab.uses, device, allowed=allowed):
                click.echo(line)
            return
    raise BadRequest(f"no DeviceClaim {claim} is in the files that -f names")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lab:
    """One namespace, and the claims to answer."""

    now: datetime
    allocator: Allocator
    uses: tuple[Use, ...]
    clients: tuple[Client, ...]
    exporters: tuple[Exporter, ...]
    policies: tuple[ExporterAccessPolicy, ...]
    claims: tuple[DeviceClaim, ...]

    def allowed(self, claim: DeviceClaim) -> int:
        wanted = claim.spec.client_ref.name
        labels = {client.metadata.name: client.metadata.labels for client in self.clients}
        return allowed_devices(
            self.allocator.index,
            policies(self.policies),
            client=labels.get(wanted),
            labels={e.metadata.name: e.metadata.labels for e in self.exporters},
            duration=claim.spec.duration,
        )

    def explain(self, claim: DeviceClaim, waited: timedelta, budget: int) -> Explanation:
        return explain(
            self.allocator,
            terms_of(claim.spec),
            self.uses,
            now=self.now,
            waited=waited,
            allowed=self.allowed(claim),
            budget=budget,
        )


def _lab(given: list[Document], inventory: str, at: str, data: str | None, namespace: str) -> _Lab:
    now = _time(at)
    if inventory:
        found = [document for _, document in manifests.documents((inventory,))]
        now = now or _snapshot_time(inventory)
    else:
        found = _live(data, namespace)
    documents = [_checked(document) for document in (*found, *given)]
    claims = _of(DeviceClaim, (document for document in documents[len(found) :]))
    if not claims:
        raise BadRequest("no DeviceClaim to answer; name a file that has one with -f")
    exporters = _of(Exporter, documents)
    lab = inventory_of(exporters, _of(Lease, documents), _of(DevicePool, documents))
    index = InventoryIndex(lab)
    classes = [class_definition(found) for found in _of(DeviceClass, documents)]
    return _Lab(
        now=now or SystemClock().now(),
        allocator=Allocator(index, CriteriaIndex(index, classes)),
        uses=lab.uses,
        clients=_of(Client, documents),
        exporters=exporters,
        policies=_of(ExporterAccessPolicy, documents),
        claims=claims,
    )


def _live(data: str | None, namespace: str) -> list[Document]:
    api = Api.from_data(Path(data) if data else default_data_directory())
    found: list[Document] = []
    for kind in _PARTS:
        resource = RESOURCES.of(kind)
        where = namespace if resource.namespaced else None
        meta = {"apiVersion": resource.api_version, "kind": resource.kind}
        found += ({**meta, **item} for item in list_all(api, resource, where))
    return found


def _checked(document: Document) -> Document:
    """The document with its defaults; raises ``Invalid`` with the paths of what is wrong."""
    resource = RESOURCES.of_kind(str(document.get("apiVersion")), str(document.get("kind")))
    if resource is None:
        kind, version = document.get("kind"), document.get("apiVersion")
        raise BadRequest(f"no kind {kind!r} in version {version!r} is known here")
    complete = resource.default(document)
    causes = resource.validate(complete)
    if causes:
        name = (document.get("metadata") or {}).get("name", "")
        said = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise Invalid(f"{resource.kind} {name} is invalid: {said}")
    return complete


K = TypeVar("K", bound=Kind)


def _of(kind: type[K], documents: Iterable[Document]) -> tuple[K, ...]:
    return tuple(
        codec.decode(kind, document)
        for document in documents
        if (document["apiVersion"], document["kind"]) == (kind.api_version, kind.kind)
    )


def _snapshot_time(path: str) -> datetime | None:
    """The time of a snapshot; None if the file is a plain list of objects."""
    if path == "-" or not Path(path).is_file():
        return None
    loaded = yaml.load_manifests(Path(path).read_bytes())
    meta = (loaded[0].get("metadata") or {}) if loaded and isinstance(loaded[0], dict) else {}
    return _time(str((meta.get("annotations") or {}).get(TIME, "")))


def _time(written: str) -> datetime | None:
    if not written:
        return None
    try:
        return times.parse(written)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _duration(written: str) -> timedelta:
    try:
        return durations.parse(written)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _code(found: Explanation) -> Answered:
    if found.answer.verdict is Verdict.SATISFIED:
        return Answered.NOW
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


def _text(name: str, found: Explanation, *, explained: bool) -> str:
    lines = [f"{name}: {_summary(found)}"]
    if found.answer.members:
        lines.append(table(("request", "alternative", "device"), _members(found.answer)))
    lines += [f"  {reason}" for reason in found.reasons]
    if found.relaxation:
        lines.append(f"  it could be served {found.relaxation}")
    if explained:
        lines += [f"  {funnel}" for funnel in found.funnels]
        lines += [f"  in the way: {blocker}" for blocker in found.blockers]
        lines.append(f"  combinations tried: {found.answer.steps}")
    return "\n".join(lines)


def _members(answer: Answer) -> list[tuple[str, int, str]]:
    return [(member.request, member.alternative, member.device) for member in answer.members]


def _row(name: str, found: Explanation, *, explained: bool) -> Document:
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
        row["funnels"] = [
            {
                "request": funnel.request,
                "alternative": funnel.alternative,
                "wanted": funnel.wanted,
                "left": {str(stage): count for stage, count in funnel.left},
                "errors": funnel.errors,
            }
            for funnel in found.funnels
        ]
        row["blockers"] = [str(blocker) for blocker in found.blockers]
        row["steps"] = found.answer.steps
    return row


_ASKING = ("DeviceClaim/", "Pod/")


def _answer_pods(documents: list[Document], *, budget: int, form: str) -> Answered:
    """Answer for the pods of the prototype's files, each on one node."""
    found = k8srm.read(documents)
    for finding in found.findings:
        click.echo(str(finding), err=True)
    if not found.claims:
        raise BadRequest("no DeviceClaim and no pod with device claims can be answered")
    index = InventoryIndex(found.inventory)
    allocator = Allocator(index, CriteriaIndex(index, found.classes))
    users = {claim: pod for pod, claim in found.pods.items()}
    rows = []
    unanswered = [f for f in found.findings if f.refused and f.path.startswith(_ASKING)]
    worst = Answered.INVALID if unanswered else Answered.NOW
    for name in users or found.claims:
        answer = k8srm.on_nodes(allocator, found.claims[name], budget=budget)
        code = {
            Verdict.SATISFIED: Answered.NOW,
            Verdict.UNSATISFIABLE: Answered.NEVER,
            Verdict.UNKNOWN: Answered.UNKNOWN,
        }[answer.answer.verdict]
        worst = max(worst, code)
        rows.append((name, answer.node, code.name.lower(), list(answer.answer.devices)))
    headers = ("claim", "node", "answer", "devices")
    if form == "table":
        click.echo(table(headers, [(*row[:3], ", ".join(row[3])) for row in rows]))
    else:
        echo_document([dict(zip(headers, row, strict=True)) for row in rows], form)
    return worst
