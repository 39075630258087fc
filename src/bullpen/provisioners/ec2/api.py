"""Calls of EC2: botocore, in threads.

aiobotocore would need no threads, but demands one of three older versions of botocore. boto3 adds
nothing that is used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import botocore.session
from botocore.config import Config
from botocore.credentials import DeferredRefreshableCredentials, create_assume_role_refresher
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from bullpen.core.targets.backends import GRANT_HOLDS
from bullpen.provisioners.ec2.failures import ApiError
from bullpen.provisioners.ec2.parameters import AssumeRole, Ec2Account
from bullpen.provisioners.provider import Backend

CONNECT_SECONDS_MAX = 5
ANSWER_SECONDS_MAX = 30
READ_ATTEMPTS_MAX = 3
THREADS_MAX = 16
CLIENTS_MAX = 64
"""Accounts, and credentials of them, for which clients are kept."""

SESSION_NAME = "bullpen"
ROLE_SECONDS = 3600
"""How long a session of a role holds: the most that every role allows. It is renewed in time."""

READS = ("describe_", "get_")


class Api(Protocol):
    """The calls of one account and region."""

    async def call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """Raises ``ApiError``."""

    async def session(self, policy: str) -> Mapping[str, str]:
        """Temporary credentials that may do what the policy says. Raises ``ApiError``."""


class Connect(Protocol):
    def __call__(self, backend: Backend, account: Ec2Account) -> Api:
        """The calls of a backend, with its credentials as they are now."""


class BotocoreApis:
    """Clients by account and credentials: a rotated Secret takes effect with the next call."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="ec2")
        self._made: dict[str, BotocoreApi] = {}

    def __call__(self, backend: Backend, account: Ec2Account) -> BotocoreApi:
        credentials = dict(backend.credentials())
        facts = repr((backend.endpoint, account, sorted(credentials.items())))
        key = hashlib.sha256(facts.encode()).hexdigest()
        if key not in self._made:
            while len(self._made) >= CLIENTS_MAX:
                del self._made[next(iter(self._made))]
            self._made[key] = BotocoreApi(backend.endpoint, account, credentials, self._threads)
        return self._made[key]


class BotocoreApi:
    """One account and region."""

    def __init__(
        self,
        endpoint: str,
        account: Ec2Account,
        credentials: Mapping[str, bytes],
        threads: ThreadPoolExecutor,
    ) -> None:
        """``credentials``: if empty, those that botocore finds, such as the role of a Pod."""
        self._endpoint = endpoint or None
        self._account = account
        self._credentials = credentials
        self._threads = threads
        self._clients: dict[bool, Any] = {}
        self._making = threading.Lock()

    async def call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, operation, parameters)

    async def session(self, policy: str) -> Mapping[str, str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._limited, policy)

    def _limited(self, policy: str) -> Mapping[str, str]:
        """A role is assumed again with the policy; a user of the account gets a federated token."""
        role = self._account.assume_role
        with _own_errors():
            client = self._own_session().create_client("sts", **self._settings(READ_ATTEMPTS_MAX))
            if role is None:
                seconds = int(GRANT_HOLDS.total_seconds())
                answer = client.get_federation_token(
                    Name=SESSION_NAME, Policy=policy, DurationSeconds=seconds
                )
            else:
                wanted = _assumed(role)
                answer = client.assume_role(**wanted, Policy=policy, DurationSeconds=ROLE_SECONDS)
        found: Mapping[str, str] = answer["Credentials"]
        return found

    def _call(self, operation: str, parameters: dict[str, Any]) -> Mapping[str, Any]:
        with _own_errors():
            client = self._client(reads=operation.startswith(READS))
            answer: Mapping[str, Any] = getattr(client, operation)(**parameters)
        return answer

    def _client(self, *, reads: bool) -> Any:
        """Only reads are repeated here: the callers of the others know when, and back off."""
        with self._making:
            if reads not in self._clients:
                attempts = READ_ATTEMPTS_MAX if reads else 1
                self._clients[reads] = self._session().create_client(
                    "ec2", **self._settings(attempts)
                )
            return self._clients[reads]

    def _own_session(self) -> Any:
        """The credentials of the Secret, else those that botocore finds."""
        session = botocore.session.Session()
        if self._credentials:
            session.set_credentials(
                self._text("aws_access_key_id"),
                self._text("aws_secret_access_key"),
                self._text("aws_session_token") or None,
            )
        return session

    def _session(self) -> Any:
        session = self._own_session()
        role = self._account.assume_role
        if role is not None:
            wanted = _assumed(role)
            client = session.create_client("sts", **self._settings(READ_ATTEMPTS_MAX))
            session = botocore.session.Session()
            session._credentials = DeferredRefreshableCredentials(
                create_assume_role_refresher(client, wanted), method="assume-role"
            )
        return session

    def _settings(self, attempts: int) -> dict[str, Any]:
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        return {
            "region_name": self._account.region,
            "endpoint_url": self._endpoint,
            "config": Config(
                connect_timeout=CONNECT_SECONDS_MAX,
                read_timeout=ANSWER_SECONDS_MAX,
                max_pool_connections=THREADS_MAX,
                retries=retries,
            ),
        }

    def _text(self, name: str) -> str:
        return self._credentials.get(name, b"").decode().strip()


def _assumed(role: AssumeRole) -> dict[str, str]:
    wanted = {"RoleArn": role.arn, "RoleSessionName": SESSION_NAME}
    return {**wanted, "ExternalId": role.external_id} if role.external_id else wanted


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raises ``ApiError`` instead of the errors of botocore."""
    try:
        yield
    except ClientError as error:
        found = error.response.get("Error", {})
        raise ApiError(found.get("Code", ""), found.get("Message", str(error))) from None
    except NoCredentialsError as error:
        raise ApiError("NoCredentials", str(error)) from None
    except BotoCoreError as error:
        raise ApiError("", str(error)) from None
