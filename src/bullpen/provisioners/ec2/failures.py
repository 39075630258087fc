"""What the errors of EC2 mean for a pool. Pure.

The codes are those of the API's documentation; AWS itself was never seen by our tests.
"""

from __future__ import annotations

from bullpen.errors import LabError, NoCapacity, Refused, TooManyRequests, Unreachable

NO_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost",
        "ReservationCapacityExceeded",
        "UnfulfillableCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientAddressCapacity",
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "VolumeLimitExceeded",
        "SpotMaxPriceTooLow",
    }
)
"""Another type or zone may have room, and the same one later."""

NOT_HERE = frozenset({"Unsupported"})
"""The zone does not offer the type; another one of the class may fit."""

THROTTLED = frozenset(
    {
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
    }
)

UNREACHABLE = frozenset(
    {"", "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestExpired"}
)
"""An empty code: there was no answer. ``RequestExpired`` is caused by a wrong clock here."""

NOT_YET = frozenset({"IncorrectInstanceState", "IncorrectState"})
"""A machine that is still starting or stopping cannot be stopped or started."""

ABSENT = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})


class ApiError(Exception):
    """A call that failed, with the code of EC2, or without one if there was no answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code


def failure(error: ApiError) -> LabError:
    """The error of ours. What is not known is refused: an operator must look at it."""
    if error.code in NO_CAPACITY:
        return NoCapacity(str(error))
    if error.code in THROTTLED:
        return TooManyRequests(str(error))
    if error.code in UNREACHABLE | NOT_YET or error.code.isdecimal():
        # A number is the HTTP status of an answer that is not EC2's, such as a proxy's.
        return Unreachable(str(error))
    return Refused(str(error))
