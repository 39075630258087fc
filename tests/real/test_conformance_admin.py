"""The conformance checklist, points 1, 10 and 13: ``jmp admin``, listing, logging in."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from support.lab_helpers import Lab, Refusal, at_once
from support.oidc_server import (
    ForeignProvider,
    Provider,
    running_foreign_provider,
    running_provider,
)
from support.real_service import Service, eventually, free_port_base, running_service

pytestmark = pytest.mark.real

MANY = 250

CONFIG = """
labels:
  hidden: [internal.example.com/rack]
  deprecated: {{board-type: use board instead}}
oidc:
  - issuer: {issuer}
  - issuer: {foreign}
    usernameClaim: sub
    usernamePrefix: "foreign:"
provisioning: true
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignProvider]:
    with running_foreign_provider(free_port_base(), "wendy") as running:
        eventually(running.answers, seconds=120, what="the foreign provider answering")
        yield running


@pytest.fixture(scope="module")
def lab(
    tmp_path_factory: pytest.TempPathFactory, provider: Provider, foreign: ForeignProvider
) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("admin")
    config = directory / "bullpen.yaml"
    config.write_text(CONFIG.format(issuer=provider.address, foreign=foreign.address))
    with running_service(directory, "--config", str(config)) as service:
        yield Lab(service)


@pytest.fixture(scope="module")
def service(lab: Lab) -> Service:
    return lab.service


def secret_of(lab: Lab, kind: str, name: str) -> str:
    return f"/api/v1/namespaces/default/secrets/{name}-{kind}"


@pytest.mark.parametrize("kind", ["client", "exporter"])
def test_01_admin_creates_imports_gets_and_deletes(lab: Lab, service: Service, kind: str) -> None:
    """One after the other, as an administrator would; what only reads runs side by side."""
    allow = ["--unsafe"] if kind == "client" else []
    path, again = service.home / f"{kind}.yaml", service.home / f"{kind}-again.yaml"
    service.jmp(
        *("admin", "create", kind, "subject", "-l", "k=v", "--save", *allow, "--out", str(path))
    )
    made = yaml.safe_load(path.read_text())
    assert made["metadata"] == {"namespace": "default", "name": "subject"}
    assert made["endpoint"] == service.endpoints["controller"]
    assert made["tls"]["ca"]
    assert made["token"] == lab.token(f"{kind}s", "subject")

    def shown(*arguments: str) -> str:
        return service.jmp("admin", "get", kind, *arguments).stdout

    listed, as_json, _ = at_once(
        lambda: shown("-o", "json"),
        lambda: shown("subject", "-o", "json"),
        lambda: service.jmp("admin", "import", kind, "subject", *allow, "--out", str(again)).stdout,
    )
    assert "subject" in [item["metadata"]["name"] for item in json.loads(listed)["items"]]
    assert json.loads(as_json)["metadata"]["name"] == "subject"
    assert yaml.safe_load(again.read_text())["token"] == made["token"]
    assert lab.get(f"{kind}s", "subject")["metadata"]["labels"] == {"k": "v"}
    if kind == "client":
        table, as_yaml, names = at_once(
            lambda: shown("subject"),
            lambda: shown("subject", "-o", "yaml"),
            lambda: shown("subject", "-o", "name"),
        )
        assert table.split()[:2] == ["NAME", "ENDPOINT"]
        assert yaml.safe_load(as_yaml)["metadata"]["name"] == "subject"
        assert names.strip().endswith("/subject")

    service.jmp("admin", "delete", kind, "subject")
    with pytest.raises(Refusal):
        lab.get(f"{kind}s", "subject")

    def gone() -> bool:
        try:
            lab.request("GET", secret_of(lab, kind, "subject"))
        except Refusal as refusal:
            return refusal.status == 404
        return False

    eventually(gone, what="the secret going with its owner")


def test_01_admin_rotates_a_client(lab: Lab, service: Service) -> None:
    client = lab.client("rotated")
    before = lab.token("clients", "rotated")
    path = service.home / "rotated-again.yaml"
    service.jmp(*("admin", "rotate", "client", "rotated", "--save", "--out", str(path)))
    after = yaml.safe_load(path.read_text())["token"]
    assert after not in ("", before)
    old, new = at_once(
        lambda: lab.jmp(client, "get", "leases", check=False),
        lambda: lab.jmp(path, "get", "leases"),
    )
    assert old.returncode
    assert "the token was revoked" in old.stderr
    assert new.returncode == 0


