"""Kubernetes RBAC with the real kubectl: roles, tokens, certificates, OIDC groups, audit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_kubectl import needs_kubectl

from support.client_certificates import authority, certificate
from support.oidc_server import Provider, running_provider
from support.real_service import Service, eventually, running_service

pytestmark = pytest.mark.real

LEASE = """\
apiVersion: jumpstarter.dev/v1alpha1
kind: Lease
metadata: {{name: {name}}}
spec:
  clientRef: {{name: nobody}}
  duration: 30m
  beginTime: "2099-01-01T00:00:00Z"
  selector: {{matchLabels: {{board: rpi4}}}}
"""


def kubeconfig(service: Service, path: Path, **user: str) -> str:
    """A kubeconfig of this service for other credentials."""
    config = yaml.safe_load((service.data / "kubeconfig").read_text())
    config["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(config))
    return str(path)


def team(service: Service, namespace: str) -> None:
    service.kubectl("create", "namespace", namespace)


def test_edit_in_a_namespace_leases_there_and_nowhere_else(service: Service) -> None:
    team(service, "edit-a")
    service.kubectl(
        "create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice", "-n", "edit-a"
    )
    lease = LEASE.format(name="mine")
    service.kubectl("create", "-n", "edit-a", "--as", "alice", "-f", "-", input=lease)
    listed = service.kubectl(
        "get", "leases.jumpstarter.dev", "-n", "edit-a", "--as", "alice", "-o", "name"
    )
    assert listed.stdout == "lease.jumpstarter.dev/mine\n"
    for verb, arguments in (
        ("create", ("create", "-f", "-")),
        ("list", ("get", "leases.jumpstarter.dev")),
    ):
        refused = service.kubectl(
            *arguments, "-n", "default", "--as", "alice", input=lease, check=False
        )
        assert (
            f'leases.jumpstarter.dev is forbidden: User "alice" cannot {verb} resource "leases"'
            ' in API group "jumpstarter.dev" in the namespace "default"'
        ) in refused.stderr
    everywhere = service.kubectl("get", "exporters", "-A", "--as", "alice", check=False)
    assert "at the cluster scope" in everywhere.stderr


def test_can_i_lists_what_a_user_may(service: Service) -> None:
    team(service, "list-a")
    service.kubectl(
        "create", "rolebinding", "guests", "--clusterrole=view", "--group=guests", "-n", "list-a"
    )
    who = ("--as", "bob", "--as-group", "guests")
    listed = service.kubectl("auth", "can-i", "--list", "-n", "list-a", *who).stdout
    assert "leases.jumpstarter.dev" in listed
    assert "secrets" not in listed
    for verb in ("get", "list", "watch"):
        refused = service.kubectl(
            "auth", "can-i", verb, "secrets", "-n", "list-a", *who, check=False
        )
        assert refused.stdout.startswith("no")
    watched = service.kubectl("get", "secrets", "-w", "-n", "list-a", *who, check=False)
    assert "secrets is forbidden" in watched.stderr


@needs_kubectl(28, "auth whoami")
def test_kubectl_says_who_one_is(service: Service) -> None:
    assert "bullpen:admin" in service.kubectl("auth", "whoami").stdout
    shown = service.kubectl("auth", "whoami", "--as", "alice", "--as-group", "x", "-o", "json")
    assert json.loads(shown.stdout)["status"]["userInfo"] == {
        "username": "alice",
        "groups": ["x", "system:authenticated"],
    }


def test_nobody_impersonates_without_the_right(service: Service) -> None:
    view = str(service.data / "kubeconfig-view")
    refused = service.kubectl("get", "leases", "--as", "x", KUBECONFIG=view, check=False)
    assert 'User "bullpen:view" cannot impersonate resource "users"' in refused.stderr


def test_kubectl_makes_roles_of_every_sort(service: Service) -> None:
    team(service, "sorts")
    service.kubectl(
        "create", "role", "r", "--verb=get,list", "--resource=leases.jumpstarter.dev", "-n", "sorts"
    )
    service.kubectl("create", "rolebinding", "rb", "--role=r", "--user=carol", "-n", "sorts")
    service.kubectl("create", "clusterrole", "paths", "--verb=get", "--non-resource-url=/metrics")
    service.kubectl("create", "clusterrolebinding", "paths", "--clusterrole=paths", "--user=carol")
    service.kubectl(
        "create", "clusterrole", "sum", "--aggregation-rule=example.com/to-sum=true"
    )  # fmt: skip
    service.kubectl("label", "clusterrole", "paths", "example.com/to-sum=true")
    done = service.kubectl("auth", "can-i", "get", "/metrics", "--as", "carol")
    assert done.stdout == "yes\n"
    wanted = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    eventually(
        lambda: service.get("clusterrole", "sum").get("rules") == wanted,
        what="the rules being aggregated",
    )
    service.kubectl("label", "clusterrole", "paths", "example.com/to-sum-")
    eventually(
        lambda: not service.get("clusterrole", "sum").get("rules"),
        what="the rules being removed",
    )
    table = service.kubectl("get", "rolebindings", "-n", "sorts", "-o", "wide").stdout
    assert table.split()[:4] == ["NAME", "ROLE", "AGE", "USERS"]
    assert "Role/r" in table
    for kind in ("rolebinding/rb", "role/r"):
        service.kubectl("delete", kind, "-n", "sorts")
    service.kubectl("delete", "clusterrolebinding/paths", "clusterrole/paths", "clusterrole/sum")


def test_reconcile_replaces_a_binding_whose_role_cannot_change(service: Service) -> None:
    manifest: list[dict[str, Any]] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reconciled"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "view",
            },
            "subjects": [{"kind": "User", "name": "dora", "apiGroup": "rbac.authorization.k8s.io"}],
        }
    ]
    service.kubectl("auth", "reconcile", "-f", "-", input=yaml.safe_dump_all(manifest))
    manifest[0]["roleRef"]["name"] = "edit"
    changed = yaml.safe_dump_all(manifest)
    refused = service.kubectl("apply", "-f", "-", input=changed, check=False)
    assert "cannot change roleRef" in refused.stderr
    service.kubectl("auth", "reconcile", "-f", "-", input=changed)
    found: Any = service.get("clusterrolebinding", "reconciled")
    assert found["roleRef"]["name"] == "edit"
    service.kubectl("delete", "clusterrolebinding", "reconciled")


def test_a_namespace_admin_cannot_give_more_than_it_has(service: Service) -> None:
    team(service, "adams")
    service.kubectl(
        "create", "rolebinding", "adam", "--clusterrole=admin", "--user=adam", "-n", "adams"
    )
    adam = ("-n", "adams", "--as", "adam")
    service.kubectl("create", "rolebinding", "eve", "--clusterrole=view", "--user=eve", *adam)
    for arguments in (
        ("rolebinding", "b", "--clusterrole=cluster-admin", "--user=adam"),
        ("rolebinding", "b", "--clusterrole=bullpen:pool-admin", "--user=adam"),
        ("role", "r", "--verb=*", "--resource=*.*"),
        ("role", "r", "--verb=create", "--resource=exportersets.virtualtarget.jumpstarter.dev"),
    ):
        refused = service.kubectl("create", *arguments, *adam, check=False)
        assert "not currently held" in refused.stderr, refused


CLAIM = """
apiVersion: device.jumpstarter.dev/v1alpha1
kind: DeviceClaim
metadata: {{name: {name}}}
spec:
  clientRef: {{name: nobody}}
  duration: 1h
  adminAccess: {admin}
  requests: [{{name: dut, exactly: {{deviceClassName: none}}}}]
