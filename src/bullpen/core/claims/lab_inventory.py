"""The inventory of a lab: its exporters, leases, DevicePools and DeviceClasses as values.

Devices are derived, not declared twice: every Exporter is a device. Its labels are its
attributes, with its drivers, its ExporterSet as ``pool`` and its name as ``exporter``. A
DevicePool adds what no Exporter shows; its counters belong to it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from bullpen.api.device_cel import stored_expression
from bullpen.api.kinds.deviceclaim import (
    AllocationMode,
    AlternativeRequest,
    DeviceClaimSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    ExactRequest,
)
from bullpen.api.kinds.deviceclass import DEFAULT_COST, DeviceClass, DeviceSelector
from bullpen.api.kinds.devicepool import AttributeValue, DevicePool, PoolDevice
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims import bitsets
from bullpen.core.claims.claim import Alternative, Constraint, Criteria, Request, Terms
from bullpen.core.claims.criteria import ClassDefinition, CriteriaIndex
from bullpen.core.claims.inventory import (
    Amounts,
    Attribute,
    Effect,
    Inventory,
    InventoryDevice,
    Taint,
    Toleration,
    Use,
    Version,
    amount,
    amounts,
)
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.exporters import presence
from bullpen.core.leases import access, lifecycle
from bullpen.core.leases.access import Policies
from bullpen.core.matcher import Device
from bullpen.kit import quantities
from bullpen.kit.selectors import EVERYTHING, Selector

OFFLINE = "offline"
"""Why an exporter that is not connected is blocked."""


def inventory_of(
    exporters: Iterable[Exporter], leases: Iterable[Lease], pools: Iterable[DevicePool] = ()
) -> Inventory:
    """One namespace as an inventory."""
    found = [device_of(exporter) for exporter in exporters]
    counters: dict[str, int] = {}
    incomplete = set()
    for pool in pools:
        name = pool.metadata.name
        found += (_pool_device(pool, n, device) for n, device in enumerate(pool.spec.devices))
        totals = pool.spec.shared_counters
        counters |= {f"{name}/{key}": _parsed(value) for key, value in totals.items()}
        incomplete |= {name} if pool.spec.incomplete else set()
    return Inventory(
        devices=tuple(found),
        counters=counters,
        uses=tuple(use for lease in leases if (use := _use(lease)) is not None),
        incomplete=frozenset(incomplete),
    )


def allowed_devices(
    index: InventoryIndex,
    policies: Policies,
    *,
    client: Mapping[str, str] | None,
    labels: Mapping[str, Mapping[str, str]],
    duration: timedelta,
) -> int:
    """The devices that the access policies allow a client for so long.

    ``client``: the labels of the Client; None if there is no such Client. ``labels``: those of each
    exporter. Policies are about exporters; the devices of a DevicePool are not restricted.
    """
    if not policies.enforced:
        return index.everything
    return bitsets.of(
        number
        for number, device in enumerate(index.devices)
        if device.name not in labels
        or (
            client is not None
            and access.approve(
                policies,
                client=client,
                exporter=Device(name=device.name, labels=labels[device.name]),
                duration=duration,
            )
        )
    )


def device_of(exporter: Exporter) -> InventoryDevice:
    """An exporter as a device."""
    labels = exporter.metadata.labels
    blocked = "" if exporter.spec.enabled else "disabled"
    if not blocked and not presence.registered(exporter):
        blocked = OFFLINE
    drivers = {
        device.labels.get("jumpstarter.dev/client", "") for device in exporter.status.devices
    }
    own: dict[str, Attribute] = {"exporter": exporter.metadata.name}
    if drivers - {""}:
        own["drivers"] = tuple(sorted(drivers - {""}))
    return InventoryDevice(
        name=exporter.metadata.name,
        pool=labels.get(SET_NAME, ""),
        attributes={**own, **labels},
        blocked=blocked,
    )


def _use(lease: Lease) -> Use | None:
    held = lease.status.exporter_ref
    if lease.status.ended or held is None:
        return None
    return Use(device=held.name, holder=lease.metadata.name, until=lifecycle.expires_at(lease))


def _pool_device(pool: DevicePool, position: int, device: PoolDevice) -> InventoryDevice:
    name = pool.metadata.name
    drawn = {f"{name}/{key}": _parsed(value) for key, value in device.consumes_counters.items()}
    return InventoryDevice(
        name=f"{name}/{device.name}",
        pool=name,
        driver=pool.spec.driver,
        attributes={
            key: _attribute(value)
            for key, value in {**pool.spec.attributes, **device.attributes}.items()
        },
        capacity={key: _parsed(value) for key, value in device.capacity.items()},
        draws=amounts(drawn),
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=Effect(taint.effect))
            for taint in device.taints
        ),
        shareable=device.allow_multiple_allocations,
        position=position,
    )


def _attribute(value: AttributeValue) -> Attribute:
    if value.string is not None:
        return value.string
    if value.bool_ is not None:
        return value.bool_
    if value.version is not None:
        return Version(value.version)
    if value.quantity is not None:
        return quantities.parse(value.quantity).whole()
    if value.strings is not None:
        return value.strings
    return value.int_ or 0


def _parsed(written: int | str) -> int:
    return amount(quantities.parse(written))


def class_definition(found: DeviceClass) -> ClassDefinition:
    grouped = found.spec.class_selector
    return ClassDefinition(
        name=found.metadata.name,
        criteria=_criteria(found.spec.selectors),
        labels=found.metadata.labels,
        classes=None if grouped is None else grouped.selector(),
    )


def cost_of(exporter: Exporter, classes: Sequence[DeviceClass]) -> float:
    """What an hour of the exporter counts for in the fair share: the highest cost of its classes.

    Groups of classes do not count.
    """
    leaves = [found for found in classes if found.spec.class_selector is None]
    index = InventoryIndex(Inventory(devices=(device_of(exporter),)))
    criteria = CriteriaIndex(index, (class_definition(leaf) for leaf in leaves))
    matching = (c.spec.cost for c in leaves if criteria.of_class(c.metadata.name).devices)
    return max(matching, default=DEFAULT_COST)


def terms_of(spec: DeviceClaimSpec) -> Terms:
    """What a DeviceClaim asks for."""
    return Terms(
        requests=tuple(_request(request) for request in spec.requests),
        constraints=tuple(_constraint(constraint) for constraint in spec.constraints),
    )


def _request(request: DeviceRequest) -> Request:
    forms: tuple[ExactRequest, ...] = request.first_available
    if request.exactly is not None:
        forms = (request.exactly,)
    return Request(name=request.name, alternatives=tuple(_alternative(form) for form in forms))


def _alternative(form: ExactRequest) -> Alternative:
    return Alternative(
        device_class=form.device_class_name,
        criteria=_criteria(form.selectors),
        count=form.count,
        every=form.allocation_mode is AllocationMode.ALL,
        capacity=_amounts(form.capacity),
        totals=_amounts(form.totals),
        count_max=form.max_count or 0,
        tolerations=tuple(_toleration(toleration) for toleration in form.tolerations),
        name=form.name if isinstance(form, AlternativeRequest) else "",
        after=form.after if isinstance(form, AlternativeRequest) else timedelta(0),
    )


def _amounts(values: Mapping[str, int | str]) -> Amounts:
    return amounts({name: _parsed(value) for name, value in values.items()})


def _toleration(toleration: DeviceToleration) -> Toleration:
    effect = toleration.effect
    return Toleration(
        key=toleration.key,
        value=None if toleration.operator == "Exists" else toleration.value,
        effect=None if effect is None else Effect(effect),
    )


def _criteria(selectors: Iterable[DeviceSelector]) -> Criteria:
    labels: Selector = EVERYTHING
    expressions = []
    for selector in selectors:
        if selector.labels is not None:
            requirements = (*labels.requirements, *selector.labels.selector().requirements)
            labels = Selector(requirements)
        if selector.cel is not None:
            expressions.append(stored_expression(selector.cel.expression))
    return Criteria(labels=labels, expressions=tuple(expressions))


def _constraint(constraint: DeviceConstraint) -> Constraint:
    return Constraint(
        attribute=constraint.match_attribute or constraint.distinct_attribute,
        distinct=bool(constraint.distinct_attribute),
        requests=constraint.requests,
        prefer=constraint.prefer,
    )
