"""Which slice of each tensor a rank of several takes."""

from __future__ import annotations

import fnmatch
import operator
import sys
import typing

from ._core import Array
from .errors import InvalidArgument

__all__ = ["Fused", "Rows", "Shard"]


class Rows(typing.NamedTuple):
    """A slice of a row-major tensor's bytes: rows of `nbytes`, `pitch` from one to the next, the
    first at `offset`."""

    offset: int
    nbytes: int
    pitch: int


class Fused(typing.NamedTuple):
    """Several tensors in one, side by side in dimension `dim`, of these lengths there: each is cut
    by itself, and a rank has its parts side by side again. Query, key and value of 32 and 8 heads,
    for example, are Fused(0, (4096, 1024, 1024))."""

    dim: int
    lengths: "tuple[int, ...]"


Cut = typing.Union[int, Fused, None]


def _is_number(number: typing.Any) -> bool:
    return type(number) is int and number >= 0


def _slice(array: typing.Any, dim: int, begin: int, length: int) -> typing.Any:
    if isinstance(array, Array):
        return array._cut(dim, begin, length)
    return array[(slice(None),) * dim + (slice(begin, begin + length),)]


def _join(parts: "list[typing.Any]", dim: int) -> typing.Any:
    """One array of several, by the library whose they are."""
    library = sys.modules.get(type(parts[0]).__module__.partition(".")[0])
    join = getattr(library, "cat", None) or getattr(library, "concatenate", None)
    if join is None:
        raise TypeError(f"a {type(parts[0]).__name__} cannot be cut as Fused: its library has "
                        "neither cat() nor concatenate(). Give it as a tensor of PyTorch or an "
                        "array of NumPy or CuPy")
    return join(parts, dim)


class Shard:
    """What rank `rank` of `count` takes of each tensor of a model.

        plan = {"*.q_proj.*": 0, "*.o_proj.weight": 1, "*.embed_tokens.weight": 0}
        vmmshare.weights.load("llama/tp0", files, shard=vmmshare.weights.Shard(0, 2, plan))

    cuts: a pattern of names, as a shell has them, to the dimension in which a tensor is cut into
    `count` equal parts, of which this rank takes one; Fused: into parts of each of several; None:
    all of it. The first pattern that fits a name counts. What fits none is replicated: each rank
    takes all.

    ValueError unless 0 <= rank < count; TypeError for a rank or count that is no int, and for a
    dimension or length that is none from 0 on.
    """

    def __init__(self, rank: int, count: int, cuts: "typing.Mapping[str, Cut]"):
        if isinstance(rank, bool) or isinstance(count, bool):
            raise TypeError(f"rank {rank} of {count}; expected ints")
        self.rank, self.count = operator.index(rank), operator.index(count)
        if not 0 <= self.rank < self.count:
            raise ValueError(f"rank {rank} of {count}; expected 0 to {count - 1}")
        self.cuts: "dict[str, Cut]" = {}
        for pattern, cut in cuts.items():
            if isinstance(cut, Fused):
                cut = Fused(cut.dim, tuple(cut.lengths))
                numbers: "tuple[typing.Any, ...]" = (cut.dim, *cut.lengths)
            else:
                numbers = () if cut is None else (cut,)
            if not all(map(_is_number, numbers)) or len(numbers) == 1 and isinstance(cut, Fused):
                raise TypeError(f"{pattern!r} is to be cut in dimension {cut!r}; expected an int "
                                "from 0 on, Fused with such, or None")
            self.cuts[pattern] = cut

    def cut(self, name: str) -> Cut:
        """How the tensor is cut; None where it is replicated."""
        for pattern, cut in self.cuts.items():
            if fnmatch.fnmatchcase(name, pattern):
                return cut
        return None

    def dimension(self, name: str) -> "int | None":
        """In which the tensor is cut; None where it is replicated."""
        cut = self.cut(name)
        return cut.dim if isinstance(cut, Fused) else cut

    def spans(self, name: str, shape: "typing.Sequence[int]") -> "list[tuple[int, int]]":
        """Begin and length of what this rank takes, in the dimension in which it is cut, of each
        part. InvalidArgument where there are no `count` equal ones. REQUIRES: it is cut."""
        cut, shape = self.cut(name), tuple(shape)
        assert cut is not None
        dim = cut.dim if isinstance(cut, Fused) else cut
        if dim >= len(shape):
            raise InvalidArgument(
                f"tensor {name!r} of shape {shape} is to be cut in dimension {dim}, and has "
                f"{len(shape)}", "Give it a pattern of its own, before the one that fits it.")
        lengths = cut.lengths if isinstance(cut, Fused) else (shape[dim],)
        if sum(lengths) != shape[dim]:
            raise InvalidArgument(
                f"tensor {name!r} of shape {shape} is to be cut in dimension {dim} as {lengths}, "
                f"which is {sum(lengths)} and not {shape[dim]}", "Name the length of each part.")
        found, begin = [], 0
        for length in lengths:
            if length % self.count:
                raise InvalidArgument(
                    f"tensor {name!r} of shape {shape} cannot be cut in dimension {dim} into "
                    f"{self.count} equal parts: {length} is no multiple of {self.count}",
                    "Pad it, take another number of ranks, or replicate it (None).")
            part = length // self.count
            found.append((begin + self.rank * part, part))
            begin += length
        return found

    def lengths(self, name: str, shape: "typing.Sequence[int]") -> "tuple[int, ...]":
        """The shape of this rank's slice. Errors as spans()."""
        shape, dim = tuple(shape), self.dimension(name)
        if dim is None:
            return shape
        taken = sum(length for _, length in self.spans(name, shape))
        return (*shape[:dim], taken, *shape[dim + 1:])

    def rows(self, name: str, shape: "typing.Sequence[int]", nbytes: int) -> "list[Rows]":
        """Where this rank's slice lies in the `nbytes` of a row-major tensor: one Rows, or of
        Fused one for each part. Errors as spans()."""
        dim = self.dimension(name)
        if dim is None:
            return [Rows(0, nbytes, nbytes)]
        outer = 1
        for length in shape[:dim]:
            outer *= length
        pitch = nbytes // outer if outer else 0
        unit = pitch // shape[dim] if shape[dim] else 0
        return [Rows(begin * unit, length * unit, pitch)
                for begin, length in self.spans(name, shape)]

    def take(self, name: str, array: typing.Any) -> typing.Any:
        """This rank's slice of an array: a view of it, of Fused a copy. Errors as spans();
        TypeError for Fused of an array whose library cannot join several."""
        dim = self.dimension(name)
        if dim is None:
            return array
        parts = [_slice(array, dim, begin, length)
                 for begin, length in self.spans(name, array.shape)]
        return parts[0] if len(parts) == 1 else _join(parts, dim)

    def __repr__(self) -> str:
        return f"Shard({self.rank}, {self.count}, {self.cuts!r})"
