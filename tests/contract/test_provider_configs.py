"""ProviderConfigs with the production wiring: records, finalizers, listings, status, limits."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.providerconfig import ProviderConfig, ProviderConfigSpec, ProviderLimits
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.app.lab import Lab, LabSettings
from bullpen.app.metrics import ProviderMetrics
from bullpen.app.placements import provisioner_of
from bullpen.controllers.targets.provider_records import keys_name
from bullpen.core import conditions
from bullpen.core.targets.backends import SETTLE_MAX
from bullpen.core.targets.provider_status import IN_USE, PLACE, POLL, REACHABLE, RECORD, SETTINGS
from bullpen.errors import AlreadyExists, NotFound
from bullpen.placements.base import Workload
from bullpen.provisioners.base import Instance, Plugin
from bullpen.provisioners.provider import Backend, Order
from bullpen.sim.keys import cheap_keys
from bullpen.testing.fake_placement import FakePlacement
from bullpen.testing.fake_provider import NAME, AccountFaults, FakeProvider
from support.pool_world import CONTROLLERS, NAMESPACE, World

EAST = (NAMESPACE, "east")
SETTLE = SETTLE_MAX.total_seconds()
KEPT: tuple[tuple[type[Kind], str], ...] = (
    (ProviderConfig, "east"),
    (Secret, "account"),
    (VirtualTargetClass, "fake"),
)


class NotingProvider(FakeProvider):
    """Notes the credentials that each creation was made with."""

    seen: tuple[bytes, ...] = ()

    async def create(self, backend: Backend, order: Order) -> Any:
        self.seen = (*self.seen, backend.credentials()["token"])
        return await super().create(backend, order)


class NotingPlacement(FakePlacement):
    """Notes what exporters are given."""

    given: tuple[Workload, ...] = ()

    async def start(self, workload: Workload) -> Instance:
        self.given = (*self.given, workload)
        return await super().start(workload)


class ProviderWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.provider = NotingProvider(self.wall, self.chance)
        self.placement = NotingPlacement(self.provider.pause)
        self.identity = "original"
        self.plugin = Plugin(name=NAME, provider=lambda: self.provider)

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        made = provisioner_of(self.plugin, self.placement, self.objects, self.sources)
        self.lab = Lab(
            self.objects,
            LabSettings(endpoint="lab:8082", ca_pem="PEM", identity=self.identity),
            self.sources,
            keys=cheap_keys(self.wall),
            provisioners=(made,),
            disk_storage=self.disk_storage,
        )
        self.views, self.connections = self.lab.views, self.lab.connections
        async with self.lab.running(CONTROLLERS):
            yield

    async def make_provider(self, name: str = "east", parameters: Any = (), **limits: Any) -> None:
        with contextlib.suppress(AlreadyExists):
            await self.make_secret("account")
        spec = ProviderConfigSpec(
            provisioner=NAME,
            credentials_secret_ref=LocalObjectReference(name="account"),
            parameters=dict(parameters),
            limits=ProviderLimits(**limits),
        )
        meta = ObjectMeta(name=name, namespace=NAMESPACE)
        await self.objects.create(ProviderConfig(metadata=meta, spec=spec))

    async def make_secret(self, name: str, text: str = "first") -> None:
        meta = ObjectMeta(name=name, namespace=NAMESPACE)
        await self.objects.create(Secret(metadata=meta, data=token(text)))

    async def edit_provider(self, **spec: Any) -> None:
        found = await self.objects.get(ProviderConfig, *EAST)
        await self.objects.update(replace(found, spec=replace(found.spec, **spec)))

    async def make_pool(self, members: int = 1, *, name: str = "qemu", at: str = "east") -> None:
        await self.make_class(
            "fake" if at == "east" else at,
            provisioner=NAME,
            provider_config_ref=LocalObjectReference(name=at),
            boot_timeout=timedelta(days=1),
        )
        await self.make_set(
            name,
            virtual_target_class_name="fake" if at == "east" else at,
            min_replicas=members,
            max_replicas=10,
        )

    async def is_kept(self, name: str) -> bool:
        """Whether a Secret has the finalizer."""
        found = await self.objects.get(Secret, NAMESPACE, name)
        return RECORD in found.metadata.finalizers

    def config(self) -> ProviderConfig:
        found = self.views[ProviderConfig].get(*EAST)
        assert found is not None
        return found

    async def records(self) -> list[str]:
        """The kinds of existing objects that have the finalizer."""
        found = []
        for kind, name in KEPT:
            with contextlib.suppress(NotFound):
                value: Any = await self.objects.get(kind, NAMESPACE, name)
                found += [kind.kind] if RECORD in value.metadata.finalizers else []
        return found

    async def exists(self, kind: type[Kind], name: str) -> bool:
        try:
            await self.objects.get(kind, NAMESPACE, name)
        except NotFound:
            return False
        return True

    def holds(self, kind: str) -> bool:
        return conditions.holds(self.config().status.conditions, kind)

    def running(self) -> int:
        return len(self.placement.exporters)


def token(text: str) -> dict[str, str]:
    return {"token": base64.b64encode(text.encode()).decode()}


ALL = ["ProviderConfig", "Secret", "VirtualTargetClass"]


def test_what_is_needed_to_delete_machines_is_kept_until_there_are_none() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_pool(2)
        await world.until(lambda: world.running() == 2)
        await world.sleep(2 * POLL.total_seconds())
        assert await world.records() == ALL
        assert world.holds(IN_USE)

        for kind, name in KEPT:
            await world.remove(kind, name)
        await world.sleep(60)
        assert [await world.exists(kind, name) for kind, name in KEPT] == [True] * 3
        assert len(world.provider.held()) == 2

        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: world.provider.held() == [], seconds=120)
        assert await world.exists(ProviderConfig, "east"), "nothing is proven yet"
        await world.sleep(SETTLE + 3 * POLL.total_seconds())
        assert [await world.exists(kind, name) for kind, name in KEPT] == [False] * 3

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_machines_of_a_service_that_was_killed_are_found_and_removed() -> None:
    async def story(world: ProviderWorld) -> None:
        async with world.service():
            await world.make_provider()
            await world.make_pool(2)
            await world.until(lambda: world.running() == 2)
        await world.remove(ExporterSet, "qemu")
        world.placement.exporters.clear()
        async with world.service():
            await world.until(lambda: world.provider.held() == [], seconds=120)
            await world.sleep(SETTLE + 3 * POLL.total_seconds())
            assert await world.records() == []
            assert not world.holds(IN_USE)

    ProviderWorld().run_without_service(story)  # type: ignore[arg-type]


def test_the_status_says_what_exists_what_it_costs_and_what_went_wrong() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.until(lambda: world.holds(REACHABLE))
        await world.make_pool(2)
        await world.until(lambda: world.config().status.instances == 2)
        assert world.config().status.hourly_cost == "7.20"

        world.provider.account(EAST).faults.silent = True
        await world.until(lambda: not world.holds(REACHABLE))
        assert world.config().status.last_error == "account east does not answer"
        assert world.config().status.instances == 2, "as last seen"
        calls = world.provider.account(EAST).calls
        await world.sleep(600)
        assert world.provider.account(EAST).calls - calls < 20, "it is asked less and less often"
        assert world.running() == 2

        world.provider.account(EAST).faults = AccountFaults()
        await world.until(lambda: world.holds(REACHABLE), seconds=70)
        assert world.config().status.last_error == ""

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_the_limits_of_a_provider_hold_a_pool() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider(max_instances=1)
        await world.make_pool(3)
        await world.until(lambda: world.running() == 1)
        await world.always(lambda: len(world.provider.held()) == 1, seconds=60)
        found = world.views[ProviderConfig].get(*EAST)
        assert found is not None
        await world.objects.update(
            replace(found, spec=replace(found.spec, limits=ProviderLimits(max_instances=3)))
        )
        await world.until(lambda: world.running() == 3, seconds=120)

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_a_machine_ends_when_it_is_older_than_the_limit() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider(max_hours=1)
        await world.make_pool(1)
        await world.until(lambda: world.running() == 1)
        (first,) = world.provider.held()
        await world.sleep(3600)
        await world.until(lambda: first not in world.provider.held(), seconds=60)

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_rotated_credentials_are_used_at_once_and_replace_nobody() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_pool(1)
        await world.until(lambda: world.running() == 1)
        before = world.provider.held()
        secret = await world.objects.get(Secret, NAMESPACE, "account")
        await world.objects.update(replace(secret, data=token("second")))
        await world.edit_set(min_replicas=2)
        await world.until(lambda: world.running() == 2)

        assert world.provider.seen == (b"first", b"second")
        assert before[0] in world.provider.held()
        assert all(not each.spec.credentials for each in world.placement.given)

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_a_class_without_its_provider_config_says_so() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_pool(1)
        await world.until(lambda: world.status().conditions)
        said = " ".join(found.message for found in world.status().conditions)
        assert "spec.providerConfigRef.name: the ProviderConfig does not exist" in said
        await world.make_provider()
        await world.until(lambda: world.running() == 1, seconds=120)

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_what_exists_and_what_it_costs_are_metrics() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_pool(2)
        world.provider.account(EAST).faults.quota = 7
        await world.until(lambda: world.config().status.instances == 2)
        await world.until(lambda: world.config().status.quota is not None)
        await world.until(lambda: world.config().status.orphans == 0)
        found = {
            sample.name: (sample.labels, sample.value)
            for family in ProviderMetrics(world.views[ProviderConfig].all).collect()
            for sample in family.samples
        }
        named = {"namespace": NAMESPACE, "provider": "east"}
        assert found == {
            "bullpen_provider_reachable": (named, 1.0),
            "bullpen_provider_instances": (named, 2.0),
            "bullpen_provider_orphans": (named, 0.0),
            "bullpen_provider_hourly_cost": (named, 7.2),
        }

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_a_copy_of_the_lab_leaves_the_machines_of_the_original_alone() -> None:
    async def story(world: ProviderWorld) -> None:
        async with world.service():
            await world.make_provider()
            await world.make_pool(2)
            await world.until(lambda: world.running() == 2)
        original = world.provider.held()
        world.identity = "copy"
        world.placement.exporters.clear()
        async with world.service():
            await world.remove(ExporterSet, "qemu")
            await world.sleep(SETTLE + 600)
            assert world.provider.held() == original
            assert await world.records() == [], "the copy holds nothing"

    ProviderWorld().run_without_service(story)  # type: ignore[arg-type]


def test_the_keys_of_a_machine_are_in_a_secret_of_its_exporter_and_go_with_it() -> None:
    async def story(world: ProviderWorld) -> None:
        world.provider.keyed = True
        await world.make_provider()
        await world.make_pool()
        await world.until(lambda: world.running() == 1)
        ((_, name),) = world.placement.exporters
        exporter = await world.objects.get(Exporter, NAMESPACE, name)
        kept = keys_name(name, exporter.metadata.uid)
        secret = await world.objects.get(Secret, NAMESPACE, kept)
        ((key, held),) = secret.data.items()
        assert (key, base64.b64decode(held)[:4]) == ("login", b"key ")
        (owner,) = secret.metadata.owner_references
        assert (owner.kind, owner.uid) == ("Exporter", exporter.metadata.uid)

        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: world.provider.held() == [], seconds=120)
        await world.sleep(60)
        assert not await world.exists(Secret, kept)

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_a_secret_is_kept_while_any_provider_config_needs_it() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_provider("west")
        await world.make_pool()
        await world.make_pool(name="other", at="west")
        await world.until(lambda: world.running() == 2)
        await world.remove(ExporterSet, "qemu")
        await world.until(lambda: len(world.provider.held()) == 1, seconds=120)
        await world.sleep(SETTLE + 3 * POLL.total_seconds())
        assert not world.holds(IN_USE)
        assert await world.is_kept("account"), "west cannot delete anything without it"
        await world.remove(ExporterSet, "other")
        await world.sleep(SETTLE + 6 * POLL.total_seconds())
        assert not await world.is_kept("account")

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_another_secret_takes_the_place_of_the_first_which_may_go() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_pool()
        await world.until(lambda: world.running() == 1)
        await world.make_secret("newer", "second")
        await world.edit_provider(credentials_secret_ref=LocalObjectReference(name="newer"))
        await world.sleep(3 * POLL.total_seconds())
        assert await world.is_kept("newer")
        await world.remove(Secret, "account")
        assert not await world.exists(Secret, "account")
        await world.edit_set(min_replicas=2)
        await world.until(lambda: world.running() == 2)
        assert world.provider.seen == (b"first", b"second")

    ProviderWorld().run(story)  # type: ignore[arg-type]


@pytest.mark.parametrize("killed", [False, True], ids=["", "the service is killed"])
def test_other_settings_take_effect_when_nothing_is_left_at_the_former_place(killed: bool) -> None:
    """Else machines of the former region or project would be forgotten, and cost money."""

    async def story(world: ProviderWorld) -> None:
        def held(account: str) -> int:
            return len(world.provider.account((NAMESPACE, account)).machines)

        async with world.service():
            await world.make_provider(parameters={"account": "one"})
            await world.make_pool()
            await world.until(lambda: world.running() == 1)
            await world.edit_provider(parameters={"account": "two"})
            if not killed:
                await world.sleep(600)
        async with world.service():
            await world.edit_set(min_replicas=2)
            await world.sleep(600)
            assert (held("one"), held("two"), world.running()) == (1, 0, 1)
            found = conditions.get(world.config().status.conditions, SETTINGS)
            assert found is not None
            assert (found.status, found.reason) == ("False", "MayHoldInstances")
            assert found.message == "parameters: those of before are used until no instance is left"
            said = " ".join(each.message for each in world.status().conditions)
            assert "has other settings now" in said

            await world.remove(ExporterSet, "qemu")
            await world.sleep(SETTLE + 10 * POLL.total_seconds())
            assert (held("one"), held("two")) == (0, 0)
            assert world.holds(SETTINGS)
            await world.make_set("again", min_replicas=1, max_replicas=10)
            await world.until(lambda: world.running() == 1, seconds=120)
            assert (held("one"), held("two")) == (0, 1)

    ProviderWorld().run_without_service(story)  # type: ignore[arg-type]


def test_an_operator_can_say_that_other_settings_mean_the_same_place() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider(parameters={"account": "east"})
        await world.make_pool()
        await world.until(lambda: world.running() == 1)
        before = world.provider.held()
        await world.edit_provider(parameters={})
        await world.sleep(60)
        assert not world.holds(SETTINGS)
        found = world.config()
        others = {k: v for k, v in found.metadata.annotations.items() if k != PLACE}
        assert len(others) < len(found.metadata.annotations)
        meta = replace(found.metadata, annotations=others)
        await world.objects.update(replace(found, metadata=meta))
        await world.edit_set(min_replicas=2)
        await world.until(lambda: world.running() == 2, seconds=120)
        assert world.holds(SETTINGS)
        assert set(before) < set(world.provider.held())

    ProviderWorld().run(story)  # type: ignore[arg-type]


def test_a_finalizer_that_was_removed_by_hand_is_set_again() -> None:
    async def story(world: ProviderWorld) -> None:
        await world.make_provider()
        await world.make_pool()
        await world.until(lambda: world.running() == 1)
        found = await world.objects.get(ProviderConfig, *EAST)
        await world.objects.update(replace(found, metadata=replace(found.metadata, finalizers=())))
        await world.sleep(3 * POLL.total_seconds())
        assert await world.records() == ALL

    ProviderWorld().run(story)  # type: ignore[arg-type]
