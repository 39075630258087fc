"""A workload as Kubernetes objects: its Pod, and the Secret with its exporter's config. Pure.

The exporter is the Pod's main container; the runtime of its target is a sidecar that starts
before it. Neither runs as root, can become root, or has a token for the API server.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from bullpen.api import codec
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.virtualtargetclass import Image, ResourceRequirements, Scheduling
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.paths import Document, encode
from bullpen.api.pod import MANAGED_BY, MANAGER, Pod
from bullpen.core.targets.profiles import ProfileDisk
from bullpen.errors import Refused
from bullpen.placements.base import Artifact, Needs, Site, Workload
from bullpen.placements.pod import names

USER = 65532
"""An unprivileged user; the same in both containers, so that they can share files."""

GRACE_SECONDS = 20
"""Time from the stop request to the kill; an exporter needs a second or two."""

PROBES_MAX = 3600
"""Seconds an exporter may take to register before its node gives up; the pool does earlier."""

KVM_SUFFIX = "/kvm"
"""Extended resources with this suffix provide the KVM device, whatever their vendor."""

EXPORTER_BYTES = 160 << 20
EXPORTER_RESOURCES: Document = {
    "requests": {"cpu": "50m", "memory": str(EXPORTER_BYTES)},
    "limits": {"memory": "1Gi"},
}
"""Used beside a runtime, which gets the resources of the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The operator's settings for all Pods."""

    exporter_image: str
    runtime_images: Mapping[str, str] = field(default_factory=dict)
    """By runtime, such as ``qemu``."""

    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    """Service account of the Pods. They get no token in any case."""


def site(workload: Workload) -> Site:
    """Where a workload's files will be, and what its machine can use."""
    needs = workload.needs
    kvm = any(name.endswith(KVM_SUFFIX) for name in _resources(workload).get("limits", {}))
    return Site(
        artifacts={artifact: _place(artifact) for artifact in needs.artifacts},
        kvm=bool(needs.kvm_for) and kvm,
        launcher=str(names.LAUNCHER_SOCKET) if needs.runtime else "",
        disks={disk.name: Path(_disk_file(disk)) for disk in _lasting(workload)},
    )


def _lasting(workload: Workload) -> list[ProfileDisk]:
    """The lasting disks of a workload; shared images are artifacts."""
    return [disk for disk in workload.spec.profile.disks if disk.image is None]


def _disk_file(disk: ProfileDisk) -> PurePosixPath:
    return names.LASTING / disk.name / names.DISK_FILE


def _place(artifact: Artifact) -> Path:
    """An artifact with a path is in the runtime's image; one with a digest is fetched."""
    if artifact.path:
        return Path(artifact.path)
    return Path(names.CACHE) / "sha256" / artifact.digest.removeprefix("sha256:")


