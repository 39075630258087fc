"""Creates the token of every Client and Exporter, and deletes it with the object.

A Secret that is missing or invalid is created again, which is how tokens are rotated. Only
the token in the Secret is valid, so replacing it revokes the old one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import LocalObjectReference, ObjectMeta, OwnerReference
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.controllers.views import Views
from bullpen.errors import AlreadyExists, Conflict, NotFound, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.subjects import Role, Subject
from bullpen.identity.tokens import Signer, expiry
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.runtime.events import Events
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome

Holder = tuple[Role, str, str]
"""Role, namespace and name of the credential's holder."""


def token_of(secret: Secret | None) -> str:
    """The token in a credential Secret; empty if there is none."""
    if secret is None:
        return ""
    try:
        return base64.b64decode(secret.data.get("token", ""), validate=True).decode()
    except ValueError:
        return ""


def subject_of(role: Role, value: Client | Exporter) -> Subject:
    meta = value.metadata
    return subjects.subject(
        role,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        annotations=meta.annotations,
    )


class CredentialReconciler:
    """Reconciles the Secret and the endpoint of one client or exporter."""

    name = "credentials"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        signer: Signer,
        endpoint: str,
        clock: Clock,
        ids: Ids,
        events: Events,
    ) -> None:
        self._objects = objects
        self._views = views
        self._signer = signer
        self._endpoint = endpoint
        self._clock = clock
        self._ids = ids
        self._events = events

    async def reconcile(self, holder: Holder) -> Outcome:
        role, namespace, name = holder
        view = self._views.clients if role is Role.CLIENT else self._views.exporters
        value: Client | Exporter | None = view.get(namespace, name)
        if value is None or value.metadata.deletion_timestamp is not None:
            return Outcome()
        secret = await self._ensure_secret(role, value)
        if secret is not None:
            await self._ensure_status(value, secret)
        return Outcome()

    async def rotate(self, role: Role, value: Client | Exporter) -> str:
        """Replace the token now; the old one stops working at once."""
        name = subjects.secret_name(role, value.metadata.name)
        token = self._issue(role, value)
        found = self._views.secrets.get(value.metadata.namespace, name)
        if found is None:
            written = await self._objects.create(self._secret(role, value, token))
        else:
            written = await self._objects.update(replace(found, data=_data(token)))
        self._views.secrets.observe(written)
        self._events.emit(value, reason="CredentialRotated", message=f"new token in {name}")
        return token

    async def _ensure_secret(self, role: Role, value: Client | Exporter) -> Secret | None:
        """The Secret of a holder; None if the holder is gone, as its Secret would be deleted."""
        name = subjects.secret_name(role, value.metadata.name)
        found = self._views.secrets.get(value.metadata.namespace, name)
        if found is not None and self._fits(role, value, found):
            return found
        if not await self._is_there(value):
            return None
        token = self._issue(role, value)
        try:
            if found is None:
                written = await self._objects.create(self._secret(role, value, token))
            else:
                fresh = self._secret(role, value, token)
                meta = replace(found.metadata, owner_references=fresh.metadata.owner_references)
                written = await self._objects.update(replace(found, metadata=meta, data=fresh.data))
        except (AlreadyExists, NotFound):
            # The view of the Secret is stale; the change it has not seen starts a new pass.
            raise Conflict(f"secret {name} changed in the meantime") from None
        self._views.secrets.observe(written)
        self._events.emit(value, reason="CredentialCreated", message=f"token in secret {name}")
        return written

    async def _is_there(self, value: Client | Exporter) -> bool:
        """Whether a holder exists: the view of holders may lag behind the view of Secrets."""
        try:
            now = await self._objects.get(type(value), *key_of(value))
        except NotFound:
            return False
        return now.metadata.uid == value.metadata.uid

    def _fits(self, role: Role, value: Client | Exporter, secret: Secret) -> bool:
        try:
            claims = self._signer.verify(token_of(secret), now=self._clock.now())
        except Unauthorized:
            return False
        owned = any(ref.uid == value.metadata.uid for ref in secret.metadata.owner_references)
        return owned and claims.subject == subject_of(role, value)

    def _issue(self, role: Role, value: Client | Exporter) -> str:
        now = self._clock.now()
        return self._signer.issue(subject_of(role, value), token_id=self._ids.uid(), now=now)

    def _secret(self, role: Role, value: Client | Exporter, token: str) -> Secret:
        meta = value.metadata
        owner = OwnerReference(
            api_version=value.api_version,
            kind=value.kind,
            name=meta.name,
            uid=meta.uid,
            controller=True,
            block_owner_deletion=True,
        )
        return Secret(
            metadata=ObjectMeta(
                name=subjects.secret_name(role, meta.name),
                namespace=meta.namespace,
                owner_references=(owner,),
            ),
            type="Opaque",
            data=_data(token),
        )

    async def _ensure_status(self, value: Client | Exporter, secret: Secret) -> None:
        credential = LocalObjectReference(name=secret.metadata.name)
        if isinstance(value, Client):
            await change_status(
                self._objects,
                self._views.clients,
                value,
                lambda client: replace(
                    client.status,
                    credential=credential,
                    endpoint=self._endpoint,
                    token_expires_at=expiry(token_of(secret)),
                ),
            )
        else:
            await change_status(
                self._objects,
                self._views.exporters,
                value,
                lambda exporter: replace(
                    exporter.status, credential=credential, endpoint=self._endpoint
                ),
            )


def _data(token: str) -> dict[str, str]:
    return {"token": base64.b64encode(token.encode()).decode()}


def watch_holders(views: Views, add: Callable[[Holder], None]) -> None:
    """Start a pass for each holder whose object or Secret changed."""

    def client(old: Client | None, new: Client | None) -> None:
        if new is not None:
            add((Role.CLIENT, new.metadata.namespace, new.metadata.name))

    def exporter(old: Exporter | None, new: Exporter | None) -> None:
        if new is not None and (old is None or _credential(old) != _credential(new)):
            add((Role.EXPORTER, new.metadata.namespace, new.metadata.name))

    def secret(old: Secret | None, new: Secret | None) -> None:
        value = new or old
        assert value is not None
        for role in Role:
            name = value.metadata.name.removesuffix(f"-{role.lower()}")
            if name != value.metadata.name:
                add((role, value.metadata.namespace, name))

    views.clients.listen(client)
    views.exporters.listen(exporter)
    views.secrets.listen(secret)


def _credential(exporter: Exporter) -> tuple[object, ...]:
    """The inputs of a credential; an exporter's status changes far more often."""
    status, meta = exporter.status, exporter.metadata
    return status.credential, status.endpoint, meta.uid, meta.annotations, meta.deletion_timestamp
