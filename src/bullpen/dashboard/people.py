"""Who a signed-in person is, what they see, and as which clients they may act.

Rights are those of the API server (RBAC) and of Jumpstarter's services: a client sees the
exporters, leases and claims of its namespace, as the calls of clients list them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bullpen.api.fields import Kind
from bullpen.api.kinds.client import GROUP_VERSION as JUMPSTARTER
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import GROUP_VERSION as CLAIMS
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION as VIRTUAL_TARGETS
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.apiserver.authentication import Authenticator, user_of_token
from bullpen.controllers.exporters.credentials import subject_of
from bullpen.controllers.views import Views
from bullpen.core.rbac.authorization import Attributes, User
from bullpen.dashboard.rows import CLAIM, LEASE, POOL, PROVIDER, TARGET
from bullpen.dashboard.sessions import Session
from bullpen.identity import subjects
from bullpen.identity.serviceaccounts import API_AUDIENCE
from bullpen.identity.subjects import Role

CLIENTS_MAX = 200
"""Clients that a person is offered to act as."""

ADMINISTRATOR = "default"
"""The client that ``bullpen up`` makes for the user who runs it."""

ASKED_MAX = 200
"""Clients of others about whose token alone is asked whether a person may read it."""

Allows = Callable[[User, Attributes], Awaitable[bool]]
"""Whether a user may make a request of the API server."""

JUMPSTARTER_GROUP = JUMPSTARTER.partition("/")[0]
CLAIMS_GROUP = CLAIMS.partition("/")[0]
POOLS_GROUP = VIRTUAL_TARGETS.partition("/")[0]

RESOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    TARGET: ((JUMPSTARTER_GROUP, "exporters"),),
    LEASE: ((JUMPSTARTER_GROUP, "leases"),),
    CLAIM: ((CLAIMS_GROUP, "deviceclaims"),),
    POOL: ((POOLS_GROUP, "exportersets"), (POOLS_GROUP, "virtualtargetpools")),
    PROVIDER: ((POOLS_GROUP, "providerconfigs"),),
}
"""What a person must be allowed to list and watch to see rows of each kind."""

SHOWN: tuple[type[Kind], ...] = (
    Exporter,
    Lease,
    DeviceClaim,
    ExporterSet,
    VirtualTargetPool,
    ProviderConfig,
)
"""The kinds that have rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An authenticated caller of the dashboard."""

    user: User
    clients: tuple[Client, ...] = ()
    """The clients that this person is, by token or ``spec.username``."""

    session: Session | None = None
    """None while the person signs in."""

    token: str = field(default="", repr=False)

    def client(self, namespace: str, name: str) -> Client | None:
        """The client of this name, if the person is that client."""
        return next(
            (
                found
                for found in self.clients
                if (found.metadata.namespace, found.metadata.name) == (namespace, name)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """Which namespaces a person sees, by kind of row."""

    everywhere: frozenset[str]
    """Kinds that are seen in all namespaces."""

    namespaces: frozenset[tuple[str, str]]
    """Kinds and namespaces."""

    @property
    def digest(self) -> str:
        """Tells this scope from others, in a text of fixed length."""
        content = repr((sorted(self.everywhere), sorted(self.namespaces)))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sees_any(self, kind: str) -> bool:
        return kind in self.everywhere or any(found == kind for found, _ in self.namespaces)

    def sees(self, kind: str, namespace: str) -> bool:
        return kind in self.everywhere or (kind, namespace) in self.namespaces


class People:
    def __init__(
        self, views: Views, allows: Allows, authenticators: tuple[Authenticator, ...]
    ) -> None:
        self._views = views
        self._allows = allows
        self._authenticators = authenticators
        self._shown = tuple(views[kind] for kind in SHOWN)

    async def identify(self, token: str, session: Session | None = None) -> Person | None:
        """The owner of a token; None if it is not valid, or no longer."""
        user = await user_of_token(token, self._authenticators, frozenset({API_AUDIENCE}))
        if user is None:
            return None
        return Person(user=user, clients=self._clients_of(user), session=session, token=token)

    def _clients_of(self, user: User) -> tuple[Client, ...]:
        return tuple(
            client
            for client in self._views.clients.all()
            if user.name
            in subjects.usernames(subject_of(Role.CLIENT, client), client.spec.username)
        )

    async def may(self, person: Person, wanted: Attributes) -> bool:
        return await self._allows(person.user, wanted)

    async def scope(self, person: Person) -> Scope:
        everywhere = {kind for kind in RESOURCES if await self._lists(person, kind, "")}
        found = {
            (kind, client.metadata.namespace)
            for client in person.clients
            for kind in (TARGET, LEASE, CLAIM)
        }
        for kind in RESOURCES.keys() - everywhere:
            for name in self._inhabited():
                if (kind, name) not in found and await self._lists(person, kind, name):
                    found.add((kind, name))
        return Scope(frozenset(everywhere), frozenset(found))

    def _inhabited(self) -> list[str]:
        """The namespaces that have anything to show."""
        return sorted({name for view in self._shown for name in view.namespaces()})

    async def _lists(self, person: Person, kind: str, namespace: str) -> bool:
        for group, resource in RESOURCES[kind]:
            for verb in ("list", "watch"):
                wanted = Attributes(verb=verb, group=group, resource=resource, namespace=namespace)
                if not await self.may(person, wanted):
                    return False
        return True

    async def may_act_as(self, person: Person, namespace: str, name: str) -> bool:
        """Whether the person is this client, or could use its token anyway."""
        if person.client(namespace, name) is not None:
            return True
        return await self._reads_secret(person, namespace, subjects.secret_name(Role.CLIENT, name))

    async def _reads_secret(self, person: Person, namespace: str, name: str = "") -> bool:
        """Whether the person may read one Secret; without a name, every one of the namespace."""
        wanted = Attributes(verb="get", resource="secrets", namespace=namespace, name=name)
        return await self.may(person, wanted)

    async def acting_clients(self, person: Person) -> list[Client]:
        """The clients a person may act as, their own first; at most ``CLIENTS_MAX``.

        Of others', the one that a service makes for its administrator comes first.

        Rights to single Secrets are looked for at the first ``ASKED_MAX`` clients only.
        """
        found = list(person.clients)
        known = {id(client) for client in found}
        others: Iterable[Client] = sorted(
            (client for client in self._views.clients.all() if id(client) not in known),
            key=lambda client: (
                client.metadata.name != ADMINISTRATOR,
                client.metadata.namespace,
                client.metadata.name,
            ),
        )
        reads_all: dict[str, bool] = {}
        asked = 0
        for client in others:
            if len(found) >= CLIENTS_MAX:
                break
            namespace = client.metadata.namespace
            if namespace not in reads_all:
                reads_all[namespace] = await self._reads_secret(person, namespace)
            if not reads_all[namespace]:
                asked += 1
                if asked > ASKED_MAX or not await self.may_act_as(
                    person, namespace, client.metadata.name
                ):
                    continue
            found.append(client)
        return found[:CLIENTS_MAX]
