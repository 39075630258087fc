"""What the embedded home refuses, a cluster refuses, and nothing else.

Without a cluster, the expressions of the admission policies are evaluated here. With
``make test-cluster`` every manifest is sent to the cluster as well.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.api.resource import Resource
from bullpen.cluster import kubeconfig
from bullpen.cluster.transport import Request, Transport
from bullpen.errors import Cause, Conflict, LabError
from bullpen.install.admission import cluster_policies, object_rules
from bullpen.install.values import Chosen
from support.extremes import extremes, resources
from support.invalid_manifests import COMPILED, IN_MAPS, INVALID, Invalid, named
from support.objects_homes import install_definitions
from support.policy_evaluator import denials
from support.real_service import eventually

CUSTOM = tuple(resource for resource in resources() if resource.custom)


def generated(resource: Resource) -> list[dict[str, Any]]:
    """Objects with one field of their spec or metadata at an extreme."""
    found = []
    for extreme in extremes(resource):
        # Google's library for Python, but not Kubernetes, ends a text at a zero character.
        if not extreme.in_status and extreme.value != "\0":
            document = copy.deepcopy(extreme.document)
            document.setdefault("metadata", {}).setdefault("name", "odd")
            found.append(document)
    return found


def is_beyond_policies(cause: Cause) -> bool:
    """Whether it is one of ``COMPILED`` or ``IN_MAPS``."""
    return cause.field.endswith(".cel.expression") or "attributes[" in cause.field


@pytest.mark.parametrize("resource", CUSTOM, ids=lambda resource: resource.kind)
def test_both_accept_an_object_of_the_kind(resource: Resource) -> None:
    document = resource.default(named(resource))
    assert resource.validate(document) == ()
    assert denials(object_rules(resource), document) == []


@pytest.mark.parametrize("invalid", INVALID, ids=str)
def test_both_refuse(invalid: Invalid) -> None:
    resource, old = invalid.resource, invalid.before
    before = resource.default(old) if old else None
    document = resource.default(invalid.document)
    assert resource.validate(document, before)
    assert denials(object_rules(resource), document, before)


@pytest.mark.parametrize("invalid", [*COMPILED, *IN_MAPS], ids=str)
def test_the_embedded_home_refuses_what_a_policy_cannot(invalid: Invalid) -> None:
    document = invalid.resource.default(invalid.document)
    assert invalid.resource.validate(document)
    assert not denials(object_rules(invalid.resource), document)


@pytest.mark.parametrize("resource", CUSTOM, ids=lambda resource: resource.kind)
def test_the_policies_agree_with_the_checks_at_the_extremes(resource: Resource) -> None:
    """The policies refuse no object that is valid, and let none pass that the checks refuse."""
    rules, schema = object_rules(resource), replace(resource, checks=())
    for sent in generated(resource):
        document = resource.default(sent)
        if not schema.validate(document):
            causes = [c for c in resource.validate(document) if not is_beyond_policies(c)]
            assert bool(denials(rules, document)) == bool(causes), (causes, str(sent)[:500])


def test_an_unchanged_spec_that_became_invalid_can_be_updated() -> None:
    invalid = next(invalid for invalid in INVALID if invalid.old is None)
    document = invalid.resource.default(invalid.document)
    assert denials(object_rules(invalid.resource), document, document) == []


class Cluster:
    """The cluster that ``KUBECONFIG`` names, asked with dry runs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def refuses(self, resource: Resource, document: dict[str, Any]) -> str:
        """Why the cluster does not accept it as a new object; empty if it does."""
        return await self._asked(resource, document, method="POST", dry=True)

    async def change(self, invalid: Invalid) -> str:
        """Why the cluster does not accept the update."""
        assert invalid.before is not None
        resource = invalid.resource
        assert not await self._asked(resource, invalid.before, method="POST", dry=False)
        try:
            return await self._asked(resource, invalid.document, method="PATCH", dry=True)
        finally:
            await self._asked(resource, invalid.document, method="DELETE", dry=False)

    async def _asked(
        self, resource: Resource, document: dict[str, Any], *, method: str, dry: bool
    ) -> str:
        lab = "namespaces/default/" if resource.namespaced else ""
        path = f"/apis/{resource.group}/{resource.version}/{lab}{resource.plural}"
        if method != "POST":
            path += f"/{document['metadata']['name']}"
        query = {"dryRun": "All"} if dry else {}
        if method == "PATCH":
            query |= {"fieldManager": "test", "force": "true"}
        request = Request(
            verb="create",
            resource=resource.plural,
            method=method,
            path=path,
            query=query,
            body=None if method == "DELETE" else document,
        )
        try:
            await self._transport.call(request)
        except Conflict:
            return ""
        except LabError as error:
            return error.message
        return ""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    access = kubeconfig.load(Path(os.environ["KUBECONFIG"]))
    transport = Transport(access, agent="contract")
    transport.open()
    yield Cluster(transport)
    await transport.close()


@pytest.fixture(scope="module")
def policies() -> None:
    """The definitions and the policies of an installation for all namespaces."""
    install_definitions()
    written = yaml.safe_dump_all(cluster_policies(Chosen({}, namespace="bullpen")))
    subprocess.run(
        ["kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-"],
        input=written.encode(),
        check=True,
        timeout=60,
    )
    eventually(are_in_force, seconds=120, what="the policies being in force")


def are_in_force() -> bool:
    """A policy is in force some seconds after it was written."""
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "-n", "default", "-f", "-"],
        input=json.dumps(INVALID[-1].document).encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode != 0


@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_a_cluster_refuses_the_same(policies: None, cluster: Cluster) -> None:
    accepted = [
        str(invalid)
        for invalid in (*INVALID, *IN_MAPS)
        if not (
            await cluster.change(invalid)
            if invalid.old
            else await cluster.refuses(invalid.resource, invalid.document)
        )
    ]
    assert accepted == []


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("resource", CUSTOM, ids=lambda resource: resource.kind)
async def test_a_cluster_agrees_at_the_extremes(
    policies: None, cluster: Cluster, resource: Resource
) -> None:
    assert not await cluster.refuses(resource, named(resource))
    differ = []
    for document in generated(resource):
        causes = resource.validate(resource.default(copy.deepcopy(document)))
        why = await cluster.refuses(resource, document)
        beyond = bool(causes) and all(cause.field.endswith(".cel.expression") for cause in causes)
        if bool(causes) != bool(why) and not beyond:
            differ.append((json.dumps(document)[:300], str(causes[:1]), why[:300]))
    for line in differ:
        print(*line, sep="\n  ", file=sys.stderr)
    assert differ == []
