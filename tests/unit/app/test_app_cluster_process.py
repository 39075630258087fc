"""How a process finds its cluster, what it watches there, and what it says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from bullpen.api.kinds.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.pod import Pod
from bullpen.app.cluster_process import JoinSettings, find_access
from bullpen.app.health import Health
from bullpen.app.lab import scopes_of
from bullpen.cluster.objects import Scope
from bullpen.errors import Refused
from bullpen.kit.clock import VirtualClock

KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: team}}]
clusters: [{name: c, cluster: {server: "https://SERVER"}}]
users: [{name: u, user: {token: t}}]
"""


class TestFindingTheCluster:
    @pytest.fixture(autouse=True)
    def nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine without any cluster."""
        for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def file(self, path: Path, server: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(KUBECONFIG.replace("SERVER", server))
        return path

    def found(self, **settings: Any) -> str:
        return find_access(JoinSettings(**settings), VirtualClock()).server

    def test_what_is_named_comes_before_what_is_usual(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.file(tmp_path / "home" / ".kube" / "config", "usual")
        assert self.found() == "https://usual"
        kubeconfig = self.file(tmp_path / "env", "environment")
        monkeypatch.setenv("KUBECONFIG", f"{kubeconfig}:{tmp_path / 'more'}")
        assert self.found() == "https://environment"
        assert self.found(kubeconfig=self.file(tmp_path / "k", "named")) == "https://named"

    def test_a_pod_belongs_to_its_own_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        with pytest.raises(Refused, match="service account"):
            self.found()

    def test_nowhere_is_a_sentence(self) -> None:
        with pytest.raises(Refused, match="--kubeconfig"):
            self.found()


class TestScopes:
    def test_of_kinds_full_of_other_peoples_objects_only_ours_are_watched(self) -> None:
        scopes = scopes_of("bullpen", "")
        assert scopes[CoordinationLease] == Scope(namespace="bullpen", labels="bullpen.dev/router")
        assert scopes[Secret].fields == "type=Opaque"
        assert scopes[ConfigMap].fields == "metadata.name=jumpstarter-service-ca-cert"
        assert Pod.selected == "app.kubernetes.io/managed-by=bullpen"
        assert Namespace not in scopes

    def test_classes_may_refer_to_any_config_map(self) -> None:
        assert scopes_of("bullpen", "lab", bundles=True)[ConfigMap] == Scope(namespace="lab")

    def test_one_namespace_is_all_that_is_looked_at(self) -> None:
        scopes = scopes_of("bullpen", "lab")
        assert scopes[Namespace].fields == "metadata.name=lab"
        assert {scopes[kind].namespace for kind in (Secret, ConfigMap, Pod)} == {"lab"}


class TestHealth:
    async def ask(self, health: Health, path: str, method: str = "GET") -> tuple[int, str]:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            raise AssertionError("nothing is read")

        await health({"path": path, "method": method}, receive, send)
        return sent[0]["status"], sent[1]["body"].decode()

    async def test_a_standby_is_ready_and_one_that_does_not_know_the_leader_is_not(self) -> None:
        health = Health()
        assert await self.ask(health, "/healthz") == (200, "ok\n")
        assert await self.ask(health, "/readyz") == (503, "starting\n")
        health.wait_for("standby: a is the leader", standby=True)
        assert await self.ask(health, "/readyz") == (200, "standby: a is the leader\n")
        health.wait_for("the leader is unknown: no answer")
        assert await self.ask(health, "/readyz") == (503, "the leader is unknown: no answer\n")
        health.ready = "leading"
        assert await self.ask(health, "/readyz") == (200, "leading\n")

    async def test_requests_are_counted(self) -> None:
        health = Health()
        health.count_requests(Counter({("get", "secrets", 200): 3}))
        _, text = await self.ask(health, "/metrics")
        assert 'bullpen_api_requests_total{code="200",resource="secrets",verb="get"} 3.0' in text
        assert "bullpen_ready 0.0" in text
        assert "bullpen_active 0.0" in text

    async def test_anything_else_is_not_there(self) -> None:
        assert (await self.ask(Health(), "/secrets"))[0] == 404
        assert (await self.ask(Health(), "/healthz", "POST"))[0] == 405
