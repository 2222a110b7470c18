"""Where arrays lie in this process, and which lie in each other's bytes: for tensor sets."""

from __future__ import annotations

import sys
import typing

from . import _core


class Read(typing.NamedTuple):
    """Where an array lies, in this process."""

    name: str
    address: int
    dtype: str
    shape: "tuple[int, ...]"
    strides: "tuple[int, ...]"
    on_device: bool
    itemsize: int
    nbytes: int  # From its first element to its last.
    is_dense: bool  # Whether its elements fill these, each once, in whatever order.


def torch_type() -> typing.Any:
    """PyTorch's tensors, or None."""
    # Who has no tensor of PyTorch's has not imported it.
    library = sys.modules.get("torch")
    return getattr(library, "Tensor", None)


def dense_copy(array: typing.Any) -> typing.Any:
    """A copy whose elements lie side by side."""
    if hasattr(array, "contiguous"):
        return array.contiguous()
    import numpy
    return numpy.ascontiguousarray(array)


def await_torch(tensors: "typing.Mapping[str, typing.Any]") -> None:
    """Waits until every device is done with what it writes to PyTorch's tensors."""
    kind = torch_type()
    if kind is None:
        return
    devices = {one.get_device(): one.device for one in tensors.values()
               if isinstance(one, kind) and one.is_cuda}
    for device in devices.values():
        sys.modules["torch"].cuda.synchronize(device)


def synchronize_torch(device: "int | None") -> None:
    """Waits until PyTorch's work on the device, the current one if None, is done."""
    library = sys.modules.get("torch")
    if library is not None and library.cuda.is_initialized():
        library.cuda.synchronize(device)


def aliases_of(reads: "list[Read]") -> "dict[str, Read]":
    """Those that lie in the bytes of another one, and that one: tied weights, views."""
    found: "dict[str, Read]" = {}
    cover: "Read | None" = None
    in_order = sorted((one for one in reads if one.nbytes > 0),
                      key=lambda one: (one.on_device, one.address, -one.nbytes))
    for one in in_order:
        if (cover is not None and cover.on_device == one.on_device
                and one.address + one.nbytes <= cover.address + cover.nbytes
                and (one.address - cover.address) % one.itemsize == 0):
            found[one.name] = cover
        elif one.is_dense:
            cover = one
    return found


def read_arrays(arrays: "dict[str, typing.Any]") -> "list[Read]":
    """Of PyTorch's tensors, and of anything with __dlpack__."""
    return [Read(*row) for row in _core._read_arrays(arrays, torch_type())]


def _as_said(name: str, base: int, said: "tuple[typing.Any, typing.Any]") -> Read:
    shape, dtype = said
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    strides, step = [], 1
    for length in reversed(shape):
        strides.insert(0, step)
        step *= max(length, 1)
    return Read(name, base, dtype, shape, tuple(strides), True, 1, 0 if 0 in shape else step, True)


def _without_memory(name: str, base: int, tensor: typing.Any) -> Read:
    shape, strides, size = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    nbytes, is_dense = _core._measure(shape, strides, size)
    return Read(name, base + tensor.storage_offset() * size,
                str(tensor.dtype).removeprefix("torch."), shape, strides, True, size, nbytes,
                is_dense)


def describe(like: "typing.Mapping[str, typing.Any]") -> "list[Read]":
    """As read_arrays(), also of what has no memory: PyTorch's tensors of the device "meta", and
    pairs of shape and dtype. Those of one storage lie in each other's bytes."""
    kind = torch_type()
    found: "dict[str, Read]" = {}
    rest: "dict[str, typing.Any]" = {}
    bases: "dict[typing.Any, int]" = {}
    for name, one in like.items():
        base = (2 + len(bases)) << 56  # Where no memory is.
        if isinstance(one, tuple):
            found[name] = _as_said(name, bases.setdefault(name, base), one)
        elif kind is not None and isinstance(one, kind) and one.is_meta:
            base = bases.setdefault(one.untyped_storage()._cdata, base)
            found[name] = _without_memory(name, base, one)
        else:
            rest[name] = one
    found.update((one.name, one) for one in read_arrays(rest))
    return [found[name] for name in like]


def lay_out(layout: typing.Any, reads: "list[Read]", aliases: "dict[str, Read]"
            ) -> "dict[str, int]":
    """Adds them to the layout: the place of each that is no alias."""
    places = {one.name: layout.add(one.name, one.dtype, one.shape,
                                   one.strides if one.is_dense else None)
              for one in reads if one.name not in aliases}
    for one in reads:
        if one.name in aliases:
            base = aliases[one.name]
            layout.add(one.name, one.dtype, one.shape, one.strides, places[base.name],
                       one.address - base.address)
    return places
