"""Files and folders, as programs name them."""

from __future__ import annotations

import os
import typing

from .errors import InvalidArgument

Path = typing.Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def text_of(path: Path) -> str:
    """As os.fsdecode() has it. InvalidArgument for one with a NUL, which no name of a file has."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise InvalidArgument(f"{text!a:.200} has a NUL in it", "Pass the path without.")
    return text


def is_removed(path: "str | bytes") -> bool:
    """Not where it cannot be looked at."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
