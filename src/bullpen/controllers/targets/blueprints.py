"""What the members of a set are created from, or what prevents their creation.

Looks at the set, its class and the objects they refer to; asks no backend. A problem is
reported with the path of the field, and remains until an object is changed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bullpen.api import codec
from bullpen.api.kinds import exporterset
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import Identity, VirtualTarget
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.meta import OwnerReference
from bullpen.controllers.exporters.credentials import token_of
from bullpen.controllers.views import Views
from bullpen.core.pools.pool_status import Problem
from bullpen.core.targets import exporter_config, profiles
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Contents, Profile
from bullpen.errors import Cause
from bullpen.provisioners.base import InstanceSpec, Provisioner
from bullpen.runtime.informer import Key, key_of

CAUSES_MAX = 5
"""Problems named in one condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Either part may be None: there may be no class, and a profile may be invalid."""

    profile: Profile | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """What a blueprint was made from."""

    uid: str
    generation: int
    cls: VirtualTargetClass
    secret: Secret | None
    ca_bundle: str | None

    def same(self, other: _Sources) -> bool:
        """Whether nothing has changed: objects of a view are replaced when they change."""
        return (
            (self.uid, self.generation) == (other.uid, other.generation)
            and self.cls is other.cls
            and self.secret is other.secret
            and self.ca_bundle == other.ca_bundle
        )


class Blueprints:
    def __init__(
        self,
        views: Views,
        provisioners: dict[str, Provisioner],
        *,
        ca_pem: str,
        alone: bool = True,
    ) -> None:
        """``alone``: no other process has provisioners, so an unknown provisioner is a problem."""
        self._views = views
        self._providers = views[ProviderConfig]
        self._alone = alone
        self._provisioners = provisioners
        self._ca_pem = ca_pem
        self._known: dict[Key, tuple[_Sources, Blueprint]] = {}

    def of(self, owner: ExporterSet) -> Blueprint:
        """The blueprint of the members of ``owner``."""
        namespace, name = owner.metadata.namespace, owner.spec.virtual_target_class_name
        found = self._views.classes.get(namespace, name)
        if found is None:
            return Blueprint(problem=_no_class(namespace, name))
        made = self._checked(owner, found)
        if made.problem is not None or made.profile is None:
            return made
        return Blueprint(
            profile=made.profile, problem=self._missing(namespace, found, made.profile)
        )

    def of_target(
        self,
        target: VirtualTarget,
        attached: Mapping[str, VirtualDisk | None],
        identity: Identity,
    ) -> Blueprint:
        """The blueprint of a lasting target; ``attached`` are the disks it names."""
        namespace, name = target.metadata.namespace, target.spec.virtual_target_class_name
        found = self._views.classes.get(namespace, name)
        if found is None:
            return Blueprint(problem=_no_class(namespace, name))
        made = profiles.target_profile(target, found, attached, identity)
        problem = self._target_problem(target, found, made)
        return Blueprint(profile=made, problem=problem or self._missing(namespace, found, made))

    def _target_problem(
        self, target: VirtualTarget, found: VirtualTargetClass, made: Profile
    ) -> Problem | None:
        provisioner = self._provisioners.get(made.provisioner)
        if provisioner is None:
            return self._unknown(found, made) if self._alone else None
        said = [
            _said(cause, target.spec.parameters, "", found) for cause in provisioner.check(made)
        ]
        return Problem(reason="InvalidParameters", message=_listed(said)) if said else None

    def _unknown(self, found: VirtualTargetClass, made: Profile) -> Problem:
        known = ", ".join(sorted(self._provisioners)) or "none"
        text = f"{_class(found)}: spec.provisioner: {made.provisioner} is not available"
        return Problem(reason="ProvisionerNotFound", message=f"{text}; available: {known}")

    def provisioner(self, owner: ExporterSet) -> str | None:
        """The provisioner of ``owner``'s members; None without a class."""
        namespace, name = owner.metadata.namespace, owner.spec.virtual_target_class_name
        found = self._views.classes.get(namespace, name)
        return found.spec.provisioner if found is not None else None

    def _checked(self, owner: ExporterSet, found: VirtualTargetClass) -> Blueprint:
        """The part that depends on set, class and what it refers to, computed once for each."""
        key, sources = key_of(owner), self._sources(owner, found)
        known = self._known.get(key)
        if known is not None and known[0].same(sources):
            return known[1]
        contents = Contents(secret=sources.secret, ca_bundle=sources.ca_bundle)
        made = profiles.profile(owner, found, contents)
        blueprint = Blueprint(profile=made, problem=self._problem(owner, found, made))
        self._known[key] = (sources, blueprint)
        return blueprint

    def _sources(self, owner: ExporterSet, found: VirtualTargetClass) -> _Sources:
        meta, spec = owner.metadata, found.spec
        secret, bundle = spec.credentials_secret_ref, spec.ca_bundle_config_map_ref
        configmap = self._views.configmaps.get(meta.namespace, bundle.name) if bundle else None
        return _Sources(
            uid=meta.uid,
            generation=meta.generation,
            cls=found,
            secret=self._views.secrets.get(meta.namespace, secret.name) if secret else None,
            ca_bundle=configmap.data.get(bundle.key) if configmap and bundle else None,
        )

    def _problem(
        self, owner: ExporterSet, found: VirtualTargetClass, made: Profile
    ) -> Problem | None:
        provisioner = self._provisioners.get(made.provisioner)
        if provisioner is None and not self._alone:
            return None
        if provisioner is None:
            return self._unknown(found, made)
        twice = exporter_config.duplicates(made.drivers)
        if twice:
            text = f"spec.template.spec.drivers: several drivers are named {', '.join(twice)}"
            return Problem(reason="InvalidTemplate", message=text)
        # In a cluster, no other admission compares the template with what members may be.
        wrong = tuple(exporterset.template_causes(codec.encode(owner)))
        if wrong:
            said = [f"{cause.field}: {cause.message}" for cause in wrong]
            return Problem(reason="InvalidTemplate", message=_listed(said))
        causes = provisioner.check(made)
        if causes:
            said = [_said_of_set(cause, owner.spec, found) for cause in causes]
            return Problem(reason="InvalidParameters", message=_listed(said))
        return None

    def _missing(self, namespace: str, found: VirtualTargetClass, made: Profile) -> Problem | None:
        """The objects that the class refers to and that do not exist."""
        if made.credentials and self._views.secrets.get(namespace, made.credentials) is None:
            text = f"{_class(found)}: spec.credentialsSecretRef.name: the Secret does not exist"
            return Problem(reason="SecretNotFound", message=text)
        if made.provider and self._providers.get(namespace, made.provider) is None:
            text = (
                f"{_class(found)}: spec.providerConfigRef.name: the ProviderConfig does not exist"
            )
            return Problem(reason="ProviderConfigNotFound", message=text)
        if made.ca_bundle is not None and self._bundle(namespace, made) is None:
            text = (
                f"{_class(found)}: spec.caBundleConfigMapRef: the ConfigMap or key does not exist"
            )
            return Problem(reason="ConfigMapNotFound", message=text)
        return None

    def _bundle(self, namespace: str, made: Profile) -> str | None:
        if made.ca_bundle is None:
            return self._ca_pem
        found = self._views.configmaps.get(namespace, made.ca_bundle.name)
        return found.data.get(made.ca_bundle.key) if found else None

    def token(self, exporter: Exporter) -> str:
        """The current token of an exporter; empty if it has none yet."""
        reference = exporter.status.credential
        if reference is None:
            return ""
        return token_of(self._views.secrets.get(exporter.metadata.namespace, reference.name))

    def spec(self, exporter: Exporter, made: Profile, token: str) -> InstanceSpec:
        """The spec of the instance behind ``exporter``. Contains secrets."""
        namespace, uid = exporter.metadata.namespace, exporter.metadata.uid
        if made.identity is None:
            # A member keeps its identity over restarts, and none has that of an earlier member.
            made = replace(made, identity=profiles.identity(uid))
        return InstanceSpec(
            key=key_of(exporter),
            owner_uid=uid,
            profile=made,
            connection=Connection(
                endpoint=exporter.status.endpoint,
                token=token,
                ca_pem=self._bundle(namespace, made) or "",
            ),
            credentials=self._credentials(namespace, made),
        )

    def _credentials(self, namespace: str, made: Profile) -> dict[str, bytes]:
        secret = self._views.secrets.get(namespace, made.credentials) if made.credentials else None
        return {key: base64.b64decode(text) for key, text in secret.data.items()} if secret else {}

    def owner(self, exporter: Exporter) -> ExporterSet | None:
        """The set an exporter is a member of."""
        reference = owner_of(exporter)
        if reference is None:
            return None
        found = self._views.sets.get(exporter.metadata.namespace, reference.name)
        return found if found is not None and found.metadata.uid == reference.uid else None