def test_01_admin_lists_leases(lab: Lab, service: Service) -> None:
    lab.create(
        "leases",
        "booked",
        spec={
            "clientRef": {"name": "nobody"},
            "selector": {"matchLabels": {"a": "b"}},
            "duration": "1h",
            "beginTime": "2099-01-01T00:00:00Z",
        },
    )
    table, found = at_once(
        lambda: service.jmp("admin", "get", "leases").stdout,
        lambda: json.loads(service.jmp("admin", "get", "lease", "booked", "-o", "json").stdout),
    )
    assert "booked" in table
    assert found["status"]["ended"] is False
    lab.delete("leases", "booked")


def test_10_many_exporters_and_leases_are_listed_completely(lab: Lab, service: Service) -> None:
    service.kubectl("create", "namespace", "crowd")
    client = lab.client("many", namespace="crowd")
    spec = {"clientRef": {"name": "many"}, "exporterRef": {"name": "e000"}, "duration": "1h"}
    for number in range(MANY):
        name, parity = f"{number:03d}", {"parity": "odd" if number % 2 else "even"}
        lab.create("exporters", f"e{name}", namespace="crowd", labels=parity)
        tagged = {"metadata.jumpstarter.dev/run": "odd" if number % 2 else "even"}
        lab.create("leases", f"l{name}", namespace="crowd", labels=tagged, spec=spec)

    def names(*arguments: str) -> list[str]:
        lines = lab.jmp(client, "get", *arguments, "-o", "name").stdout.split()
        return sorted(line.rpartition("/")[2] for line in lines)

    exporters, odd, leases = at_once(
        lambda: names("exporters"),
        lambda: names("exporters", "-l", "parity=odd"),
        lambda: names("leases"),
    )
    assert exporters == [f"e{number:03d}" for number in range(MANY)]
    assert odd == [f"e{number:03d}" for number in range(1, MANY, 2)]
    assert leases == [f"l{number:03d}" for number in range(MANY)]


def test_10_leases_are_found_by_their_tags(lab: Lab) -> None:
    client = lab.client("tagger")
    lab.exporter("tagged", {"board": "tagged"})
    at_once(
        lambda: lab.jmp(
            *(client, "create", "lease", "-n", "tagged", "--duration", "5m"),
            *("--lease-id", "red", "--tag", "colour=red", "--tag", "run=7"),
        ),
        lambda: lab.jmp(
            *(client, "create", "lease", "-n", "tagged", "--duration", "5m"),
            *("--lease-id", "blue", "--tag", "colour=blue"),
        ),
    )
    assert lab.get("leases", "red")["spec"]["tags"] == {"colour": "red", "run": "7"}
    red, any_colour = at_once(
        lambda: lab.jmp(client, "get", "leases", "--tag-filter", "colour=red", "-o", "name").stdout,
        lambda: lab.jmp(client, "get", "leases", "--tag-filter", "colour", "-o", "name").stdout,
    )
    assert [line.rpartition("/")[2] for line in red.split()] == ["red"]
    assert sorted(line.rpartition("/")[2] for line in any_colour.split()) == ["blue", "red"]
    bad = lab.jmp(
        *(client, "create", "lease", "-n", "tagged", "--duration", "5m", "--tag", "a/b=c"),
        check=False,
    )
    assert "tag 'a/b' must not contain '/'" in bad.stderr


def test_10_hidden_labels_stay_hidden_and_deprecated_ones_say_what_to_use(lab: Lab) -> None:
    client = lab.client("reader")
    labels = {"board": "x", "internal.example.com/rack": "r7", "board-type": "old"}
    lab.create("exporters", "labelled", labels=labels)

    def shown(*arguments: str) -> dict[str, object]:
        done = lab.jmp(client, "get", "exporters", "-l", "board=x", "-o", "json", *arguments)
        (found,) = json.loads(done.stdout)["exporters"]
        return dict(found)

    usual, everything = at_once(shown, lambda: shown("--show-hidden-labels"))
    assert usual["labels"] == {"board": "x"}
    assert everything["labels"] == labels
    # They can be asked for all the same, or nobody could move away from them in time.
    found = lab.jmp(client, "get", "exporters", "-l", "board-type=old", "-o", "name").stdout
    assert found.strip().endswith("labelled")


