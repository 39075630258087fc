"""Exit codes; docs/reference/exit-codes.md explains each."""

from __future__ import annotations

from enum import IntEnum

from bullpen import errors


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INVALID = 5
    CONFLICT = 6
    FORBIDDEN = 7
    UNHEALTHY = 8
    REFUSED = 9
    VIOLATED = 10
    LACKING = 11
    INTERRUPTED = 130


_CODES: dict[type[errors.LabError], Exit] = {
    errors.LabError: Exit.FAILED,
    errors.BadRequest: Exit.INVALID,
    errors.Invalid: Exit.INVALID,
    errors.TooLarge: Exit.INVALID,
    errors.NotFound: Exit.NOT_FOUND,
    errors.Conflict: Exit.CONFLICT,
    errors.AlreadyExists: Exit.CONFLICT,
    errors.Unauthorized: Exit.FORBIDDEN,
    errors.Forbidden: Exit.FORBIDDEN,
    errors.Unreachable: Exit.UNREACHABLE,
    errors.Refused: Exit.REFUSED,
}


def exit_for(error: errors.LabError) -> Exit:
    """The exit code of an error, by its nearest class in the table."""
    return next(_CODES[cls] for cls in type(error).__mro__ if cls in _CODES)
