"""Why a claim does not get one certain device: the first condition that keeps it away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator, Verdict
from bullpen.core.claims.claim import Alternative, Request, Terms
from bullpen.core.claims.claim_queue import Reservation
from bullpen.core.claims.funnel import Stage, stages
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.reasons import Blocker, Kept
from bullpen.kit.selectors import Operator, Requirement, Selector

_FREE = "it qualifies and is free"


def why_not(
    allocator: Allocator,
    terms: Terms,
    uses: Sequence[Use],
    device: str,
    *,
    allowed: int | None = None,
    reserved: Sequence[Reservation] = (),
) -> tuple[str, ...]:
    """For each alternative the first condition that keeps one device from it."""
    number = allocator.index.numbers.get(device)
    if number is None:
        return (f"there is no device {device}",)
    usable = allocator.index.everything if allowed is None else allowed
    booked = bitsets.union(r.devices for r in reserved)
    ledger = Ledger(allocator.index, uses)
    found = []
    for request in terms.requests:
        for alternative in request.alternatives:
            name = f"{request.name}/{alternative.name}" if alternative.name else request.name
            steps = stages(allocator, alternative, ledger, usable, booked)
            failed = next((stage for stage, left in steps if not left >> number & 1), None)
            if failed is Stage.UNRESERVED:
                said = _reservation(device, [r for r in reserved if r.devices >> number & 1])
            elif failed is None and "exporter" in allocator.index.devices[number].attributes:
                place = (request, alternative)
                said = _left_out(allocator, terms, place, device, ledger, usable & ~booked)
            else:
                said = _failure(allocator, alternative, number, failed, uses)
            found.append(f"{name}: {said}")
    return tuple(found)


def _reservation(device: str, reserved: Sequence[Reservation]) -> str:
    kept = (Kept(holder=r.claim, devices=(device,), begin=r.begin) for r in reserved)
    return "; ".join(map(str, kept))


def _left_out(
    allocator: Allocator,
    terms: Terms,
    place: tuple[Request, Alternative],
    exporter: str,
    ledger: Ledger,
    usable: int,
) -> str:
    """Why an exporter that qualifies and is free is not part of a complete set."""
    request, alternative = place
    if alternative.every or alternative.totals:
        return _FREE
    pinned = _with_exporter(terms, request, alternative, exporter)

    def serves(asked: Terms) -> bool:
        answer = allocator.allocate(asked, ledger, allowed=usable)
        return answer.verdict is not Verdict.UNSATISFIABLE

    if serves(pinned):
        return _FREE
    for number, constraint in enumerate(pinned.constraints):
        rest = (*pinned.constraints[:number], *pinned.constraints[number + 1 :])
        if not constraint.prefer and serves(replace(pinned, constraints=rest)):
            kind = "distinct" if constraint.distinct else "match"
            return f"with it, nothing keeps the {kind} constraint on {constraint.attribute}"
    return "it qualifies and is free, but the rest of the claim cannot be served"


def _with_exporter(
    terms: Terms, request: Request, alternative: Alternative, exporter: str
) -> Terms:
    """The claim with one exporter in an alternative of a request."""
    labels = alternative.criteria.labels
    only = Requirement("exporter", Operator.IN, (exporter,))
    named = replace(alternative.criteria, labels=Selector((*labels.requirements, only)))
    one = Request(
        name=f"{request.name} on {exporter}",
        alternatives=(replace(alternative, criteria=named, count=1, after=timedelta(0)),),
    )
    others = (replace(alternative, count=alternative.count - 1, after=timedelta(0)),)
    left = (replace(request, alternatives=others),) if alternative.count > 1 else ()
    place = terms.requests.index(request)
    requests = (*terms.requests[:place], *left, one, *terms.requests[place + 1 :])
    constraints = tuple(
        replace(c, requests=(*c.requests, one.name))
        if c.requests and c.covers(request, alternative)
        else c
        for c in terms.constraints
    )
    return Terms(requests=requests, constraints=constraints)


def _failure(
    allocator: Allocator,
    alternative: Alternative,
    number: int,
    failed: Stage | None,
    uses: Sequence[Use],
) -> str:
    device = allocator.index.devices[number]
    if failed is None:
        return _FREE
    if failed is Stage.CLASS:
        return f"it is not of class {alternative.device_class}"
    if failed is Stage.SELECTOR:
        own = allocator.criteria.of_criteria(alternative.criteria)
        error = " cannot be evaluated on it" if own.errors >> number & 1 else " does not match it"
        why = [expression.problem for expression in alternative.criteria.expressions]
        error += "".join(f": {problem}" for problem in why if problem)
        texts = [expression.text for expression in alternative.criteria.expressions]
        return f"the selector {' && '.join(texts) or alternative.criteria.labels}{error}"
    if failed is Stage.CAPACITY:
        asked = ", ".join(name for name, _ in alternative.capacity)
        return f"its capacity is too small: {asked}"
    if failed is Stage.ALLOWED:
        return "no policy allows it"
    if failed is Stage.ENABLED:
        return f"it is {device.blocked}"
    if failed is Stage.UNTAINTED:
        taints = ", ".join(f"{taint.key}:{taint.effect}" for taint in device.taints)
        return f"it is tainted: {taints}"
    holders = [use for use in uses if use.device == device.name]
    said = [str(Blocker(holder=u.holder, devices=(u.device,), until=u.until)) for u in holders]
    return "; ".join(said) or "it is in use"