def test_13_login_by_discovery_then_status_and_rotate(
    lab: Lab, service: Service, provider: Provider
) -> None:
    done = service.jmp(
        *("login", f"alice@{service.endpoints['login']}", "-k", "--unsafe", "--nointeractive"),
        *("--username", "alice", "--password", "wonderland"),
    )
    assert "Set 'alice' as the default client." in done.stdout
    config = service.home / "config" / "jumpstarter" / "clients" / "alice.yaml"
    token = yaml.safe_load(config.read_text())["token"]
    service.jmp("get", "leases")
    made = lab.get("clients", "alice")
    assert made["spec"]["username"] == "oidc:alice", "the first call made the client"
    assert "Subject: alice" in service.jmp("auth", "status").stdout

    rotated = service.jmp("auth", "rotate").stdout
    assert "Token rotated. New expiry" in rotated
    fresh = yaml.safe_load(config.read_text())["token"]
    assert fresh not in ("", token)
    status, leases = at_once(
        lambda: service.jmp("auth", "status"), lambda: service.jmp("get", "leases", check=False)
    )
    assert "Subject: client:default:alice:" in status.stdout
    assert "Status: Valid" in status.stdout
    assert leases.returncode == 0
    assert lab.token("clients", "alice") == fresh


def test_13_an_outside_user_is_nobody_elses_client(lab: Lab, provider: Provider) -> None:
    """A token for one user opens neither another's client nor an unrelated name."""
    victim = lab.client("victim")
    content = yaml.safe_load(victim.read_text())
    content["token"] = provider.token("mallory")
    stolen = victim.with_name("stolen.yaml")
    stolen.write_text(yaml.safe_dump(content))
    refused = lab.jmp(stolen, "get", "leases", check=False)
    assert "oidc:mallory may not act as client victim in namespace default" in refused.stderr
    content["metadata"]["name"] = "somebody"
    stolen.write_text(yaml.safe_dump(content))
    unknown = lab.jmp(stolen, "get", "leases", check=False)
    assert unknown.stderr == refused.stderr.replace("victim", "somebody"), "nothing is given away"
    with pytest.raises(Refusal):
        lab.get("clients", "somebody")


def test_13_an_outside_user_appears_in_no_namespace_but_the_one_of_its_issuer(
    lab: Lab, service: Service, provider: Provider
) -> None:
    service.kubectl("create", "namespace", "elsewhere")
    content = yaml.safe_load(lab.client("pattern").read_text())
    content["metadata"]["name"] = "mallory"
    content["token"] = provider.token("mallory")
    config = service.home / "mallory.yaml"
    for namespace in ("elsewhere", "kube-system", "none"):
        content["metadata"]["namespace"] = namespace
        config.write_text(yaml.safe_dump(content))
        refused = lab.jmp(config, "get", "leases", check=False)
        assert f"may not act as client mallory in namespace {namespace}" in refused.stderr
    made = lab.request("GET", "/apis/jumpstarter.dev/v1alpha1/clients")["items"]
    assert not [client for client in made if client["metadata"]["name"] == "mallory"]
    content["metadata"]["namespace"] = "default"
    config.write_text(yaml.safe_dump(content))
    assert lab.jmp(config, "get", "leases").returncode == 0
    assert lab.get("clients", "mallory")["spec"]["username"] == "oidc:mallory"


def test_13_a_token_of_a_foreign_provider_is_understood(
    lab: Lab, service: Service, foreign: ForeignProvider
) -> None:
    content = yaml.safe_load(lab.client("turner-2").read_text())
    content["metadata"]["name"] = "wendy"
    path = service.home / "wendy.yaml"

    def get(audience: str) -> subprocess.CompletedProcess[str]:
        content["token"] = foreign.token("wendy", audience=audience)
        path.write_text(yaml.safe_dump(content))
        return lab.jmp(path, "get", "leases", check=False)

    refused = get("another-application")
    assert refused.returncode
    assert "token audience is not accepted here" in refused.stderr
    assert get("jumpstarter-cli").returncode == 0
    assert lab.get("clients", "wendy")["spec"]["username"] == "foreign:wendy"


def test_13_a_rotated_token_shuts_out_the_one_before(lab: Lab, service: Service) -> None:
    before = lab.client("turner")
    # The client writes its new token to where it keeps configs, whatever file it was given.
    kept = service.home / "config" / "jumpstarter" / "clients" / "turner.yaml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(before.read_text())
    assert "Token rotated" in service.jmp("auth", "rotate", "--client", "turner").stdout
    old, new = at_once(
        lambda: lab.jmp(before, "get", "leases", check=False),
        lambda: service.jmp("get", "leases", "--client", "turner", check=False),
    )
    assert old.returncode
    assert old.stderr == (
        "Error: grpc controller responded: "
        "the token was revoked; get the current one from its secret\n"
    )
    assert new.returncode == 0, new.stderr