def config_secret(workload: Workload) -> Secret:
    """The exporter's config, which is deleted with its Exporter."""
    config = workload.config(site(workload))
    name = names.secret_name(workload.key[1])
    return Secret(
        metadata=_metadata(workload, name),
        data=encoded({**workload.granted, names.CONFIG_KEY: config}),
    )


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Files as the data of a Secret."""
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def pod(workload: Workload, settings: PodSettings) -> Pod:
    """The Pod of an instance. Raises ``Refused`` for an impossible workload."""
    if workload.spec.profile.retain:
        raise Refused(
            "reclaimPolicy Retain is not supported in a cluster: the disks of a Pod go with it;"
            " use Delete, and a log collector for what it prints"
        )
    profile = workload.spec.profile
    scheduling = profile.scheduling or Scheduling()
    pull_secrets = [secret.name for secret in profile.images.pull_secrets]
    spec: Document = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [
            {"name": name} for name in dict.fromkeys((*pull_secrets, *settings.pull_secrets))
        ],
        "nodeSelector": dict(scheduling.node_selector),
        "affinity": dict(scheduling.affinity),
        "tolerations": [codec.encode(found) for found in scheduling.tolerations],
        "securityContext": pod_security(),
        "initContainers": list(_before(workload, settings)),
        "containers": [_exporter(workload, settings)],
        "volumes": list(_volumes(workload)),
    }
    return Pod(
        metadata=_metadata(workload, workload.key[1]),
        spec={name: value for name, value in spec.items() if value not in ("", [], {})},
    )


def _metadata(workload: Workload, name: str) -> ObjectMeta:
    namespace, exporter = workload.key
    return ObjectMeta(
        name=name,
        namespace=namespace,
        labels={
            **workload.spec.profile.labels,
            MANAGED_BY: MANAGER,
            names.PROVISIONER: workload.spec.profile.provisioner,
        },
        owner_references=(
            OwnerReference(
                api_version=Exporter.api_version,
                kind=Exporter.kind,
                name=exporter,
                uid=workload.spec.owner_uid,
                controller=True,
                block_owner_deletion=True,
            ),
        ),
    )


def _before(workload: Workload, settings: PodSettings) -> Iterator[Document]:
    """Containers that start before the exporter: preparation of files, then the runtime."""
    if not workload.needs.runtime:
        return
    lasting = _lasting(workload)
    fetched = [
        {"url": artifact.url, "digest": artifact.digest}
        for artifact in workload.needs.artifacts
        if artifact.url
    ]
    fetched += [
        # Only the first start of a disk needs its image.
        {"url": disk.source.url, "digest": disk.source.digest, "unless": str(_disk_file(disk))}
        for disk in lasting
        if disk.source is not None and disk.source.url
    ]
    volumes = [_mount("shared", names.SHARED), *map(_disk_mount, lasting)]
    yield {
        "name": names.PREPARE,
        **_image(workload.spec.profile.images.exporter, settings.exporter_image),
        "command": ["python", "-m", "bullpen.placements.pod.preparation"],
        "args": [encode(item).decode() for item in fetched],
        "resources": EXPORTER_RESOURCES,
        "securityContext": container_security(),
        "volumeMounts": volumes,
    }
    image = settings.runtime_images.get(workload.needs.runtime, "")
    if lasting:
        yield {
            "name": names.DISKS,
            **_image(workload.spec.profile.images.runtime, image),
            "command": ["python3", str(names.DISK_CONTENT)],
            "args": [encode(_content(disk)).decode() for disk in lasting],
            "resources": EXPORTER_RESOURCES,
            "terminationMessagePolicy": "File",
            "securityContext": container_security(),
            "volumeMounts": volumes,
        }
    yield {
        "name": names.RUNTIME,
        **_image(workload.spec.profile.images.runtime, image),
        "restartPolicy": "Always",
        "command": ["python3", str(names.LAUNCHER), str(names.LAUNCHER_SOCKET)],
        "env": [{"name": "TMPDIR", "value": str(names.SHARED / names.TEMPORARY)}],
        "resources": _resources(workload),
        "startupProbe": _probe("-S", names.LAUNCHER_SOCKET, "the machine is not ready yet"),
        "securityContext": container_security(),
        "volumeMounts": volumes,
    }


def _content(disk: ProfileDisk) -> Document:
    """What ``disk_content`` is told about a disk."""
    told: Document = {"path": str(_disk_file(disk)), "size": disk.size_bytes}
    if disk.source is None:
        return told
    image = Artifact(path=disk.source.path, url=disk.source.url, digest=disk.source.digest)
    return {**told, "source": str(_place(image)), "format": disk.source.format.value}


def _disk_mount(disk: ProfileDisk) -> Document:
    return _mount(_disk_volume(disk), names.LASTING / disk.name)


def _disk_volume(disk: ProfileDisk) -> str:
    return f"disk-{disk.name}"


def _exporter(workload: Workload, settings: PodSettings) -> Document:
    runtime = bool(workload.needs.runtime)
    place = names.SHARED if runtime else names.WORK
    profile = workload.spec.profile
    flags = {"--single-use": profile.single_use, "--lasting": profile.keep}
    options = [flag for flag, is_set in flags.items() if is_set]
    mounts = [
        _mount("config", names.CONFIG, read_only=True),
        _mount("podinfo", names.ABOUT, read_only=True),
        _mount("work", names.WORK),
    ]
    if workload.spec.profile.credentials:
        mounts.append(_mount("credentials", names.CREDENTIALS, read_only=True))
    if workload.granted:
        mounts.append(_mount("granted", names.GRANTED, read_only=True))
    if runtime:
        mounts += [_mount("shared", names.SHARED), *map(_disk_mount, _lasting(workload))]
    return {
        "name": names.EXPORTER,
        **_image(workload.spec.profile.images.exporter, settings.exporter_image),
        "command": ["python", "-m", "bullpen.placements.pod.exporter"],
        "args": [str(names.CONFIG / names.CONFIG_KEY), *options],
        "workingDir": str(names.WORK),
        "env": [
            {"name": "TMPDIR", "value": str(place / names.TEMPORARY)},
            {"name": "XDG_RUNTIME_DIR", "value": str(place / names.SOCKETS)},
            {"name": "HOME", "value": str(names.WORK)},
        ],
        "resources": EXPORTER_RESOURCES if runtime else _resources(workload),
        "startupProbe": _probe("-e", names.READY, "the exporter is not ready yet"),
        "terminationMessagePolicy": "File",
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _volumes(workload: Workload) -> Iterator[Document]:
    name = names.secret_name(workload.key[1])
    yield {"name": "config", "secret": {"secretName": name, "defaultMode": 0o440}}
    about = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    yield {"name": "podinfo", "downwardAPI": {"items": [about]}}
    yield {"name": "work", "emptyDir": {}}
    if workload.spec.profile.credentials:
        secret = {"secretName": workload.spec.profile.credentials, "defaultMode": 0o440}
        yield {"name": "credentials", "secret": secret}
    if workload.granted:
        items = [{"key": key, "path": key} for key in sorted(workload.granted)]
        secret = {"secretName": name, "items": items, "defaultMode": 0o440}
        yield {"name": "granted", "secret": secret}
    if workload.needs.runtime:
        yield {"name": "shared", "emptyDir": {}}
        for disk in _lasting(workload):
            claim = {"claimName": disk.key[1]}
            yield {"name": _disk_volume(disk), "persistentVolumeClaim": claim}


def _image(chosen: Image | None, usual: str) -> Document:
    """The image of the class or set, else the default. Raises ``Refused`` if there is none."""
    image = (chosen.image if chosen else "") or usual
    if not image:
        raise Refused("there is no image for the target's runtime; name one in images.runtime")
    policy = chosen.image_pull_policy if chosen else None
    return {"image": image, **({"imagePullPolicy": policy.value} if policy else {})}


def _resources(workload: Workload) -> Document:
    """The resources of the class; missing ones are derived from the needs of the target.

    Without a request Kubernetes uses the limit as the request, so a limit is never
    contradicted.
    """
    scheduling = workload.spec.profile.scheduling
    given = (scheduling.resources if scheduling else None) or ResourceRequirements()
    needs = workload.needs
    # An exporter that is alone in its Pod shares its memory with no other.
    memory = needs.memory_bytes if needs.runtime else max(needs.memory_bytes, EXPORTER_BYTES)
    needed = {"cpu": f"{max(1, round(needs.cpus * 1000))}m", "memory": str(memory)}
    implied = {name: value for name, value in needed.items() if name not in given.limits}
    resources: Document = {"requests": {**implied, **given.requests}}
    limits = {**_most(needs, given), **given.limits}
    if limits:
        resources["limits"] = limits
    if given.claims:
        resources["claims"] = [codec.encode(claim) for claim in given.claims]
    return resources


def _most(needs: Needs, given: ResourceRequirements) -> Document:
    """The requests of the class are also the limits, unless the class sets limits itself.

    A limit below a request of the class would be rejected.
    """
    if not needs.memory_bytes_max or "memory" in given.requests:
        return {}
    return {"memory": str(needs.memory_bytes_max)}


def pod_security() -> Document:
    """The security context of all our Pods, of targets and others."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Document:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }


def _mount(name: str, path: object, *, read_only: bool = False) -> Document:
    return {"name": name, "mountPath": str(path), **({"readOnly": True} if read_only else {})}


def _probe(kind: str, path: object, missing: str) -> Document:
    """Checks until the file exists, then never again: hundreds of Pods share a node.

    ``missing`` is what its warnings say until then.
    """
    return {
        "exec": {"command": ["sh", "-c", f"test {kind} {path} || {{ echo {missing}; exit 1; }}"]},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": PROBES_MAX,
    }
