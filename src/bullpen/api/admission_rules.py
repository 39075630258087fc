"""The checks of our kinds in CEL, for clusters.

The schema and its CEL rules are part of the CustomResourceDefinition. Other checks are Python
in the embedded API server (``Resource.checks``), which no cluster runs: there, the same checks
are ValidatingAdmissionPolicies, whose expressions may cost more than those of a definition.
``tests/contract/test_both_homes_refuse.py`` sends every invalid manifest to both.

An expression is built as text. Values that may be absent are guarded with ``has``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bullpen.api.metadata_checks import ANNOTATIONS_BYTES_MAX
from bullpen.kit import durations
from bullpen.kit.names import (
    DNS_LABEL_LENGTH_MAX,
    DNS_SUBDOMAIN_LENGTH_MAX,
    LABEL_NAME_LENGTH_MAX,
)
from bullpen.kit.selectors import REQUIREMENTS_MAX

Clause = Callable[[str], str]
"""The expression that must hold for the value that another expression names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """An expression over ``object`` and ``oldObject`` that is true of valid objects."""

    expression: str
    message: str
    """Begins with the path of the field, as the causes of a refusal do."""


_LABEL = f"[a-z0-9]([-a-z0-9]{{0,{DNS_LABEL_LENGTH_MAX - 2}}}[a-z0-9])?"
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = f"[A-Za-z0-9]([-A-Za-z0-9_.]{{0,{LABEL_NAME_LENGTH_MAX - 2}}}[A-Za-z0-9])?"
_KEY = rf"({_PART}(\\.{_PART})*/)?{_NAME}"
_GO_DURATION = r"[-+]?(0|(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)"


def all_of(*conditions: str) -> str:
    return " && ".join(f"({condition})" for condition in conditions)


def each(path: str, condition: Clause, *, start: str = "object") -> str:
    """``condition`` holds for everything at ``path``, in which ``*`` is each item of a list."""
    return _each(start, path.split("."), condition, 0)


def _each(value: str, steps: list[str], condition: Clause, depth: int) -> str:
    if not steps:
        return condition(value)
    step, rest = steps[0], steps[1:]
    if step == "*":
        item = f"i{depth}"
        return f"{value}.all({item}, {_each(item, rest, condition, depth + 1)})"
    inner = _each(f"{value}.{step}", rest, condition, depth)
    return f"(!has({value}.{step}) || {inner})"


def is_label(text: str) -> str:
    """``text`` is an RFC 1123 label."""
    return f"{text}.matches('^{_LABEL}$')"


def is_key(text: str) -> str:
    """``text`` is a qualified name, such as the key of a label."""
    prefix = f"(!{text}.contains('/') || {text}.indexOf('/') <= {DNS_SUBDOMAIN_LENGTH_MAX})"
    return f"{text}.matches('^{_KEY}$') && {prefix}"


def is_label_value(text: str) -> str:
    return f"{text}.matches('^({_NAME})?$')"


def are_labels(labels: str) -> str:
    return f"{labels}.all(k, {is_key('k')} && {is_label_value(f'{labels}[k]')})"


def are_annotations(annotations: str, *, bytes_max: int) -> str:
    """The keys are valid and all of it is no larger than ``bytes_max``."""
    size = f"{annotations}.map(k, size(bytes(k)) + size(bytes({annotations}[k]))).sum()"
    keys = f"{annotations}.all(k, {is_key('k.lowerAscii()')})"
    return f"{keys} && {size} <= {bytes_max}"


def is_selector(selector: str) -> str:
    """``selector`` is a valid label selector."""
    labels, expressions = f"{selector}.matchLabels", f"{selector}.matchExpressions"
    listed = "(has(e.values) && size(e.values) > 0 && e.values.all(v, " + is_label_value("v") + "))"
    requirement = (
        f"{is_key('e.key')} && (e.operator in ['In', 'NotIn'] ? {listed} :"
        " e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))"
    )
    count = (
        f"(has({labels}) ? size({labels}) : 0) + (has({expressions}) ? size({expressions}) : 0)"
        f" <= {REQUIREMENTS_MAX}"
    )
    return all_of(
        count,
        f"!has({labels}) || {are_labels(labels)}",
        f"!has({expressions}) || {expressions}.all(e, {requirement})",
    )


