"""The list of controllers: every reconciler is in it, and each process takes its part."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random

import pytest

import bullpen.controllers
from bullpen.api.kinds.rbac import ClusterRole
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings, MakeController, Role
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.controllers.leases.session_recorder import SessionReconciler
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.sim.keys import cheap_keys
from bullpen.store.journaled import MemoryStore

ELSEWHERE = {SessionReconciler}
"""Run by the session recorder, which a router process has too."""


def lab(role: Role = Role.WHOLE) -> Lab:
    chance, clock = random.Random(5), VirtualClock()
    sources = Sources(clock=clock, ids=RandomIds(chance), chance=chance)
    registry = Registry(MemoryStore(), clock=clock, ids=sources.ids)
    return Lab(
        RegistryObjects(registry, manager="test"),
        LabSettings(endpoint="lab:8082", ca_pem="PEM"),
        sources,
        role=role,
        keys=cheap_keys(clock),
    )


def reconcilers() -> set[type]:
    """Every class under ``controllers`` that reconciles."""
    found = set()
    for module in pkgutil.walk_packages(bullpen.controllers.__path__, "bullpen.controllers."):
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if value.__module__ == module.name and hasattr(value, "reconcile"):
                found.add(value)
    return found


def test_every_reconciler_is_in_the_list_of_controllers() -> None:
    whole = lab()
    listed = {type(make(whole).reconciler) for make in controllers.EMBEDDED}
    assert listed == reconcilers() - ELSEWHERE


@pytest.mark.parametrize(
    ("role", "makers"),
    [
        pytest.param(Role.WHOLE, controllers.EMBEDDED, id="bullpen up"),
        pytest.param(Role.LEASES, controllers.LEASES, id="bullpen controller"),
        pytest.param(Role.POOLS, controllers.POOLS, id="bullpen provisioner"),
    ],
)
def test_every_process_makes_controllers_with_distinct_names(
    role: Role, makers: tuple[MakeController, ...]
) -> None:
    process = lab(role)
    names = [make(process).name for make in makers]
    assert len(set(names)) == len(names)


def test_the_controllers_of_two_processes_together_are_those_of_one() -> None:
    assert set(controllers.LEASES) | set(controllers.POOLS) == set(controllers.WHOLE)


def test_only_the_process_with_the_api_server_watches_roles() -> None:
    process = lab()
    for make in controllers.WHOLE:
        make(process)
    assert ClusterRole not in process.views.kinds
    controllers.cluster_roles(process)
    assert ClusterRole in process.views.kinds


async def test_services_are_made_before_the_lab_runs() -> None:
    process = lab()
    Services.of(process)
    async with process.running(()):
        with pytest.raises(AssertionError, match="after the start"):
            Services.of(process)


async def test_a_lab_runs_once() -> None:
    process = lab()
    async with process.running(()):
        pass
    with pytest.raises(AssertionError, match="new lab"):
        await process.running(()).__aenter__()
