"""Files of the k8srm prototype (``devmgmtproto.k8s.io/v1alpha1``) as claims on an inventory.

The prototype's own files do not follow its own types everywhere. Each deviation is either
normalised or refused, and either way reported with its path. A refused object is left out;
the others stay usable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from bullpen.api.device_cel import checked_expression
from bullpen.api.metadata_checks import selector_in
from bullpen.api.paths import Document
from bullpen.core.claims.allocator import Allocator, Answer, Verdict
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.criteria import ClassDefinition
from bullpen.core.claims.explanation import Explanation, explain
from bullpen.core.claims.inventory import (
    Attribute,
    Inventory,
    InventoryDevice,
    Version,
    amount,
    amounts,
)
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.work import BUDGET, PassBudget
from bullpen.errors import BadRequest
from bullpen.kit import quantities

API_VERSION = "devmgmtproto.k8s.io/v1alpha1"
NODE = "node"
"""Attribute with the node of a device; devices in the network have none."""

NODES_MAX = 20
"""Nodes for which a pod that runs on none is given the reasons."""

_DETAIL = frozenset(
    {"class", "constraints", "requests", "maxDevices", "matchAttributes", "configs"}
)
_ENTRY = frozenset({"name", "allOf", "oneOf"})
_COMPARED = re.compile(r"(device\.([A-Za-z_]\w*)\s*(?:==|!=|<=|>=|<|>)\s*)('[^']*'|\"[^\"]*\")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place that does not follow the types, and what was done about it."""

    path: str
    message: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {'refused' if self.refused else 'normalised'}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prototype:
    """What a set of files describes."""

    inventory: Inventory
    classes: tuple[ClassDefinition, ...]
    claims: Mapping[str, Terms]
    """By name: DeviceClaims, and the inline claims of pods as ``pod/NAME``."""

    pods: Mapping[str, str]
    """For each pod the name of its claim; pods with the same claim share its devices."""

    findings: tuple[Finding, ...]


