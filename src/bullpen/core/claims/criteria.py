"""Which devices a class or a selector means: sets of device numbers, computed once for each text.

A comparison is answered by the index. An expression that needs CEL is evaluated once for each
distinct description of a device, and only on the devices that the comparisons leave over. A
device on which an expression cannot be evaluated does not match, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bullpen.api.device_cel import Plain, Program, TooCostly, compile_program
from bullpen.api.device_selectors import Comparison, Expression, Presence, Term
from bullpen.core.claims import bitsets
from bullpen.core.claims.claim import EVERY_DEVICE, Criteria
from bullpen.core.claims.inventory import NANOS, Attribute, InventoryDevice, Version
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.work import SharedBudget, loop_budget
from bullpen.kit.selectors import EVERYTHING, Operator, Requirement, Selector

TOO_COSTLY_MAX = 8
"""Devices on which an expression may be too costly; then it is evaluated on no more of them.

Each of them takes almost two milliseconds.
"""


FEW_ITERATIONS = 200
"""An expression that cannot take more on a device is always evaluated on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDefinition:
    """A leaf class, whose criteria say which devices it has; or a group of leaf classes."""

    name: str
    criteria: Criteria = EVERY_DEVICE
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels by which groups select it."""

    classes: Selector | None = None
    """For a group, which leaf classes it has; its criteria narrow their devices."""


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that match, and those on which an expression could not be evaluated."""

    devices: int
    errors: int = 0


