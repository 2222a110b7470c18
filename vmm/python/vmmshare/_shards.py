"""Which slice of each tensor a rank of several takes."""

from __future__ import annotations

import fnmatch
import typing

from .errors import InvalidArgument

__all__ = ["Rows", "Shard"]


class Rows(typing.NamedTuple):
    """A slice of a row-major tensor's bytes: rows of `nbytes`, `pitch` from one to the next, the
    first at `offset`."""

    offset: int
    nbytes: int
    pitch: int


class Shard:
    """What rank `rank` of `count` takes of each tensor of a model.

        plan = {"*.q_proj.*": 0, "*.o_proj.weight": 1, "*.embed_tokens.weight": 0}
        vmmshare.weights.load("llama/tp0", files, shard=vmmshare.weights.Shard(0, 2, plan))

    cuts: a pattern of names, as a shell has them, to the dimension in which a tensor is cut into
    `count` equal parts, of which this rank takes one; None: all of it. The first pattern that fits
    a name counts. What fits none is replicated: each rank takes all.

    ValueError unless 0 <= rank < count; TypeError for a dimension that is no int from 0 on.
    """

    def __init__(self, rank: int, count: int, cuts: "typing.Mapping[str, int | None]"):
        if not 0 <= rank < count:
            raise ValueError(f"rank {rank} of {count}; expected 0 to {count - 1}")
        for pattern, dim in cuts.items():
            if dim is not None and (type(dim) is not int or dim < 0):
                raise TypeError(f"{pattern!r} is to be cut in dimension {dim!r}; expected an int "
                                "from 0 on, or None")
        self.rank, self.count, self.cuts = rank, count, dict(cuts)

    def dimension(self, name: str) -> "int | None":
        """In which the tensor is cut; None where it is replicated."""
        for pattern, dim in self.cuts.items():
            if fnmatch.fnmatchcase(name, pattern):
                return dim
        return None

    def lengths(self, name: str, shape: "typing.Sequence[int]") -> "tuple[int, ...]":
        """The shape of this rank's slice. InvalidArgument where there are no `count` equal
        parts."""
        shape, dim = tuple(shape), self.dimension(name)
        if dim is None:
            return shape
        if dim >= len(shape):
            raise InvalidArgument(
                f"tensor {name!r} of shape {shape} is to be cut in dimension {dim}, and has "
                f"{len(shape)}", "Give it a pattern of its own, before the one that fits it.")
        if shape[dim] % self.count:
            raise InvalidArgument(
                f"tensor {name!r} of shape {shape} cannot be cut in dimension {dim} into "
                f"{self.count} equal parts: {shape[dim]} is no multiple of {self.count}",
                "Pad it, take another number of ranks, or replicate it (None).")
        return (*shape[:dim], shape[dim] // self.count, *shape[dim + 1:])

    def rows(self, name: str, shape: "typing.Sequence[int]", nbytes: int) -> Rows:
        """Where this rank's slice lies in the `nbytes` of a row-major tensor. Errors as
        lengths()."""
        self.lengths(name, shape)
        dim = self.dimension(name)
        if dim is None:
            return Rows(0, nbytes, nbytes)
        outer = 1
        for length in shape[:dim]:
            outer *= length
        pitch = nbytes // outer if outer else 0
        return Rows(self.rank * (pitch // self.count), pitch // self.count, pitch)

    def take(self, name: str, array: typing.Any) -> typing.Any:
        """This rank's slice of an array, a view of it. Errors as lengths()."""
        lengths, dim = self.lengths(name, array.shape), self.dimension(name)
        if dim is None:
            return array
        begin = self.rank * lengths[dim]
        return array[(slice(None),) * dim + (slice(begin, begin + lengths[dim]),)]

    def __repr__(self) -> str:
        return f"Shard({self.rank}, {self.count}, {self.cuts!r})"
