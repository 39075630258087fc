"""What the errors of Corellium mean for a pool. Pure.

The statuses are those of the published clients; Corellium itself was never seen by our tests. How
it says that a quota is exceeded is not known, so quotas are looked at before, and an error that
speaks of one is taken for it.
"""

from __future__ import annotations

from bullpen.drivers.json_api import ApiError
from bullpen.errors import LabError, NoCapacity, Refused, TooManyRequests, Unreachable

NOT_FOUND, CONFLICT, TOO_MANY, SERVER_ERROR = 404, 409, 429, 500
REFUSALS = frozenset({400, 402, 403})
QUOTA = "quota"


def failure(error: ApiError) -> LabError:
    """The error of ours. What is not known is refused: an operator must look at it."""
    if error.status == TOO_MANY:
        return TooManyRequests(str(error))
    if not error.status or error.status == CONFLICT or error.status >= SERVER_ERROR:
        # A conflict: the instance is busy with something else.
        return Unreachable(str(error))
    if error.status in REFUSALS and QUOTA in str(error).lower():
        return NoCapacity(str(error))
    return Refused(str(error))
