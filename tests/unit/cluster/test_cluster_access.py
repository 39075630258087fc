"""Where an API server is and who we are there: kubeconfigs, Pods, plug-ins."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.cluster import kubeconfig
from bullpen.cluster.kubeconfig import Surroundings, Token, TokenFile
from bullpen.datadir import certificates
from bullpen.errors import Refused
from bullpen.kit.clock import EPOCH, VirtualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = certificates.make_authority(now=NOW)


def written(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    """A kubeconfig with one context of this user and cluster."""
    config = {
        "current-context": "main",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **cluster}}],
        "contexts": [
            {"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "bare", "context": {"cluster": "c"}},
        ],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def surroundings(clock: VirtualClock | None = None) -> Surroundings:
    return Surroundings(environment=dict(os.environ), clock=clock or VirtualClock())


class TestKubeconfig:
    async def test_a_token_an_authority_and_a_namespace(self, tmp_path: Path) -> None:
        data = base64.b64encode(AUTHORITY.certificate).decode()
        path = written(
            tmp_path / "k", {"token": "t"}, **{"certificate-authority-data": data, "proxy-url": "p"}
        )
        access = kubeconfig.load(path)
        assert await access.credentials.authorization() == "Bearer t"
        assert (access.server, access.namespace, access.proxy) == ("https://api:6443", "team", "p")
        assert access.tls.verify_mode is ssl.CERT_REQUIRED

    async def test_another_context_may_be_chosen(self, tmp_path: Path) -> None:
        access = kubeconfig.load(written(tmp_path / "k", {"token": "t"}), context="bare")
        assert access.namespace == "default"
        assert await access.credentials.authorization() == ""

    async def test_files_are_found_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
        (tmp_path / "token").write_text("from-file\n")
        client = certificates.issue(AUTHORITY, ("me",), now=NOW)
        (tmp_path / "me.crt").write_bytes(client.certificate)
        (tmp_path / "me.key").write_bytes(client.key)
        user = {"tokenFile": "token", "client-certificate": "me.crt", "client-key": "me.key"}
        path = written(tmp_path / "k", user, **{"certificate-authority": "ca.crt"})
        access = kubeconfig.load(path)
        assert await access.credentials.authorization() == "Bearer from-file"

    async def test_a_token_in_a_file_is_read_again_when_it_is_renewed(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("one")
        found = TokenFile(file)
        assert await found.authorization() == "Bearer one"
        fresh = tmp_path / "token.new"
        fresh.write_text("two")
        fresh.replace(file)
        assert await found.authorization() == "Bearer two"
        file.unlink()
        with pytest.raises(Refused, match="cannot be read"):
            await found.authorization()

    def test_what_is_rejected_once_may_have_been_renewed_but_not_for_ever(
        self, tmp_path: Path
    ) -> None:
        found = TokenFile(tmp_path / "token")
        assert not found.rejected()
        assert not Token("t").rejected()

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            pytest.param("{}", "current-context", id="nothing in it"),
            pytest.param("[1]", "kubeconfig", id="not a config"),
            pytest.param("{", "kubeconfig", id="not YAML"),
            pytest.param(
                "{current-context: x, contexts: [], clusters: [], users: []}",
                "'x'",
                id="no context",
            ),
        ],
    )
    def test_what_cannot_be_used_is_a_sentence(self, tmp_path: Path, text: str, words: str) -> None:
        (tmp_path / "k").write_text(text)
        with pytest.raises(Refused, match=words):
            kubeconfig.load(tmp_path / "k")

    def test_a_file_that_is_not_there_is_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match="nowhere"):
            kubeconfig.load(tmp_path / "nowhere")


class TestPlugins:
    def plugin(self, tmp_path: Path, body: str) -> dict[str, Any]:
        program = tmp_path / "login.sh"
        program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "./login.sh",
                "args": ["get-token"],
                "env": [{"name": "GREETING", "value": "hello"}],
                "provideClusterInfo": True,
                "interactiveMode": "IfAvailable",
                "installHint": "get it from the platform team",
            }
        }

    def said(self, **status: str) -> str:
        return json.dumps({"kind": "ExecCredential", "status": status})

    def runs(self, tmp_path: Path) -> int:
        return len((tmp_path / "runs").read_text().split())

    async def test_are_told_where_and_run_until_their_answer_is_over(self, tmp_path: Path) -> None:
        clock = VirtualClock()
        over = (EPOCH + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = self.said(token="$GREETING-$1", expirationTimestamp=over).replace('"', '\\"')
        body = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; echo "{answer}"'
        path = written(tmp_path / "k", self.plugin(tmp_path, body))
        access = kubeconfig.load(path, surroundings=surroundings(clock))
        for _ in range(3):
            assert await access.credentials.authorization() == "Bearer hello-get-token"
        assert self.runs(tmp_path) == 1
        info = json.loads((tmp_path / "info").read_text())
        assert info["spec"]["cluster"]["server"] == "https://api:6443"
        assert not info["spec"]["interactive"]
        clock.advance(timedelta(minutes=6))
        await access.credentials.authorization()
        assert self.runs(tmp_path) == 2

    async def test_are_run_again_when_their_answer_is_rejected(self, tmp_path: Path) -> None:
        body = f"echo '{self.said(token='t')}'"
        path = written(tmp_path / "k", self.plugin(tmp_path, body))
        access = kubeconfig.load(path, surroundings=surroundings())
        await access.credentials.authorization()
        assert access.credentials.rejected()
        await access.credentials.authorization()
        assert self.runs(tmp_path) == 2

    async def test_may_give_a_certificate_instead(self, tmp_path: Path) -> None:
        made = certificates.issue(AUTHORITY, ("me",), now=NOW)
        status = {
            "clientCertificateData": made.certificate.decode(),
            "clientKeyData": made.key.decode(),
        }
        (tmp_path / "answer").write_text(json.dumps({"status": status}))
        path = written(tmp_path / "k", self.plugin(tmp_path, f"cat {tmp_path}/answer"))
        access = kubeconfig.load(path, surroundings=surroundings())
        assert await access.credentials.authorization() == ""

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            pytest.param("exit 3", "exited with 3", id="it fails"),
            pytest.param("echo hello", "no ExecCredential", id="it says something else"),
            pytest.param("echo '{\"status\": {}}'", "neither a token", id="it has nothing to give"),
        ],
    )
    async def test_that_fail_are_a_sentence(self, tmp_path: Path, body: str, words: str) -> None:
        path = written(tmp_path / "k", self.plugin(tmp_path, body))
        access = kubeconfig.load(path, surroundings=surroundings())
        with pytest.raises(Refused, match=words):
            await access.credentials.authorization()

    async def test_that_are_not_installed_are_told_how(self, tmp_path: Path) -> None:
        user = self.plugin(tmp_path, "")
        user["exec"]["command"] = "no-such-program-at-all"
        access = kubeconfig.load(written(tmp_path / "k", user), surroundings=surroundings())
        with pytest.raises(Refused, match="platform team"):
            await access.credentials.authorization()

    def test_that_must_ask_a_person_are_refused(self, tmp_path: Path) -> None:
        user = self.plugin(tmp_path, "")
        user["exec"]["interactiveMode"] = "Always"
        with pytest.raises(Refused, match="needs interactive input"):
            kubeconfig.load(written(tmp_path / "k", user), surroundings=surroundings())

    def test_are_not_run_where_nobody_said_in_what(self, tmp_path: Path) -> None:
        path = written(tmp_path / "k", self.plugin(tmp_path, ""))
        with pytest.raises(Refused, match="not run here"):
            kubeconfig.load(path)


IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class TestInACluster:
    async def test_a_pod_is_its_service_account(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
        (tmp_path / "namespace").write_text("bullpen\n")
        (tmp_path / "token").write_text("t")
        assert kubeconfig.is_inside(IN_A_POD)
        access = kubeconfig.load_in_cluster(IN_A_POD, tmp_path)
        assert access.server == "https://10.0.0.1:443"
        assert access.namespace == "bullpen"
        assert await access.credentials.authorization() == "Bearer t"

    def test_a_pod_without_one_is_told_what_to_set(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match="automountServiceAccountToken"):
            kubeconfig.load_in_cluster(IN_A_POD, tmp_path)

    def test_outside_there_is_none(self) -> None:
        assert not kubeconfig.is_inside({})
