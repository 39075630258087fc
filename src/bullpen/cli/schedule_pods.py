"""``bullpen schedule`` for pods of the k8srm prototype: on which node, and why on no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import click

from bullpen.api.paths import Document
from bullpen.cli.output import echo_document, table
from bullpen.core.claims import k8srm
from bullpen.core.claims.allocator import Allocator, Verdict
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.explanation import Explanation
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.k8srm import NodeAnswer
from bullpen.errors import BadRequest
from bullpen.kit.clock import SystemClock


class Answered(IntEnum):
    """Exit codes of ``bullpen schedule``."""

    NOW = 0
    LATER = 2
    NEVER = 3
    UNKNOWN = 4
    INVALID = 64
    UNAVAILABLE = 69


_ASKING = ("DeviceClaim/", "Pod/")
_CODES = {
    Verdict.SATISFIED: Answered.NOW,
    Verdict.UNSATISFIABLE: Answered.NEVER,
    Verdict.UNKNOWN: Answered.UNKNOWN,
}
_HEADERS = ("claim", "node", "answer", "devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """The claim of a pod, or one that pods share."""

    name: str
    answer: NodeAnswer
    nodes: tuple[tuple[str, Explanation], ...]
    """Why each node cannot run it, or with --explain all of them."""

    @property
    def code(self) -> Answered:
        return _CODES[self.answer.answer.verdict]

    @property
    def row(self) -> tuple[str, str, str, list[str]]:
        devices = list(self.answer.answer.devices)
        return self.name, self.answer.node, self.code.name.lower(), devices


def answer_pods(documents: list[Document], *, budget: int, form: str, explained: bool) -> Answered:
    """Answer for the pods of the prototype's files, each on one node."""
    found = k8srm.read(documents)
    for finding in found.findings:
        click.echo(str(finding), err=True)
    if not found.claims:
        raise BadRequest("no DeviceClaim and no pod with device claims can be answered")
    index = InventoryIndex(found.inventory)
    allocator = Allocator(index, CriteriaIndex(index, found.classes))
    now = SystemClock().now()
    users = {claim: pod for pod, claim in found.pods.items()}
    pods = []
    for name in users or found.claims:
        terms = found.claims[name]
        answer = k8srm.on_nodes(allocator, terms, budget=budget)
        asked = explained or answer.answer.verdict is not Verdict.SATISFIED
        nodes = k8srm.explain_nodes(allocator, terms, now=now, budget=budget) if asked else ()
        pods.append(_Pod(name=name, answer=answer, nodes=tuple(nodes)))
    if form == "table":
        click.echo(
            table(_HEADERS, [(*row[:3], ", ".join(row[3])) for row in (p.row for p in pods)])
        )
        for pod in pods:
            for line in _lines(pod, explained=explained):
                click.echo(f"{pod.name}{line}")
    else:
        echo_document([_document(pod, explained=explained) for pod in pods], form)
    unanswered = [f for f in found.findings if f.refused and f.path.startswith(_ASKING)]
    worst = Answered.INVALID if unanswered else Answered.NOW
    return max(worst, *(pod.code for pod in pods))


def _lines(pod: _Pod, *, explained: bool) -> Iterator[str]:
    for node, found in pod.nodes:
        place = f" on {node}" if node else ""
        yield from (f"{place}: {reason}" for reason in found.reasons)
        if found.relaxation:
            yield f"{place}: it could be served {found.relaxation}"
        if explained:
            yield from (f"{place}: {funnel}" for funnel in found.funnels)


def _document(pod: _Pod, *, explained: bool) -> Document:
    row: Document = dict(zip(_HEADERS, pod.row, strict=True))
    if pod.nodes:
        row["nodes"] = [
            {
                "node": node,
                "reasons": [str(reason) for reason in found.reasons],
                "relaxation": found.relaxation,
                **({"funnels": funnel_rows(found)} if explained else {}),
            }
            for node, found in pod.nodes
        ]
    return row


def funnel_rows(found: Explanation) -> list[Document]:
    """The funnels of an explanation, as in JSON."""
    return [
        {
            "request": funnel.request,
            "alternative": funnel.alternative,
            "wanted": funnel.wanted,
            "left": {str(stage): count for stage, count in funnel.left},
            "errors": funnel.errors,
        }
        for funnel in found.funnels
    ]
