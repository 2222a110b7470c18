"""Names of what a keeper holds and of what a broker publishes."""

from __future__ import annotations

import re

from .errors import InvalidArgument


def checked_name(name: object, expected: str = "a str") -> str:
    """The name, by the keeper's rule, which C++ has as CheckName(). `expected`: the types that the
    caller takes, for the TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"a name is {expected}, not a {type(name).__name__}")
    if not re.fullmatch(r"[A-Za-z0-9._/-]{1,128}", name):
        raise InvalidArgument(f"{name!a:.200} is no name; expected 1 to 128 of A-Z a-z 0-9 . _ / -")
    return name
