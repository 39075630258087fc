"""A template that no member could be created from is refused, or said where it cannot be.

The embedded home refuses such a set when it is applied. A cluster's schema cannot, so there
the controller reports the same in a condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bullpen.api.exporter_template import Template, TemplateMetadata
from bullpen.api.kinds.exporterset import SET_NAME, ExporterSet
from bullpen.api.metadata_checks import ANNOTATIONS_BYTES_MAX
from bullpen.api.resources import RESOURCES, Resources
from bullpen.errors import Invalid
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore
from support.pool_world import LABELS, World

REFUSED = [
    pytest.param(
        {"labels": {**LABELS, "note": "two words"}},
        'spec.template.metadata.labels: Invalid value: "two words": must be empty or consist',
        id="a label value with a blank",
    ),
    pytest.param(
        {"labels": {**LABELS, "note": "x" * 64}},
        "spec.template.metadata.labels: Invalid value: .* must be no more than 63 characters",
        id="a label value that is too long",
    ),
    pytest.param(
        {"labels": {**LABELS, "/note": "x"}},
        "spec.template.metadata.labels: .* the part before '/' must not be empty",
        id="a label key without its domain",
    ),
    pytest.param(
        {"labels": LABELS, "annotations": {"two words": "x"}},
        'spec.template.metadata.annotations: Invalid value: "two words"',
        id="an annotation key with a blank",
    ),
    pytest.param(
        {"labels": LABELS, "annotations": {"note": "x" * (ANNOTATIONS_BYTES_MAX - 4)}},
        "spec.template.metadata.annotations: Too long",
        id="annotations that leave no room for the controller's own",
    ),
]


def template(metadata: Mapping[str, Mapping[str, str]]) -> Template:
    return Template(
        metadata=TemplateMetadata(
            labels=metadata["labels"], annotations=metadata.get("annotations", {})
        )
    )


@pytest.mark.parametrize(("metadata", "said"), REFUSED)
def test_a_template_that_members_would_be_refused_for_is_refused(
    metadata: Mapping[str, Mapping[str, str]], said: str
) -> None:
    async def story(world: World) -> None:
        with pytest.raises(Invalid, match=said):
            await world.make_set(template=template(metadata))

    World().run(story)


def test_a_selector_that_the_name_of_the_set_contradicts_is_refused() -> None:
    labels = {SET_NAME: "other"}

    async def story(world: World) -> None:
        with pytest.raises(Invalid, match=f"with {SET_NAME}, which the controller sets"):
            await world.make_set(labels=labels)
        await world.make_set("other", labels=labels)

    World().run(story)


def test_the_longest_annotations_are_accepted_and_so_are_their_members() -> None:
    room = ANNOTATIONS_BYTES_MAX - 2_000

    async def story(world: World) -> None:
        await world.make_class()
        made = template({"labels": LABELS, "annotations": {"note": "x" * room}})
        await world.make_set(template=made, min_available_replicas=1)
        await world.until(lambda: world.available(1))

    World().run(story)


@pytest.mark.parametrize(("metadata", "said"), REFUSED)
def test_where_it_cannot_be_refused_the_set_says_it_and_tries_nothing(
    metadata: Mapping[str, Mapping[str, str]], said: str
) -> None:
    world = World()
    lax = Resources(replace(r, checks=()) if r.value is ExporterSet else r for r in RESOURCES)
    world.registry = Registry(
        MemoryStore(), clock=world.clock, ids=world.sources.ids, resources=lax
    )
    world.objects = RegistryObjects(world.registry, manager="bullpen")

    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(template=template(metadata), min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "InvalidTemplate")
        assert said.split(":")[0] in world.condition("Degraded").message
        assert not world.names()
        await world.edit_set(template=template({"labels": LABELS}))
        await world.until(lambda: world.available(1))

    world.run(story)