def owner_of(exporter: Exporter) -> OwnerReference | None:
    """The reference to the set that controls an exporter."""
    return next(
        (
            reference
            for reference in exporter.metadata.owner_references
            if reference.controller
            and reference.kind == ExporterSet.kind
            and reference.api_version == ExporterSet.api_version
        ),
        None,
    )


def _listed(said: Sequence[str]) -> str:
    more = f"; and {len(said) - CAUSES_MAX} more" if len(said) > CAUSES_MAX else ""
    return "; ".join(said[:CAUSES_MAX]) + more


def _class(found: VirtualTargetClass) -> str:
    return f"VirtualTargetClass {found.metadata.name}"


def _no_class(namespace: str, name: str) -> Problem:
    text = f"spec.virtualTargetClassName: VirtualTargetClass {name} does not exist"
    return Problem(reason="VirtualTargetClassNotFound", message=f"{text} in namespace {namespace}")


def _said_of_set(cause: Cause, spec: ExporterSetSpec, found: VirtualTargetClass) -> str:
    """A problem with the path of its field; parameters of a target may be those of the set."""
    where = "template.spec."
    head, _, path = cause.field.partition("].")
    index = head.removeprefix("targets[")
    if not (path and index.isdigit()):
        return _said(cause, spec.parameters, where, found)
    own = spec.template.spec.targets[int(index)].parameters
    if path.startswith("parameters") and _first(path) not in own:
        return _said(replace(cause, field=path), spec.parameters, where, found)
    return f"spec.{where}{cause.field}: {cause.message}"


def _said(
    cause: Cause, own: Mapping[str, object], drivers_at: str, found: VirtualTargetClass
) -> str:
    """A problem with the path of its field: in the owner if that has the field, else the class."""
    path = cause.field
    if path.startswith(("drivers", "targets")):
        return f"spec.{drivers_at}{path}: {cause.message}"
    if _first(path) in own:
        return f"spec.{path}: {cause.message}"
    return f"{_class(found)}: spec.{path}: {cause.message}"


def _first(path: str) -> str:
    """The parameter that the path of a problem begins with."""
    return path.removeprefix("parameters").lstrip(".").partition(".")[0].partition("[")[0]
