"""Whether a user may write a claim that takes what others have. Pure.

Admin access is a right of its own, the verb ``adminaccess`` on ``deviceclaims``: the right to
write claims is not enough.
"""

from __future__ import annotations

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import GROUP_VERSION
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User

ADMIN_ACCESS = "adminaccess"
"""The verb."""

CLAIMS = "deviceclaims"
GROUP = GROUP_VERSION.partition("/")[0]


def admin_access_refusal(
    index: AccessIndex, user: User, new: DeviceClaim, old: DeviceClaim | None
) -> str | None:
    """Why ``user`` may not write ``new`` over ``old``; None if the user may."""
    if not new.spec.admin_access or (old is not None and old.spec.admin_access):
        return None
    meta = new.metadata
    place = Attributes(
        verb=ADMIN_ACCESS, group=GROUP, resource=CLAIMS, namespace=meta.namespace, name=meta.name
    )
    if index.decide(user, place).allowed:
        return None
    return (
        f'spec.adminAccess: user "{user.name}" does not have the verb "{ADMIN_ACCESS}" on'
        f" {CLAIMS}.{GROUP} in namespace {meta.namespace}; leave it out, or ask an administrator"
        " for the role bullpen:claim-admin"
    )