"""


def test_claims_with_admin_access_need_a_right_of_their_own(service: Service) -> None:
    team(service, "takers")
    service.kubectl(
        "create", "rolebinding", "ada", "--clusterrole=admin", "--user=ada", "-n", "takers"
    )
    ada = ("-n", "takers", "--as", "ada", "-f", "-")
    plain, admin = (CLAIM.format(name="c", admin=text) for text in ("false", "true"))
    refused = service.kubectl("create", *ada, input=admin, check=False)
    assert 'does not have the verb "adminaccess"' in refused.stderr
    service.kubectl("apply", *ada, input=plain)
    refused = service.kubectl("apply", *ada, input=admin, check=False)
    assert "bullpen:claim-admin" in refused.stderr
    patch = ("patch", "deviceclaim", "c", "--type=merge", "-p", '{"spec": {"adminAccess": true}}')
    assert service.kubectl(*patch, *ada[:4], check=False).returncode
    service.kubectl(
        "create", "rolebinding", "taker", "--clusterrole=bullpen:claim-admin", "--user=ada",
        "-n", "takers",
    )  # fmt: skip
    eventually(lambda: not service.kubectl(*patch, *ada[:4], check=False).returncode)
    log = service.bullpen("audit", "--data", str(service.data)).stdout
    assert re.search(r"as ada +(create|patch) +deviceclaims +takers\S* +\S+ +403", log), log
    asked = CLAIM.format(name="own", admin="true").replace("nobody", "default")
    told = service.bullpen("claim", "create", "-f", "-", input=asked, check=False)
    assert "create the claim with kubectl" in told.stderr


@needs_kubectl(24, "create token")
def test_a_service_account_token_works_until_the_account_is_deleted(
    service: Service, tmp_path: Path
) -> None:
    team(service, "pipes")
    service.kubectl("create", "serviceaccount", "ci", "-n", "pipes")
    service.kubectl(
        "create", "rolebinding", "ci", "--clusterrole=edit", "--serviceaccount=pipes:ci",
        "-n", "pipes",
    )  # fmt: skip
    token = service.kubectl("create", "token", "ci", "-n", "pipes").stdout.strip()
    config = kubeconfig(service, tmp_path / "ci", token=token)
    lease = LEASE.format(name="from-ci")
    service.kubectl("create", "-n", "pipes", "-f", "-", input=lease, KUBECONFIG=config)
    refused = service.kubectl("get", "exporters", KUBECONFIG=config, check=False)
    assert 'User "system:serviceaccount:pipes:ci" cannot list' in refused.stderr
    elsewhere = service.kubectl(
        "create", "token", "ci", "-n", "pipes", "--audience=vault"
    ).stdout.strip()
    wrong = kubeconfig(service, tmp_path / "vault", token=elsewhere)
    assert service.kubectl("get", "leases", KUBECONFIG=wrong, check=False).returncode
    service.kubectl("delete", "serviceaccount", "ci", "-n", "pipes")
    service.kubectl("create", "serviceaccount", "ci", "-n", "pipes")
    gone = service.kubectl("get", "leases", "-n", "pipes", KUBECONFIG=config, check=False)
    assert "must be logged in" in gone.stderr


def test_a_client_certificate_names_the_user_and_its_groups(
    service: Service, tmp_path: Path
) -> None:
    team(service, "certs")
    service.kubectl(
        "create", "rolebinding", "b", "--clusterrole=view", "--group=team-c", "-n", "certs"
    )
    pki = service.data / "pki"
    shown = certificate(tmp_path, "/O=team-c/CN=carl", pki / "ca.crt", pki / "ca.key")
    config = kubeconfig(service, tmp_path / "carl", **shown)
    service.kubectl("get", "leases", "-n", "certs", KUBECONFIG=config)
    refused = service.kubectl("get", "leases", "-n", "default", KUBECONFIG=config, check=False)
    assert 'User "carl" cannot list' in refused.stderr


def test_certificates_of_strangers_and_of_servers_let_nobody_in(
    service: Service, tmp_path: Path
) -> None:
    ca, key = authority(tmp_path / "ca")
    strange = certificate(tmp_path, "/O=system:masters/CN=root", ca, key)
    pki = service.data / "pki"
    server = {"client-certificate": str(pki / "server.crt"), "client-key": str(pki / "server.key")}
    for shown in (strange, server):
        config = kubeconfig(service, tmp_path / "config", **shown)
        done = service.kubectl("get", "leases", KUBECONFIG=config, check=False)
        assert done.returncode
        assert "Forbidden" not in done.stderr, "it did not get as far as being somebody"


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[tuple[Service, Provider, Path, Path]]:
    """A service that trusts an OIDC issuer and another certificate authority."""
    ca, key = authority(tmp_path / "ca")
    with running_provider() as provider:
        settings = tmp_path / "config.yaml"
        settings.write_text(
            yaml.safe_dump(
                {
                    "clientCAFile": str(ca),
                    "oidc": [{"issuer": provider.address, "groupsPrefix": "corp:"}],
                }
            )
        )
        with running_service(tmp_path, "--config", str(settings)) as service:
            yield service, provider, ca, key


def test_groups_come_from_oidc_and_users_from_another_authority(
    configured: tuple[Service, Provider, Path, Path], tmp_path: Path
) -> None:
    service, provider, ca, key = configured
    service.kubectl("create", "clusterrolebinding", "o", "--clusterrole=view", "--group=corp:devs")
    service.kubectl("create", "clusterrolebinding", "c", "--clusterrole=view", "--user=zoe")
    groups = ["devs", "system:masters"]
    outside = kubeconfig(service, tmp_path / "oidc", token=provider.token("alice", groups=groups))
    service.kubectl("get", "leases", "-A", KUBECONFIG=outside)
    refused = service.kubectl("get", "secrets", "-A", KUBECONFIG=outside, check=False)
    assert 'User "oidc:alice" cannot list resource "secrets"' in refused.stderr
    no_group = kubeconfig(service, tmp_path / "none", token=provider.token("mallory"))
    assert service.kubectl("get", "leases", "-A", KUBECONFIG=no_group, check=False).returncode
    zoe = kubeconfig(service, tmp_path / "zoe", **certificate(tmp_path, "/CN=zoe", ca, key))
    service.kubectl("get", "leases", "-A", KUBECONFIG=zoe)


def test_roles_and_bindings_outlive_a_restart_and_old_directories_get_them(
    fresh_service: Service,
) -> None:
    service = fresh_service
    service.kubectl("create", "clusterrolebinding", "b", "--clusterrole=view", "--user=ruth")
    # As a data directory looked before there were roles; and one that was made useless.
    service.kubectl("delete", "clusterrolebinding", "bullpen:view", "system:discovery")
    service.kubectl("delete", "clusterrole", "bullpen:reader", "system:discovery", "edit")
    view = str(service.data / "kubeconfig-view")
    assert service.kubectl("get", "leases", KUBECONFIG=view, check=False).returncode
    token = (service.data / "auth" / "tokens.json").read_text()
    service.stop()
    service.start()
    assert (service.data / "auth" / "tokens.json").read_text() == token
    service.kubectl("get", "leases", KUBECONFIG=view)
    service.kubectl("get", "leases", "--as", "ruth")
    edit = service.kubectl("get", "clusterrole", "edit", "-o", "yaml").stdout
    assert "secrets" in edit


def test_the_audit_log_has_every_change_and_refusal_and_no_secret(service: Service) -> None:
    team(service, "watched")
    service.kubectl(
        "create", "secret", "generic", "s", "--from-literal=password=hunter2", "-n", "watched"
    )
    service.kubectl("get", "secrets", "-n", "watched")
    service.kubectl("get", "secrets", "-n", "watched", "--as", "snoop", check=False)
    service.bullpen("delete", "secret", "s", "-n", "watched")

    def audited() -> list[Any]:
        done = service.bullpen("audit", "--what", "secrets*", "-o", "json", "--since", "10m")
        found = map(json.loads, done.stdout.splitlines())
        return [event for event in found if "watched" in event["requestURI"]]

    eventually(lambda: len(audited()) >= 3, what="the events being written")
    events = audited()
    assert [(e["verb"], e["responseStatus"]["code"]) for e in events] == [
        ("create", 201),
        ("list", 403),
        ("delete", 200),
    ]
    made, refused, deleted = events
    assert made["user"]["username"] == "bullpen:admin"
    assert made["objectRef"]["name"] == "s"
    assert made["sourceIPs"] == ["127.0.0.1"]
    assert refused["impersonatedUser"]["username"] == "snoop"
    assert deleted["userAgent"] == "bullpen"
    table = service.bullpen("audit", "--who", "snoop").stdout
    assert "403 Forbidden" in table
    files = list((service.data / "audit").iterdir())
    text = b"".join(path.read_bytes() for path in files)
    tokens = json.loads((service.data / "auth" / "tokens.json").read_text())
    for secret in (b"hunter2", *(token.encode() for token in tokens.values())):
        assert secret not in text
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
