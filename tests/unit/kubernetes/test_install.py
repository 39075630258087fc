"""What is installed: the same by Helm and without it, accepted by Kubernetes, not too much."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cel_expr_python import cel
from click.testing import CliRunner

from bullpen.api.cel import holds
from bullpen.api.pod import LEADER
from bullpen.app import controller
from bullpen.cli.install import manifests as command
from bullpen.cli.main import cli
from bullpen.errors import BadRequest
from bullpen.install import chart, rbac
from bullpen.install.parts import PARTS, installed, manifests
from bullpen.install.values import DEFAULTS, Chosen
from bullpen.provisioners import plugins
from support.k8s_helm import CHART, linted, refusal, rendered
from support.k8s_schemas import RELEASES, is_elsewhere, problems

needs_helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None, reason="there is no Helm for this machine"
)

CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "everything": {
        "image": {"repository": "registry.example/bullpen", "tag": "1.2.3-a"},
        "imagePullSecrets": [{"name": "login"}],
        "allNamespaces": True,
        "config": {"leases": {"retention": "1h"}, "provisioning": True},
        "controller": {
            "replicas": 3,
            "endpoint": "grpc.lab.example:443",
            "service": {"type": "LoadBalancer", "annotations": {"example.com/ip": "10.0.0.1"}},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "lab", "operator": "Exists"}],
            "resources": {"limits": {"cpu": "2"}},
        },
        "router": {
            "replicas": 3,
            "endpoint": "$(BULLPEN_ROUTER_NAME).lab.example:443",
            "drainSeconds": 120,
            "replicaServices": {"enabled": True},
        },
        "provisioners": [
            {"name": "qemu", "provisioner": "qemu.jumpstarter.dev", "replicas": 2},
            {"name": "mock", "provisioner": "mock.jumpstarter.dev", "replicas": 1},
            {
                "name": "bench",
                "provisioner": "qemu-baremetal.jumpstarter.dev",
                "replicas": 1,
                "pods": False,
                "image": "registry.example/with-ssh:1.2.3",
            },
        ],
        "dashboard": {
            "image": "registry.example/dashboard:1.2.3",
            "oidcSecret": "issuer",
            "service": {"type": "LoadBalancer", "annotations": {"example.com/ip": "10.0.0.2"}},
        },
        "certManager": {"enabled": True, "dnsNames": ["grpc.lab.example", "*.lab.example"]},
        "networkPolicies": {"targetEgress": [{"to": [{"namespaceSelector": {}}]}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "the least": {
        "controller": {"replicas": 1},
        "router": {"replicas": 1},
        "provisioners": [],
        "dashboard": {"enabled": False},
        "networkPolicies": {"enabled": False},
        "podDisruptionBudgets": {"enabled": False},
    },
    "a dashboard with a certificate of its own": {"dashboard": {"tlsSecret": "dashboard-tls"}},
    "an issuer that is there": {
        "certManager": {
            "enabled": True,
            "issuerRef": {"kind": "ClusterIssuer", "name": "letsencrypt"},
        }
    },
}
choices = pytest.mark.parametrize("name", CHOICES)


def objects(name: str) -> list[dict[str, Any]]:
    return list(installed(Chosen(CHOICES[name], namespace="lab")))


def key(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


@needs_helm
@choices
def test_helm_installs_what_the_plain_manifests_do(name: str) -> None:
    plain = {key(document): document for document in objects(name)}
    helm = rendered(CHOICES[name], namespace="lab")
    assert {key(document): document for document in helm} == plain
    assert len(helm) == len(plain)


@needs_helm
def test_helm_has_nothing_against_the_chart() -> None:
    report = linted()
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


def test_the_chart_in_the_repository_is_the_one_the_code_writes() -> None:
    written = dict(chart.files())
    found = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert found == written.keys(), "run `make chart`"
    for name, content in written.items():
        assert (CHART / name).read_text() == content, f"{name} is out of date; run `make chart`"


@pytest.mark.parametrize("release", RELEASES)
@choices
def test_kubernetes_schema_accepts_every_object(name: str, release: str) -> None:
    for document in manifests(CHOICES[name], namespace="lab"):
        if not is_elsewhere(document):
            assert problems(document, release) == [], key(document)


def test_the_command_prints_it_all(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CHOICES["everything"]))
    run = CliRunner()
    done = run.invoke(command, ["-n", "lab", "-f", str(values)], catch_exceptions=False)
    printed = list(yaml.safe_load_all(done.output))
    assert printed == list(manifests(CHOICES["everything"], namespace="lab"))
    as_json = run.invoke(command, ["-n", "lab", "-f", str(values), "-o", "json"])
    assert json.loads(as_json.output)["items"] == printed


@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param({"replicas": 2}, "values: .*'replicas'", id="at the top"),
        pytest.param({"controller": {"replica": 2}}, "controller: .*'replica'", id="below"),
        pytest.param({"controller": {"replicas": "2"}}, "controller.replicas: ", id="of a kind"),
        pytest.param({"provisioners": [{"name": "x"}]}, "provisioners.0: ", id="not enough"),
    ],
)
def test_a_choice_that_makes_no_sense_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=f"^{named}"):
        Chosen(given, namespace="lab")


@needs_helm
@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param({}, "", id="the defaults are all right"),
        pytest.param(CHOICES["everything"], "", id="and so is everything"),
        pytest.param({"controller": {"replica": 2}}, "replica", id="a name that is not there"),
        pytest.param({"controller": {"replicas": "two"}}, "replicas", id="a word for a number"),
    ],
)
def test_helm_refuses_what_makes_no_sense(given: dict[str, Any], named: str) -> None:
    said = refusal(given)
    assert named in said
    assert bool(named) == bool(said)


def test_definitions_and_the_namespace_come_first() -> None:
    kinds = [document["kind"] for document in manifests({}, namespace="lab")]
    crds = kinds.count("CustomResourceDefinition")
    assert set(kinds[:crds]) == {"CustomResourceDefinition"}
    assert kinds[crds] == "Namespace"


def test_every_default_is_explained() -> None:
    assert chart.COMMENTS.keys() == DEFAULTS.keys()


def pod_specs(name: str) -> Iterator[dict[str, Any]]:
    for document in objects(name):
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield document["spec"]["template"]["spec"]


@choices
def test_every_command_understands_the_variables_it_is_given(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file := tmp_path / "file").write_text("{}")
    for spec in pod_specs(name):
        (container,) = spec["containers"]
        context = click.Context(cli)
        found: click.Command = cli
        for argument in container["args"]:
            assert isinstance(found, click.Group)
            command_found = found.get_command(context, argument)
            assert command_found is not None
            found = command_found
        known = {param.envvar for param in found.params}
        for variable in container["env"]:
            assert variable["name"] in known
            value = variable.get("value", "a-name")
            path = value.startswith("/etc/")
            monkeypatch.setenv(variable["name"], str(file) if path else value)
        parsed = found.make_context(argument, [], parent=context).params
        assert parsed["watch_namespace"] == ("" if CHOICES[name].get("allNamespaces") else "lab")
        tls = bool(CHOICES[name].get("certManager"))
        if container["name"] == "dashboard":
            tls = tls or bool(CHOICES[name].get("dashboard", {}).get("tlsSecret"))
        assert "tls_cert" not in parsed or bool(parsed["tls_cert"]) == tls
        for variable in container["env"]:
            monkeypatch.delenv(variable["name"])


@choices
def test_every_process_meets_the_restricted_standard(name: str) -> None:
    for spec in pod_specs(name):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True


@choices
def test_no_volume_is_mounted_inside_another_that_is_read_only(name: str) -> None:
    for spec in pod_specs(name):
        paths = [mount["mountPath"] for c in spec["containers"] for mount in c["volumeMounts"]]
        for path in paths:
            assert not [other for other in paths if other.startswith(f"{path}/")]


@choices
def test_services_select_what_exists_and_name_its_ports(name: str) -> None:
    templates = [
        document["spec"]["template"]
        for document in objects(name)
        if document["kind"] in ("Deployment", "StatefulSet")
    ]
    for service in (d for d in objects(name) if d["kind"] == "Service"):
        wanted = {
            label: value
            for label, value in service["spec"]["selector"].items()
            if not label.startswith("statefulset.") and label != LEADER
        }
        chosen = [t for t in templates if wanted.items() <= t["metadata"]["labels"].items()]
        assert chosen, service["metadata"]["name"]
        ports = {
            port["name"] for t in chosen for c in t["spec"]["containers"] for port in c["ports"]
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_controllers_and_routers_are_evicted_one_at_a_time() -> None:
    budgets = [d for d in objects("nothing") if d["kind"] == "PodDisruptionBudget"]
    assert [b["metadata"]["name"] for b in budgets] == ["bullpen-controller", "bullpen-router"]
    assert {b["spec"]["maxUnavailable"] for b in budgets} == {1}


def test_a_rollout_starts_the_new_replicas_before_it_stops_the_old_ones() -> None:
    deployments = [d for d in objects("nothing") if d["kind"] == "Deployment"]
    assert len(deployments) > 1
    for document in deployments:
        rolling = document["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxUnavailable": 0, "maxSurge": "100%"}


def test_the_service_of_the_controller_selects_the_label_that_its_leader_sets() -> None:
    found = [d for d in objects("nothing") if d["kind"] == "Service"]
    service = next(d for d in found if d["metadata"]["name"] == "bullpen-controller")
    assert service["spec"]["selector"][LEADER] == controller.NAME
    deployment = next(
        d
        for d in objects("nothing")
        if d["kind"] == "Deployment" and d["metadata"]["name"] == "bullpen-controller"
    )
    template = deployment["spec"]["template"]
    assert LEADER not in template["metadata"]["labels"], "a standby must not be selected"
    names = {v["name"]: v for v in template["spec"]["containers"][0]["env"]}
    assert names["BULLPEN_POD"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_one_lab_needs_few_rights_outside_its_namespace() -> None:
    see = {
        "apiGroups": [""],
        "resources": ["namespaces"],
        "resourceNames": ["lab"],
        "verbs": ["list", "watch"],
    }
    classes = {
        "apiGroups": ["device.jumpstarter.dev"],
        "resources": ["deviceclasses"],
        "verbs": ["list", "watch"],
    }
    reviews = {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    }
    own = {
        "apiGroups": ["apiregistration.k8s.io"],
        "resources": ["apiservices"],
        "resourceNames": ["v1alpha1.subresources.virtualtarget.jumpstarter.dev"],
        "verbs": ["get", "patch"],
    }
    tokens = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
    for document in objects("nothing"):
        if document["metadata"]["name"] == "lab-bullpen-controller-api":
            assert document["kind"] == "ClusterRoleBinding" or document["rules"] == [own, tokens]
        elif document["metadata"]["name"] == "lab-bullpen-pools-edit":
            (rule,) = document["rules"]
            assert rule["apiGroups"] == ["subresources.virtualtarget.jumpstarter.dev"]
        elif document["metadata"]["name"] == "lab-bullpen-dashboard-people":
            assert document["kind"] == "ClusterRoleBinding" or document["rules"] == [
                tokens,
                reviews,
                classes,
            ]
        elif document["kind"] == "ClusterRole":
            decides_claims = "controller" in document["metadata"]["name"]
            assert document["rules"] == ([see, reviews, classes] if decides_claims else [see])


def test_every_provisioner_of_this_package_is_listed_with_what_it_needs() -> None:
    found = {item["provisioner"]: item for item in DEFAULTS["provisioners"]}
    assert tuple(found) == plugins.names(distribution="bullpen")
    for name, item in found.items():
        assert item["pods"] == (plugins.load(name).hosts is None), name
    running = [name for name, item in found.items() if item["replicas"]]
    assert running == ["qemu.jumpstarter.dev"]


@pytest.mark.parametrize("name", ["nothing", "everything"])
def test_each_provisioner_has_an_account_with_the_rights_that_it_needs(name: str) -> None:
    found = objects(name)
    for item in CHOICES[name].get("provisioners") or DEFAULTS["provisioners"]:
        account = f"bullpen-provisioner-{item['name']}"
        assert ("ServiceAccount", account) in map(key, found)
        (deployment,) = [d for d in found if key(d) == ("Deployment", account)]
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account
        bound = {
            document["roleRef"]["name"].rpartition("-")[2]
            for document in found
            if document["kind"].endswith("Binding") and "subjects" in document
            if document["subjects"][0]["name"] == account
        }
        own = {"home", "lab"} if name == "everything" else {"home", "lab", "namespace"}
        assert bound == (own | {"pods"} if item.get("pods", True) else own)


def test_a_provisioner_may_have_an_image_of_its_own() -> None:
    images = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]["containers"][0]["image"]
        for document in objects("everything")
        if document["kind"] == "Deployment"
    }
    assert images["bullpen-provisioner-bench"] == "registry.example/with-ssh:1.2.3"
    assert images["bullpen-provisioner-qemu"] == "registry.example/bullpen:1.2.3-a"
    assert images["bullpen-dashboard"] == "registry.example/dashboard:1.2.3"


def test_the_dashboard_reads_and_asks_and_may_do_nothing_else() -> None:
    for name in ("nothing", "everything"):
        granted = [
            (resource, verb)
            for document in objects(name)
            if document["kind"] in ("Role", "ClusterRole")
            and "bullpen-dashboard" in document["metadata"]["name"]
            for rule in document["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
        asks = {("tokenreviews", "create"), ("subjectaccessreviews", "create")}
        assert asks < {*granted}
        assert {verb for resource, verb in {*granted} - asks} == {"get", "list", "watch"}
        assert "secrets" not in {resource for resource, _ in granted}


def test_an_installation_without_a_dashboard_has_nothing_of_it() -> None:
    assert "dashboard" in str(objects("nothing"))
    left = [key(d) for d in objects("the least") if "dashboard" in d["metadata"]["name"]]
    assert left == []


def test_nobody_may_do_everything() -> None:
    for grants in (*rbac.LAB.values(), *rbac.HOME.values(), rbac.DASHBOARD):
        for (group, resource), verbs in grants.items():
            assert "*" not in (group, resource, *verbs)
            assert resource != "pods/exec"


def test_names_of_cluster_wide_objects_say_which_installation_they_are_of() -> None:
    def cluster_wide(namespace: str) -> set[str]:
        found = installed(Chosen({"allNamespaces": True}, namespace=namespace))
        return {d["metadata"]["name"] for d in found if "namespace" not in d["metadata"]}

    assert cluster_wide("one")
    # An API group has one server.
    shared = {"v1alpha1.subresources.virtualtarget.jumpstarter.dev"}
    assert cluster_wide("one") & cluster_wide("two") == shared


def refusal_of(subject: str) -> dict[str, str]:
    """What the admission policy about a subject checks."""
    (policy,) = (
        d
        for d in objects("nothing")
        if d["kind"] == "ValidatingAdmissionPolicy"
        and d["metadata"]["name"].endswith(f"-{subject}")
    )
    (check,) = policy["spec"]["validations"]
    return dict(check)


@pytest.mark.parametrize(
    ("old", "new", "may", "accepted"),
    [
        pytest.param(None, {}, False, True, id="a claim as any other"),
        pytest.param(None, {"adminAccess": False}, False, True, id="without admin access"),
        pytest.param(None, {"adminAccess": True}, False, False, id="with it, without the verb"),
        pytest.param({}, {"adminAccess": True}, False, False, id="changed, without the verb"),
        pytest.param(None, {"adminAccess": True}, True, True, id="with the verb"),
        pytest.param({"adminAccess": True}, {"adminAccess": True}, False, True, id="unchanged"),
    ],
)
def test_a_cluster_refuses_admin_access_without_the_verb(
    old: dict[str, bool] | None, new: dict[str, bool], may: bool, accepted: bool
) -> None:
    check = refusal_of("admin-access")
    right = re.search(r"authorizer\.group.*allowed\(\)", check["expression"])
    assert right is not None
    assert ".check('adminaccess')" in right[0]
    # The authorizer is the API server's; the rest of the expression is evaluated as it is.
    expression = check["expression"].replace(right[0], "may")
    names = ("object", "oldObject", "may")
    program = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN)).compile(expression)
    was = None if old is None else {"spec": old}
    assert holds(program, {"object": {"spec": new}, "oldObject": was, "may": may}) is accepted


@pytest.mark.parametrize(
    ("scale", "accepted"),
    [
        pytest.param({"replicas": 1}, True, id="one"),
        pytest.param({"replicas": 0}, False, id="zero"),
        pytest.param({}, False, id="zero as the API server writes it"),
    ],
)
def test_a_cluster_refuses_to_scale_a_set_to_zero(scale: dict[str, int], accepted: bool) -> None:
    check = refusal_of("scale")
    assert "set spec.paused to true" in check["message"]
    program = cel.NewEnv(variables={"object": cel.Type.DYN}).compile(check["expression"])
    assert holds(program, {"object": {"spec": scale}}) is accepted


@pytest.mark.parametrize(("everywhere", "names"), [(True, None), (False, {"lab"})])
def test_an_admission_policy_applies_where_the_installation_does(
    everywhere: bool, names: set[str] | None
) -> None:
    found = list(installed(Chosen({"allNamespaces": everywhere}, namespace="lab")))
    bindings = [d for d in found if d["kind"] == "ValidatingAdmissionPolicyBinding"]
    policies = [d for d in found if d["kind"] == "ValidatingAdmissionPolicy"]
    assert len(bindings) == len(policies) > 1
    for binding in bindings:
        assert binding["spec"]["policyName"] == binding["metadata"]["name"]
        where = binding["spec"].get("matchResources")
        selected = where and set(where["namespaceSelector"]["matchLabels"].values())
        assert selected == names


def test_each_part_is_a_file_of_its_own() -> None:
    names = [part.name for part in PARTS]
    assert len(names) == len(set(names))
