"""What a rank takes of the tensors in a file, and how that is read."""

from __future__ import annotations

import typing

from ._safetensors import Entry
from ._shards import Rows, Shard

__all__ = ["Part", "part_of", "reads_of"]


class Part(typing.NamedTuple):
    """What a rank takes of a tensor in a file."""

    entry: Entry
    shape: "tuple[int, ...]"
    rows: "list[Rows]"  # Side by side they make up a row of it.


def part_of(shard: "Shard | None", entry: Entry) -> Part:
    """InvalidArgument where there are no equal parts."""
    if shard is None:
        return Part(entry, entry.shape, [Rows(0, entry.nbytes, entry.nbytes)])
    return Part(entry, shard.lengths(entry.name, entry.shape),
                shard.rows(entry.name, entry.shape, entry.nbytes))


def reads_of(place: int, path: int, part: Part) -> "list[tuple[int, int, int, int, int]]":
    """How the tensor at a place is read from the file of this number, for
    _WeightsWriter.read_files()."""
    return [(place, path, part.entry.offset + one.offset, one.nbytes, one.pitch)
            for one in part.rows]