def read(documents: Iterable[Document]) -> Prototype:
    """Read files; the order of the documents decides between equally good devices."""
    return _Reader().read(list(documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """The node that a pod would run on, and its devices."""

    node: str
    """Empty if no node does."""

    answer: Answer


def on_nodes(allocator: Allocator, terms: Terms, *, budget: int = BUDGET) -> NodeAnswer:
    """The best node for a pod: all its devices are on it, or in the network.

    The node where the earliest alternatives fit wins, then the first by name.
    """
    index = allocator.index
    best: NodeAnswer | None = None
    unknown = False
    for node, usable in _nodes(index):
        answer = allocator.allocate(terms, Ledger(index), allowed=usable, budget=budget)
        unknown |= answer.verdict is Verdict.UNKNOWN
        if answer.verdict is Verdict.SATISFIED and (
            best is None or _choices(answer) < _choices(best.answer)
        ):
            best = NodeAnswer(node=node, answer=answer)
    if best is not None:
        return best
    verdict = Verdict.UNKNOWN if unknown else Verdict.UNSATISFIABLE
    return NodeAnswer(node="", answer=Answer(verdict=verdict))


def explain_nodes(
    allocator: Allocator, terms: Terms, *, now: datetime, budget: int = BUDGET
) -> Iterator[tuple[str, Explanation]]:
    """For each node the answer to a pod, and why it cannot run there."""
    for node, usable in islice(_nodes(allocator.index), NODES_MAX):
        tried = PassBudget(budget)
        yield node, explain(allocator, terms, (), now=now, allowed=usable, budget=tried)


def _nodes(index: InventoryIndex) -> Iterator[tuple[str, int]]:
    """Each node with the devices that a pod can have there; one without a name if there is none."""
    unbound = index.everything & ~index.having(NODE)
    by_value = index.values(NODE)
    for value in sorted(by_value, key=str) or [("str", "")]:
        yield str(value[1]), unbound | by_value.get(value, 0)


def _choices(answer: Answer) -> list[int]:
    return list(answer.alternatives.values())


class _Refusal(Exception):
    """An object that cannot be used, at a path below it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.path, self.message = path, message


@dataclass
class _Reader:
    findings: list[Finding] = field(default_factory=list)
    devices: list[InventoryDevice] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    quantified: set[str] = field(default_factory=set)
    """Attributes that are quantities in some pool."""

    def read(self, documents: list[Document]) -> Prototype:
        ours = [d for d in documents if d.get("apiVersion") == API_VERSION]
        for document in ours:
            if document.get("kind") == "DevicePool":
                self._guarded(document, self._pool)
        classes = [
            self._guarded(document, self._class)
            for document in ours
            if document.get("kind") == "DeviceClass"
        ]
        claims: dict[str, Terms] = {}
        for document in ours:
            if document.get("kind") == "DeviceClaim":
                terms = self._guarded(document, self._claim)
                if terms is not None:
                    claims[_name(document)] = terms
        pods: dict[str, str] = {}
        for document in documents:
            if document.get("kind") == "Pod" and "deviceClaims" in document.get("spec", {}):
                self._guarded(document, lambda pod, at: self._pod(pod, at, claims, pods))
        return Prototype(
            inventory=Inventory(devices=tuple(self.devices), counters=self.counters),
            classes=tuple(found for found in classes if found is not None),
            claims=claims,
            pods=pods,
            findings=tuple(self.findings),
        )

    def _guarded(self, document: Document, read: Callable[[Document, str], Any]) -> Any:
        """What ``read`` returns; None if it refuses the object."""
        place = f"{document.get('kind')}/{_name(document)}"
        try:
            return read(document, place)
        except _Refusal as refusal:
            where = f"{place}.{refusal.path}"
            self.findings.append(Finding(path=where, message=refusal.message, refused=True))
            return None

    def _note(self, path: str, message: str) -> None:
        self.findings.append(Finding(path=path, message=message))

    def _pool(self, document: Document, at: str) -> None:
        spec, name = document.get("spec", {}), _name(document)
        common = self._attributes(spec.get("attributes", ()), "spec.attributes")
        totals = self._listed(spec.get("sharedResources", ()), f"{at}.spec.sharedResources")
        node = spec.get("nodeName", "")
        found = []
        for number, device in enumerate(spec.get("devices", ())):
            path = f"spec.devices[{number}]"
            consumed = device.get("sharedResourcesConsumed", {})
            drawn = self._mapped(consumed, f"{at}.{path}.sharedResourcesConsumed")
            for counter in drawn:
                if counter not in totals:
                    known = ", ".join(sorted(totals)) or "none"
                    raise _Refusal(
                        f"{path}.sharedResourcesConsumed[{counter}]",
                        f"the pool does not publish this shared resource; it has {known}",
                    )
            provided = device.get("claimResourcesProvided", ())
            own = self._attributes(device.get("attributes", ()), f"{path}.attributes")
            found.append(
                InventoryDevice(
                    name=f"{name}/{device['name']}",
                    pool=name,
                    driver=spec.get("driver", ""),
                    attributes={**({NODE: node} if node else {}), **common, **own},
                    capacity=self._listed(provided, f"{at}.{path}.claimResourcesProvided"),
                    draws=amounts({f"{name}/{c}": _amount(v, path) for c, v in drawn.items()}),
                    position=len(self.devices) + number,
                )
            )
        if node and not f"{name}-".startswith(f"{node}-"):
            self._note(f"{at}.spec.nodeName", f"the pool's name does not begin with {node}-")
        self.devices += found
        self.counters |= {f"{name}/{counter}": total for counter, total in totals.items()}

    def _attributes(self, listed: Sequence[Document], path: str) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        for number, item in enumerate(listed):
            name = item.get("name", "")
            if "quantityValue" in item:
                self.quantified.add(name)
                found[name] = _parsed(item["quantityValue"], f"{path}[{number}]").whole()
            elif "semVerValue" in item:
                found[name] = Version(str(item["semVerValue"]))
            elif "intValue" in item:
                found[name] = int(item["intValue"])
            elif "stringValue" in item:
                found[name] = str(item["stringValue"])
            else:
                raise _Refusal(f"{path}[{number}]", "the attribute has no value")
        return found

    def _listed(self, written: Any, path: str) -> dict[str, int]:
        """Resources with their capacity; a map is normalised to the list that the type has."""
        if isinstance(written, Mapping):
            if written:
                self._note(path, "a map is read as a list of names and capacities")
            written = [{"name": name, "capacity": value} for name, value in written.items()]
        return {item["name"]: _amount(item["capacity"], path) for item in written}

    def _mapped(self, written: Any, path: str) -> Mapping[str, int | str]:
        """Amounts by resource; a list is normalised to the map that the type has."""
        if isinstance(written, Mapping):
            return written
        self._note(path, "a list is read as a map of names and capacities")
        return {item["name"]: item["capacity"] for item in written}

    def _class(self, document: Document, at: str) -> ClassDefinition:
        spec = document.get("spec", {})
        labels = document.get("metadata", {}).get("labels", {})
        if "selector" in spec:
            selector = selector_in(spec["selector"])
            if selector is None:
                raise _Refusal("spec.selector", "the label selector is invalid")
            return ClassDefinition(name=_name(document), labels=labels, classes=selector)
        definition, path = spec.get("definition"), "spec.definition"
        if definition is None:
            definition, path = spec, "spec"
            if "driver" in spec:
                self._note(f"{at}.spec", "driver and constraints belong under spec.definition")
        if not definition.get("driver"):
            raise _Refusal("spec", "the class has neither a driver nor a selector")
        texts = [f'device.driver == "{definition["driver"]}"']
        texts += [definition["constraints"]] if definition.get("constraints") else []
        criteria = self._criteria(texts, f"{at}.{path}.constraints", f"{path}.constraints")
        return ClassDefinition(name=_name(document), labels=labels, criteria=criteria)

    def _criteria(self, texts: Sequence[str], at: str, path: str) -> Criteria:
        try:
            found = [checked_expression(self._typed(text, at)) for text in texts]
        except BadRequest as error:
            raise _Refusal(path, error.message) from error
        return Criteria(expressions=tuple(found))

    def _typed(self, text: str, at: str) -> str:
        """Compare quantities with quantities: the files compare them with strings."""

        def quantified(match: re.Match[str]) -> str:
            if match[2] not in self.quantified:
                return match[0]
            self._note(at, f"{match[2]} is a quantity, so {match[3]} is read as one")
            return f"{match[1]}quantity({match[3]})"

        return _COMPARED.sub(quantified, text)

    def _claim(self, document: Document, at: str) -> Terms:
        spec = document.get("spec", {})
        return self._terms(spec.get("devices", ()), spec.get("matchAttributes", ()), at)

    def _terms(self, entries: Sequence[Document], match: Sequence[str], at: str) -> Terms:
        requests: list[Request] = []
        constraints = [Constraint(attribute=attribute) for attribute in match]
        for number, written in enumerate(entries):
            path = f"spec.devices[{number}]"
            entry = self._entry(written, path, at)
            name = entry.get("name", f"device-{number}")
            every, either = entry.get("allOf", ()), entry.get("oneOf", ())
            for place, detail in enumerate(every):
                own = name if len(every) == 1 and not either else f"{name}-{place}"
                where = f"{path}.allOf[{place}]"
                alternative, limits = self._detail(detail, own, own, where, at)
                requests.append(Request(name=own, alternatives=(alternative,)))
                constraints += limits
            alternatives = []
            for place, detail in enumerate(either):
                where, choice = f"{path}.oneOf[{place}]", f"choice-{place}"
                found, limits = self._detail(detail, choice, f"{name}/{choice}", where, at)
                alternatives.append(replace(found, name=choice))
                constraints += limits
            if alternatives:
                requests.append(Request(name=name, alternatives=tuple(alternatives)))
        return Terms(requests=tuple(requests), constraints=tuple(constraints))

    def _entry(self, entry: Document, path: str, at: str) -> Document:
        if "class" in entry:
            self._note(f"{at}.{path}.class", "the class belongs under allOf or oneOf")
            detail = {key: value for key, value in entry.items() if key != "name"}
            return {"name": entry.get("name", ""), "allOf": [detail]}
        _refuse_unknown(entry, _ENTRY, path)
        if not entry.get("allOf") and not entry.get("oneOf"):
            raise _Refusal(path, "the entry has neither allOf nor oneOf")
        return entry

    def _detail(
        self, written: Document, name: str, covered: str, path: str, at: str
    ) -> tuple[Alternative, list[Constraint]]:
        """One detail, and the constraints on the devices chosen for it."""
        detail = dict(written)
        asked = dict(detail.get("requests", {}))
        if "devices" in detail:
            self._note(f"{at}.{path}.devices", "the number of devices belongs under requests")
            asked["devices"] = detail.pop("devices")
        if "config" in detail:
            self._note(f"{at}.{path}.config", "read as configs")
            detail["configs"] = detail.pop("config")
        if "allowShared" in detail:
            self._note(f"{at}.{path}.allowShared", "a device is shared if it allows sharing")
            del detail["allowShared"]
        distinct = detail.pop("distinctAttributes", ())
        if distinct:
            self._note(f"{at}.{path}.distinctAttributes", "read as distinct constraints")
        if detail.pop("adminAccess", False):
            raise _Refusal(f"{path}.adminAccess", "administrative access is a permission here")
        _refuse_unknown(detail, _DETAIL, path)
        if not detail.get("class"):
            raise _Refusal(f"{path}.class", "the class is required")
        texts = [detail["constraints"]] if detail.get("constraints") else []
        where = f"{path}.constraints"
        count = _parsed(asked.pop("devices", 1), f"{path}.requests[devices]").whole()
        amounts_asked = amounts({k: _amount(v, f"{path}.requests[{k}]") for k, v in asked.items()})
        most = detail.get("maxDevices", count)
        alternative = Alternative(
            name=name,
            device_class=detail["class"],
            criteria=self._criteria(texts, f"{at}.{where}", where),
            count=count,
            capacity=amounts_asked if most == 1 else (),
            totals=amounts_asked if most != 1 else (),
            count_max=most,
        )
        limits = [
            Constraint(attribute=attribute, distinct=differ, requests=(covered,))
            for differ, listed in ((False, detail.get("matchAttributes", ())), (True, distinct))
            for attribute in listed
        ]
        return alternative, limits

    def _pod(self, pod: Document, at: str, claims: dict[str, Terms], pods: dict[str, str]) -> None:
        wanted = pod["spec"]["deviceClaims"]
        if "devices" in wanted:
            entries = [
                {"name": e["name"], "allOf": [{"class": e["class"]}]} for e in wanted["devices"]
            ]
            name = f"pod/{_name(pod)}"
            claims[name] = self._terms(entries, (), at)
            pods[_name(pod)] = name
            return
        template = wanted.get("template", {}).get("claimName")
        name = template or wanted.get("claimName", "")
        if name not in claims:
            raise _Refusal("spec.deviceClaims", f"there is no usable DeviceClaim {name!r}")
        if template:
            name = f"pod/{_name(pod)}"
            claims[name] = claims[template]
        pods[_name(pod)] = name


def _name(document: Document) -> str:
    return str(document.get("metadata", {}).get("name", ""))


def _refuse_unknown(written: Mapping[str, object], known: frozenset[str], path: str) -> None:
    for key in written:
        if key not in known:
            raise _Refusal(f"{path}.{key}", f"unknown field; known are {', '.join(sorted(known))}")


def _parsed(written: int | str, path: str) -> quantities.Quantity:
    try:
        return quantities.parse(written)
    except ValueError as error:
        raise _Refusal(path, str(error)) from error


def _amount(written: int | str, path: str) -> int:
    return amount(_parsed(written, path))