def selects(selector: str, present: Clause, value: Clause) -> str:
    """The labels satisfy ``selector``; ``present`` and ``value`` are those of a key."""
    labels, expressions = f"{selector}.matchLabels", f"{selector}.matchExpressions"
    one_of = f"{present('e.key')} && {value('e.key')} in e.values"
    requirement = (
        f"e.operator == 'In' ? ({one_of}) : e.operator == 'NotIn' ? !({one_of}) :"
        f" ({present('e.key')}) == (e.operator == 'Exists')"
    )
    equal = f"({present('k')}) && {value('k')} == {labels}[k]"
    return all_of(
        f"!has({labels}) || {labels}.all(k, {equal})",
        f"!has({expressions}) || {expressions}.all(e, {requirement})",
    )


def is_duration(text: str) -> str:
    """``text`` is a duration as Go writes it; Kubernetes' format accepts more."""
    short = f"size({text}) <= {durations.TEXT_LENGTH_MAX}"
    return f"{short} && {text}.matches('^{_GO_DURATION}$')"


def lasts(text: str, comparison: str) -> str:
    """The duration ``text`` compares so, such as ``> duration('0s')``."""
    return f"{is_duration(text)} && duration({text}) {comparison}"


def compares(quantity: str, comparison: str, other: str) -> str:
    """The quantity, a number or a text, compares so with ``other``, an expression of one."""
    text = f"string({quantity})"
    return f"isQuantity({text}) && quantity({text}).compareTo({other}) {comparison}"


def are_amounts(amounts: str) -> str:
    """Each value of a map is a quantity that is not negative and at most ``AMOUNT_MAX``.

    Kubernetes reads a larger quantity as the largest it can hold.
    """
    amount, most = f"{amounts}[k]", f"quantity('{AMOUNT_MAX_TEXT}')"
    bounded = f"{compares(amount, '>= 0', _ZERO)} && {compares(amount, '<= 0', most)}"
    return f"{amounts}.all(k, {bounded})"


_ZERO = "quantity('0')"

AMOUNT_MAX_TEXT = "1Ei"
AMOUNT_MAX = 2**60
"""Of a capacity or a counter."""


def selector_rules(*paths: str) -> Iterable[AdmissionRule]:
    for path in paths:
        yield AdmissionRule(
            expression=each(path, is_selector),
            message=f"{path}: must be a valid label selector",
        )


def positive_rule(path: str) -> AdmissionRule:
    """As in ``kit.durations``, less than a microsecond is nothing."""
    return AdmissionRule(
        expression=each(path, lambda text: lasts(text, ">= duration('1us')")),
        message=f"{path}: must be positive",
    )


def not_negative_rule(path: str) -> AdmissionRule:
    return AdmissionRule(
        expression=each(path, lambda text: lasts(text, "> duration('-1us')")),
        message=f"{path}: must not be negative",
    )


def amount_rules(*paths: str) -> Iterable[AdmissionRule]:
    for path in paths:
        yield AdmissionRule(
            expression=each(path, are_amounts),
            message=f"{path}: must be quantities between 0 and {AMOUNT_MAX_TEXT}",
        )


def label_name_rule(length_max: int) -> AdmissionRule:
    """The name of the object is an RFC 1123 label of at most ``length_max`` characters."""
    suffix = "xxxxx"  # what the API server adds to generateName
    name = (
        "(has(object.metadata.name) && object.metadata.name != '' ? object.metadata.name"
        f" : object.metadata.generateName + '{suffix}')"
    )
    return AdmissionRule(
        expression=f"{is_label(name)} && size({name}) <= {length_max}",
        message="metadata.name: must be a lowercase RFC 1123 label of no more than"
        f" {length_max} characters",
    )


def template_rules(reserved_bytes: int) -> Iterable[AdmissionRule]:
    """The metadata of ``spec.template`` is valid for a member.

    ``reserved_bytes`` of its annotations are the controller's.
    """
    path = "spec.template.metadata"
    yield AdmissionRule(
        expression=each(f"{path}.labels", are_labels),
        message=f"{path}.labels: must be valid labels",
    )
    room = ANNOTATIONS_BYTES_MAX - reserved_bytes
    yield AdmissionRule(
        expression=each(f"{path}.annotations", lambda at: are_annotations(at, bytes_max=room)),
        message=f"{path}.annotations: must be valid and no more than {room} bytes in all",
    )
