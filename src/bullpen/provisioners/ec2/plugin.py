"""The plugin of EC2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bullpen.errors import Refused
from bullpen.provisioners.base import Plugin
from bullpen.provisioners.ec2.parameters import Ec2Account
from bullpen.provisioners.ec2.provider import NAME, Ec2Provider, ssh_answers
from bullpen.provisioners.provider import Backend

if TYPE_CHECKING:
    from bullpen.provisioners.ec2.api import Api, Connect


class LazyApis:
    """Loads botocore when there is an account to call."""

    def __init__(self) -> None:
        self._loaded: Connect | None = None

    def __call__(self, backend: Backend, account: Ec2Account) -> Api:
        if self._loaded is None:
            try:
                from bullpen.provisioners.ec2.api import BotocoreApis
            except ModuleNotFoundError as error:
                raise Refused(f"{error.name} is not installed: pip install bullpen[ec2]") from None
            self._loaded = BotocoreApis()
        return self._loaded(backend, account)


def provider() -> Ec2Provider:
    return Ec2Provider(LazyApis(), ssh_answers)


PLUGIN = Plugin(name=NAME, provider=provider)
