"""What a rank takes of the tensors in a file."""

from __future__ import annotations

from ._safetensors import Entry
from ._shards import Rows, Shard

__all__ = ["part_of"]


def part_of(shard: "Shard | None", entry: Entry) -> "tuple[tuple[int, ...], list[Rows]]":
    """Its shape, and the Rows that side by side make up a row of it. InvalidArgument where there
    are no equal parts."""
    if shard is None:
        return entry.shape, [Rows(0, entry.nbytes, entry.nbytes)]
    return (shard.lengths(entry.name, entry.shape),
            shard.rows(entry.name, entry.shape, entry.nbytes))
