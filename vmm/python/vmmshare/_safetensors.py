"""The header of a safetensors file: which tensors it has, and where.

The file comes from anybody, so nothing in it is trusted: lengths are compared with the file's
size before anything is read or allocated for them, and what does not fit is InvalidArgument.
"""

from __future__ import annotations

import json
import math
import operator
import os
import typing

from .errors import InvalidArgument, NotFound, Unimplemented

__all__ = ["Entry", "read_header"]

_MOST_HEADER = 64 << 20  # Bytes.
_MOST_RANK = 32  # Of a set's tensor; a product of a million lengths would take minutes.

# Its names of types, and ours.
_DTYPES = {"BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "U16": ("uint16", 2),
           "I16": ("int16", 2), "U32": ("uint32", 4), "I32": ("int32", 4), "U64": ("uint64", 8),
           "I64": ("int64", 8), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
           "F32": ("float32", 4), "F64": ("float64", 8), "C64": ("complex64", 8),
           "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1)}


_SAID = {"dtype", "shape", "data_offsets"}  # Of each tensor.


class Entry(typing.NamedTuple):
    """A tensor: dense, row-major, `nbytes` at `offset` of the file."""

    name: str
    dtype: str
    shape: "tuple[int, ...]"
    offset: int
    nbytes: int


def _damaged(path: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{path} is no safetensors file, or a damaged one: {what}")


def _members(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is there twice")
    return members


def _is_count(number) -> bool:
    return type(number) is int and 0 <= number < 2**63


def _entry(path: str, name: str, said, begin: int, room: int) -> Entry:
    """The entry; the data begin at `begin` of the file, and have `room` bytes."""
    if not isinstance(said, dict) or said.keys() != _SAID:
        raise _damaged(path, f"tensor {name!r} is not said by dtype, shape and data_offsets")
    kind, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise Unimplemented(f"{path}: tensor {name!r} has the dtype {kind!r}; known are "
                            f"{', '.join(_DTYPES)}")
    if isinstance(shape, list) and len(shape) > _MOST_RANK:
        raise _damaged(path, f"tensor {name!r} has {len(shape)} dimensions; at most {_MOST_RANK}")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise _damaged(path, f"tensor {name!r} has the shape {shape!r}")
    if (not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets))
            or not offsets[0] <= offsets[1] <= room):
        raise _damaged(path, f"tensor {name!r} has the data_offsets {offsets!r}; the file has "
                             f"{room} bytes of data")
    dtype, size = _DTYPES[kind]
    size = math.prod(shape, start=size)  # Python's ints do not overflow.
    if size != offsets[1] - offsets[0]:
        raise _damaged(path, f"tensor {name!r} of shape {shape} has {offsets[1] - offsets[0]} "
                             f"bytes; expected {size}")
    return Entry(name, dtype, tuple(shape), begin + offsets[0], size)


def read_header(path: "str | os.PathLike[str]") -> "tuple[list[Entry], dict[str, str]]":
    """The tensors, by offset, and the metadata. NotFound for a file that cannot be read,
    InvalidArgument for one that is damaged, Unimplemented for a dtype that is not known."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            whole = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > whole - 8:
                raise _damaged(path, f"its header is said to have {length} bytes, and the file "
                                     f"has {whole}")
            if length > _MOST_HEADER:
                raise _damaged(path, f"a header of {length} bytes; at most {_MOST_HEADER}")
            text = file.read(length)
    except OSError as why:
        raise NotFound(f"{path} cannot be read: {why.strerror}") from why
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_members)
    except (ValueError, RecursionError) as why:
        raise _damaged(path, f"its header is no JSON: {why}") from why
    if len(text) != length or not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its __metadata__ are no texts")
    begin, room = 8 + length, whole - 8 - length
    entries = []
    while header:  # What was read is let go of: there are tens of thousands.
        name, said = header.popitem()
        entries.append(_entry(path, name, said, begin, room))
    entries.reverse()
    entries.sort(key=operator.attrgetter("offset", "nbytes"))
    end = begin
    for entry in entries:
        if entry.offset != end:
            raise _damaged(path, f"tensor {entry.name!r} begins at {entry.offset - begin}, and the "
                                 f"one before it ends at {end - begin}")
        end += entry.nbytes
    if end != begin + room:
        raise _damaged(path, f"its tensors have {end - begin} bytes, and its data {room}")
    return entries, metadata
