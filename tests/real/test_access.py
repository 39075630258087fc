"""Who gets in: nobody without a token, readers to read, and exactly one service per directory."""

from __future__ import annotations

import json
import ssl
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from support.real_service import Service

pytestmark = pytest.mark.real


def call(service: Service, path: str, token: str = "", method: str = "GET") -> tuple[int, str]:
    context = ssl.create_default_context(cafile=service.endpoints["ca"])
    request = urllib.request.Request(service.endpoints["apiserver"] + path, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def token_in(path: Path) -> str:
    config = yaml.safe_load(path.read_text())
    token: str = config.get("token") or config["users"][0]["user"]["token"]
    return token


LEASES = "/apis/jumpstarter.dev/v1alpha1/namespaces/default/leases"


@pytest.mark.parametrize("path", ["/api", "/version", "/metrics", LEASES, "/openapi/v3"])
def test_anonymous_callers_get_401(service: Service, path: str) -> None:
    code, body = call(service, path)
    assert code == 401
    assert json.loads(body)["reason"] == "Unauthorized"


@pytest.mark.parametrize("token", ["x", "Bearer", "a.b.c", "ä" * 10])
def test_unknown_tokens_get_401(service: Service, token: str) -> None:
    assert call(service, LEASES, token.encode().decode("latin-1"))[0] == 401


def test_health_needs_no_token(service: Service) -> None:
    assert call(service, "/readyz") == (200, "ok")
    assert call(service, "/livez") == (200, "ok")


def test_a_reader_reads_but_neither_writes_nor_sees_secrets(service: Service) -> None:
    token = token_in(service.data / "kubeconfig-view")
    assert call(service, LEASES, token)[0] == 200
    secrets = "/api/v1/namespaces/default/secrets"
    for path in (secrets, f"{secrets}?watch=1", "/api/v1/secrets?watch=1", f"{secrets}/x?watch=1"):
        assert call(service, path, token)[0] == 403
    for resource in ("clusterroles", "customresourcedefinitions", "namespaces", "events"):
        view = str(service.data / "kubeconfig-view")
        assert service.kubectl("get", resource, "-A", KUBECONFIG=view).returncode == 0
    code, body = call(service, f"{LEASES}/x", token, "DELETE")
    assert code == 403
    assert json.loads(body)["message"] == (
        'leases.jumpstarter.dev "x" is forbidden: User "bullpen:view" cannot delete resource'
        ' "leases" in API group "jumpstarter.dev" in the namespace "default"'
    )
    view = str(service.data / "kubeconfig-view")
    assert service.kubectl("auth", "can-i", "list", "leases", KUBECONFIG=view).stdout == "yes\n"
    done = service.kubectl("auth", "can-i", "create", "leases", check=False, KUBECONFIG=view)
    assert done.stdout.startswith("no")


def test_a_jumpstarter_token_has_no_access_here(service: Service) -> None:
    client = token_in(service.create_client("intruder"))
    exporter = token_in(service.create_exporter("intruder", {"a": "b"}))
    for token in (client, exporter):
        code, body = call(service, LEASES, token)
        assert code == 403, body
        assert call(service, "/api", token)[0] == 403


def test_secrets_are_readable_by_their_owner_only(service: Service) -> None:
    for path in [p for p in service.data.rglob("*") if p.is_file()]:
        text = path.read_bytes()
        secret = b"PRIVATE KEY" in text or b"token" in text or path.suffix in (".key", ".db")
        if secret:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(service.data.stat().st_mode) == 0o700


def test_a_second_service_on_the_directory_is_refused(service: Service) -> None:
    done = service.bullpen("up", "--data", str(service.data), "--port-base", "0", check=False)
    assert done.returncode == 9
    assert service.process is not None
    assert f"in use by bullpen up, pid {service.process.pid}" in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [("precious.txt", "mine"), ("bullpen.json", "{"), ("bullpen.json", '{"format": 99}')],
)
def test_a_directory_that_is_not_ours_is_refused_and_left_alone(
    service: Service, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    done = service.bullpen("up", "--data", str(tmp_path), "--port-base", "0", check=False)
    assert done.returncode == 9
    assert done.stderr.startswith("bullpen: ")
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content


def test_a_port_in_use_is_named(service: Service, tmp_path: Path) -> None:
    port = int(service.endpoints["apiserver"].rpartition(":")[2])
    done = service.bullpen("up", "--data", str(tmp_path), "--port-base", str(port), check=False)
    assert done.returncode == 9
    assert f"127.0.0.1:{port} cannot be used" in done.stderr
