"""Safetensors files that are loaded: which ones, of paths, folders and indexes, and what of each."""

from __future__ import annotations

import json
import os
import stat
import typing

from . import _core
from .errors import InvalidArgument, NotFound, PermissionDenied

# What ends the name of a file that says which of several files has which tensor.
_INDEX = b".safetensors.index.json"
_MOST_OF_AN_INDEX = 100_000_000  # As a safetensors header.


def find_files(paths: typing.Any, select: "typing.Callable[[str], bool] | None"
               ) -> "tuple[list[bytes], dict[str, bytes] | None]":
    """Their names as the system has them, which need be no UTF-8; and of an index which of them has
    which tensor that is to be loaded."""
    if not isinstance(paths, (str, bytes, os.PathLike)):
        return [os.fsencode(path) for path in paths], None
    path = os.fsencode(paths)
    if os.path.isdir(path):
        there = sorted(os.listdir(path))
        indexes = [one for one in there if one.endswith(_INDEX)]
        if not indexes:
            return [os.path.join(path, one) for one in there if one.endswith(b".safetensors")], None
        usual = b"model" + _INDEX
        if usual not in indexes and len(indexes) > 1:
            raise ValueError(f"{paths!r} has several indexes; expected the path of one of "
                             f"{', '.join(map(os.fsdecode, indexes))}")
        path = os.path.join(path, usual if usual in indexes else indexes[0])
    elif not path.endswith(_INDEX):
        return [path], None
    assigned = {name: file for name, file in _read_index(path).items()
                if select is None or select(name)}
    return sorted(set(assigned.values())), assigned


def called(path: bytes) -> str:
    """As messages have it."""
    return path.decode(errors="backslashreplace")


def _once(pairs: "list[tuple[str, typing.Any]]") -> "dict[str, typing.Any]":
    there = dict(pairs)
    if len(there) != len(pairs):
        raise ValueError("a name is there twice")
    return there


def _read_text(path: bytes) -> bytes:
    """Of a file: nothing that holds the call up, nor that is without an end."""
    try:
        # A FIFO has no writer then, and is no file.
        index = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            about = os.fstat(index)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_OF_AN_INDEX:
                raise InvalidArgument(
                    f"{called(path)} is no file, or one of {about.st_size} bytes; expected an index "
                    f"of files, of at most {_MOST_OF_AN_INDEX}", "Save or fetch it anew.")
            with open(index, "rb", closefd=False) as file:
                return file.read(_MOST_OF_AN_INDEX)
        finally:
            os.close(index)
    except OSError as why:
        raised = PermissionDenied if isinstance(why, PermissionError) else NotFound
        raise raised(f"{called(path)} cannot be read: {why.strerror}", "Check the path.") from why


def _read_index(path: bytes) -> "dict[str, bytes]":
    """Of each tensor the file that has it, beside the index."""
    text = _read_text(path)
    try:
        assigned = {name: os.fsencode(file) for name, file in
                    json.loads(text, object_pairs_hook=_once)["weight_map"].items()}
        if not assigned:
            raise ValueError("it names none")
        for file in set(assigned.values()):
            if not file.endswith(b".safetensors") or os.path.basename(file) != file or b"\0" in file:
                raise ValueError(f"{called(file)!r} is no safetensors file beside it")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
        raise InvalidArgument(f"{called(path)}: no index of safetensors files, or a damaged one: "
                              f"{why}", "Save or fetch the file anew.") from why
    return {name: os.path.join(os.path.dirname(path), file) for name, file in assigned.items()}


def check_assigned(assigned: "dict[str, bytes]", files: "list[bytes]",
                   headers: "list[typing.Any]") -> None:
    """That each file has what the index says, of what is to be loaded."""
    there = {(entry[0], path) for path, header in zip(files, headers) for entry in header.entries()}
    for one in assigned.items():
        if one not in there:
            raise InvalidArgument(f"{called(one[1])} has no tensor {one[0]!r}, and the index says "
                                  "that it has", "Fetch the files and their index anew.")


def selected(select: "typing.Callable[[str], bool]", headers: "list[typing.Any]",
             paths: typing.Any) -> "typing.Callable[[str, int], bool]":
    """Whether a tensor of a file is taken. An empty set would replace the one that is there."""
    there = [(entry[0], file) for file, header in enumerate(headers) for entry in header.entries()]
    taken = {one for one in there if select(one[0])}
    if there and not taken:
        raise ValueError(f"`select` takes none of the {len(there)} tensors in {paths!r}, the first "
                         f"of which is {there[0][0]!r}")
    return lambda tensor, file: (tensor, file) in taken


def read_header(path: "str | bytes") -> typing.Any:
    return _core._Safetensors(os.fsencode(path))


def mark_of(path: bytes) -> "tuple[int, ...] | None":
    """Another one once the file is another, or was written to."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):  # Of which read_header() tells.
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns
