"""What a rank takes of the tensors in a file, and how that is read."""

from __future__ import annotations

import ctypes
import typing

from ._safetensors import Entry
from ._shards import Rows, Shard
from .errors import DataLoss

__all__ = ["Part", "part_of", "read_part"]


class Part(typing.NamedTuple):
    """What a rank takes of a tensor in a file."""

    path: str
    entry: Entry
    shape: "tuple[int, ...]"
    rows: "list[Rows]"
    nbytes: int


def part_of(shard: "Shard | None", path: str, entry: Entry) -> Part:
    """InvalidArgument where there are no equal parts."""
    if shard is None:
        return Part(path, entry, entry.shape, [Rows(0, entry.nbytes, entry.nbytes)],
                    entry.nbytes)
    shape = shard.lengths(entry.name, entry.shape)
    rows = shard.rows(entry.name, entry.shape, entry.nbytes)
    each = sum(one.nbytes for one in rows)
    return Part(path, entry, shape, rows,
                each * (entry.nbytes // rows[0].pitch) if rows[0].pitch else 0)


def _gather(part: Part) -> bytearray:
    """The bytes of several Rows, side by side. DataLoss for a file that ends within them."""
    entry, found = part.entry, bytearray(part.nbytes)
    into, at = memoryview(found), 0
    with open(part.path, "rb", buffering=0) as file:
        for row in range(entry.nbytes // part.rows[0].pitch):
            for one in part.rows:
                file.seek(entry.offset + one.offset + row * one.pitch)
                end = at + one.nbytes
                while at < end:
                    got = file.readinto(into[at:end])
                    if not got:
                        raise DataLoss(f"{part.path} ends within tensor {entry.name!r}",
                                       "It was cut while it was read.")
                    at += got
    return found


def read_part(writer: typing.Any, place: int, part: Part) -> None:
    """Into the tensor at `place`: straight from the file, unless it has several parts."""
    if len(part.rows) == 1 or part.nbytes == 0:
        rows = part.rows[0]
        writer.read_rows(place, part.path, part.entry.offset + rows.offset, rows.nbytes,
                         rows.pitch)
        return
    gathered = _gather(part)
    here = (ctypes.c_char * len(gathered)).from_buffer(gathered)
    writer.copy(place, ctypes.addressof(here), len(gathered), False)