class CriteriaIndex:
    """The devices of classes and selectors on one inventory."""

    def __init__(
        self,
        index: InventoryIndex,
        classes: Iterable[ClassDefinition] = (),
        loops: SharedBudget | None = None,
    ) -> None:
        """``loops``: what expressions may take, here and elsewhere; without it, once as much."""
        self.classes = {item.name: item for item in classes}
        self._index = index
        self._expressions: dict[Expression, Found] = {}
        self._criteria: dict[Criteria, Found] = {}
        self._by_class: dict[str, Found] = {}
        self.evaluations = 0
        """How often a CEL expression was evaluated."""

        self._loops = loops or loop_budget()
        self._cut_short: set[str] = set()

    @property
    def cut_short(self) -> bool:
        """Whether an expression was not evaluated on every device, because all took too long.

        It matches none of the others, for now: a later pass tries again.
        """
        return bool(self._cut_short)

    def uncertain(self, class_name: str, criteria: Criteria) -> bool:
        """Whether more devices could match than were found, because evaluation was cut short."""
        return self.cut_short and any(
            expression.rest in self._cut_short
            for found in (criteria, *self._criteria_of(class_name))
            for expression in found.expressions
        )

    def never_evaluated(
        self, class_name: str, criteria: Criteria
    ) -> Iterator[tuple[Expression, str]]:
        """The expressions that could be evaluated on no device, and why as far as it is known."""
        found = (e for x in (*self._criteria_of(class_name), criteria) for e in x.expressions)
        for expression in dict.fromkeys(found):
            errors = self._expression(expression).errors
            if errors == self._index.everything and expression.rest not in self._cut_short:
                yield expression, expression.problem or self._missing(expression)

    def _missing(self, expression: Expression) -> str:
        """Which attributes that an expression compares no device has."""
        names = (term.attribute for term in expression.terms if isinstance(term, Comparison))
        absent = [name for name in dict.fromkeys(names) if not self._index.having(name)]
        return f"no device has {' and '.join(absent)}" if absent else ""

    def _criteria_of(self, class_name: str) -> Iterator[Criteria]:
        known = self.classes.get(class_name)
        if known is not None:
            yield known.criteria
            yield from (leaf.criteria for leaf in self._leaves(known))

    def _leaves(self, group: ClassDefinition) -> list[ClassDefinition]:
        selector = group.classes
        if selector is None:
            return []
        found = self.classes.values()
        return [leaf for leaf in found if leaf.classes is None and selector.matches(leaf.labels)]

    def of_class(self, name: str) -> Found:
        """The devices of a class; none if there is no such class."""
        if not name:
            return Found(self._index.everything)
        found = self._by_class.get(name)
        if found is None:
            found = self._by_class[name] = self._class(name)
        return found

    def of_criteria(self, criteria: Criteria) -> Found:
        """The devices for which all conditions hold."""
        found = self._criteria.get(criteria)
        if found is None:
            found = self._criteria[criteria] = self._all(criteria)
        return found

    def _class(self, name: str) -> Found:
        known = self.classes.get(name)
        if known is None:
            return Found(0)
        own = self.of_criteria(known.criteria)
        if known.classes is None:
            return own
        leaves = [self.of_criteria(leaf.criteria) for leaf in self._leaves(known)]
        devices = bitsets.union(leaf.devices for leaf in leaves) & own.devices
        return Found(devices, bitsets.union(x.errors for x in (own, *leaves)) & ~devices)

    def _all(self, criteria: Criteria) -> Found:
        devices, errors = self._labelled(criteria.labels), 0
        for expression in criteria.expressions:
            found = self._expression(expression)
            errors |= found.errors & devices
            devices &= found.devices
        return Found(devices, errors)

    def _labelled(self, labels: Selector) -> int:
        devices = self._index.everything
        for requirement in labels.requirements if labels is not EVERYTHING else ():
            devices &= self._required(requirement)
        return devices

    def _required(self, requirement: Requirement) -> int:
        """A label selector compares the text of scalars; a missing label is not in any list."""
        having = self._index.having(requirement.key)
        if requirement.operator is Operator.EXISTS:
            return having
        if requirement.operator is Operator.DOES_NOT_EXIST:
            return self._index.everything & ~having
        matching = bitsets.union(
            bits
            for (_, value), bits in self._index.values(requirement.key).items()
            if requirement.matches({requirement.key: str(value)})
        )
        if requirement.operator is Operator.NOT_IN:
            return matching | (self._index.everything & ~having)
        return matching

    def _expression(self, expression: Expression) -> Found:
        found = self._expressions.get(expression)
        if found is None and expression.problem:
            found = self._expressions[expression] = Found(0, self._index.everything)
        if found is None:
            devices, errors = self._index.everything, 0
            for term in expression.terms:
                missing = devices & ~self._index.having(term.attribute)
                errors |= missing if isinstance(term, Comparison) else 0
                devices &= self._term(term)
            if expression.rest and devices:
                evaluated = self._evaluated(expression.rest, devices)
                devices, errors = evaluated.devices, errors | evaluated.errors
            found = self._expressions[expression] = Found(devices, errors)
        return found

    def _evaluated(self, text: str, devices: int) -> Found:
        """Those of ``devices`` on which a CEL expression holds."""
        program = compile_program(text)
        holding = errors = costly = 0
        for device, alike in self._index.profiles:
            if not alike & devices:
                continue
            if costly == TOO_COSTLY_MAX or not self._affordable(text, program, device):
                errors |= alike
                continue
            self.evaluations += 1
            try:
                holds = program.holds(
                    {name: _plain(value) for name, value in device.facts.items()},
                    {name: _base_units(amount) for name, amount in device.capacity.items()},
                    driver=device.driver,
                )
            except TooCostly:
                holds, costly = None, costly + 1
            holding |= alike if holds else 0
            errors |= alike if holds is None else 0
        return Found(holding & devices, errors & devices)

    def _affordable(self, text: str, program: Program, device: InventoryDevice) -> bool:
        lists = (len(value) for value in device.facts.values() if isinstance(value, tuple))
        bound = program.iterations(max(lists, default=0)) if program.loops else 0
        if bound <= FEW_ITERATIONS or (text not in self._cut_short and self._loops.spend(bound)):
            return True
        self._cut_short.add(text)
        return False

    def _term(self, term: Term) -> int:
        if isinstance(term, Presence):
            return self._index.having(term.attribute)
        values = self._index.values(term.attribute)
        equal = bitsets.union(
            values.get((type(value).__name__, value), 0) for value in term.values
        ) & ~self._index.listing(term.attribute)
        return equal if term.equal else self._index.having(term.attribute) & ~equal


def _plain(attribute: Attribute) -> Plain:
    """An attribute as CEL sees it: versions are strings."""
    if isinstance(attribute, tuple):
        return [_plain(value) for value in attribute]
    return attribute.text if isinstance(attribute, Version) else attribute


def _base_units(amount: int) -> int | float:
    return amount // NANOS if amount % NANOS == 0 else amount / NANOS
