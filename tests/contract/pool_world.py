"""A lab with pools and everything in it but gRPC and machines, under virtual time.

The objects, the controllers and the fake provisioner are the real ones. Exporters are
played: each registers when its instance runs, serves the leases it gets, and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import virtual_time

from bullpen.api.client import Client
from bullpen.api.core import Event
from bullpen.api.exporter import Exporter, ExporterStatusValue
from bullpen.api.exporterset import (
    Driver,
    ExporterSet,
    ExporterSetSpec,
    RecycleStrategy,
    Template,
    TemplateMetadata,
    TemplateSpec,
)
from bullpen.api.lease import Lease, LeaseSpec
from bullpen.api.meta import Condition, LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.api.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.app.pools import Pools
from bullpen.controllers.credentials import CredentialReconciler, Holder, watch_holders
from bullpen.controllers.leases import LeaseReconciler, watch_namespaces
from bullpen.controllers.presence import Connections, PresenceReconciler
from bullpen.controllers.views import Views
from bullpen.controllers.writing import change_status
from bullpen.core import conditions, presence
from bullpen.errors import NotFound
from bullpen.identity.tokens import Signer, SigningKey
from bullpen.kit.backoff import Backoff
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.provisioners.base import InstancePhase, Key
from bullpen.provisioners.fake import NAME, Faults, FakeProvisioner
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.events import Events
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import ReconcileLoop
from bullpen.store.memory import MemoryStore

NAMESPACE = "default"
LABELS = {"board": "qemu"}
BACKOFF = Backoff(first=timedelta(milliseconds=20), cap=timedelta(seconds=30))
