"""Sets of named tensors: those that were opened and those that are being written; vmmshare.weights
has the names."""

from __future__ import annotations

import typing

from . import _core
from ._closing import Closing, check_open
from ._core import Allocation, Array
from ._marks import Mark, Marks
from ._names import checked_name
from ._paths import Path
from ._reads import CPU, describe, synchronize_torch
from ._shards import Shard
from .errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from .keeper import _connected

if typing.TYPE_CHECKING:
    import torch


def _torch_of(tensors: typing.Any) -> "dict[str, torch.Tensor]":
    import torch

    def as_dtype(tensor: torch.Tensor, name: str) -> torch.Tensor:
        dtype = getattr(torch, name, None)
        if dtype is None:  # float8_e8m0fnu came with PyTorch 2.7.
            raise FailedPrecondition(
                f"PyTorch {torch.__version__} has no dtype {name}",
                "Use a newer PyTorch, or take that array's bytes: set[name].view(nbytes, 'uint8').")
        return tensor.view(dtype)

    return tensors.tensors(torch.Tensor, torch.from_dlpack, as_dtype)


class _Arrays(typing.Mapping[str, Array], Closing):
    """Arrays by name, which are had until it is closed."""

    def _all(self) -> "dict[str, Array]":
        raise NotImplementedError

    def __getitem__(self, name: str) -> Array:
        return self._all()[name]

    def __iter__(self) -> "typing.Iterator[str]":
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class TensorSet(_Arrays):
    """A set that was opened: arrays by name, which lie where they lie for everybody.

    The arrays keep the memory; close() lets go of it when they are gone. They are read-only:
    NumPy knows that, PyTorch does not, and a kernel that writes there ends this process's
    context.
    """

    def __init__(self, name: str, memory: Allocation):
        self.name = name
        self.nbytes = memory.nbytes
        self._set = _core._Weights(memory)
        self._arrays: "dict[str, Array] | None" = None

    @property
    def generation(self) -> int:
        """Counts from 1, one more each time the set under the name was replaced."""
        return self._set.generation

    @property
    def fingerprint(self) -> str:
        """What whoever put it called the model."""
        return self._set.fingerprint

    @property
    def metadata(self) -> "dict[str, str]":
        return self._set.metadata()

    def tensors(self) -> "list[dict[str, typing.Any]]":
        """Name, dtype, shape, strides (in elements), offset and nbytes (in bytes), alias_of and
        checksum of each."""
        return self._set.table()

    def torch(self) -> "dict[str, torch.Tensor]":
        """All of them as PyTorch's tensors, without a copy: for
        model.load_state_dict(tensors, assign=True)."""
        return _torch_of(self._set)

    def verify(self) -> int:
        """How many tensors have the checksum that they were put with. DataLoss names one that
        has another."""
        return self._set.verify()

    def close(self) -> None:
        """Lets go of the memory; arrays of it keep it."""
        self._arrays = None
        self._set.close()

    @property
    def closed(self) -> bool:
        return bool(self._set.closed)

    def _all(self) -> "dict[str, Array]":
        check_open(self._set)
        if self._arrays is None:
            self._arrays = self._set.arrays()
        return self._arrays

    def __repr__(self) -> str:
        if self._set.closed:
            return f"<vmmshare.weights.TensorSet {self.name!r}, closed>"
        return (f"<vmmshare.weights.TensorSet {self.name!r}, generation {self.generation}, "
                f"{len(self)} tensors, {self.nbytes} bytes>")


def check_described(fingerprint: object, metadata: object, shard: object = None) -> None:
    """Before any work is done. TypeError names the argument."""
    if not isinstance(fingerprint, str):
        raise TypeError(f"fingerprint: expected a str, not a {type(fingerprint).__name__}")
    _check_is_unicode("fingerprint", fingerprint)
    if metadata is not None and not isinstance(metadata, typing.Mapping):
        raise TypeError("metadata: expected a dict of strs, or None, not a "
                        f"{type(metadata).__name__}")
    for pair in (metadata or {}).items():
        for one in pair:
            if not isinstance(one, str):
                raise TypeError(f"metadata {pair[0]!r:.80}: expected a str for key and value, not a "
                                f"{type(one).__name__}")
            _check_is_unicode(f"metadata {pair[0]!a:.80}", one)
    if shard is not None and not isinstance(shard, Shard):
        raise TypeError(f"shard: expected a Shard, or None, not a {type(shard).__name__}")


def _check_is_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        raise InvalidArgument(f"{what}: {text!a:.80} is no Unicode text: {why}",
                              "Pass it without surrogates, as text.encode() takes it.") from why


def layout_of(fingerprint: str, metadata: "typing.Mapping[str, str] | None",
              shard: "Shard | None" = None, *,
              files: "typing.Iterable[tuple[str, typing.Mapping[str, str]]]" = ()) -> typing.Any:
    """files: their names, for messages, and metadata, of which what is given takes the place."""
    layout = _core._WeightsLayout(fingerprint)
    for called, found in files:
        try:
            _note(layout, found)
        except (InvalidArgument, ResourceExhausted) as why:
            raise type(why)(f"{called}: {why.args[0]}", why.remedy) from why
    _note(layout, metadata or {})
    if shard is not None:
        _note(layout, {"shard.rank": str(shard.rank), "shard.count": str(shard.count)})
    return layout


def _note(layout: typing.Any, metadata: "typing.Mapping[str, str]") -> None:
    for key, value in metadata.items():
        layout.note(key, value)


def reach_keeper(name: str, address: Path, timeout: "float | None") -> "float | None":
    """Before any work is done for a set of that name: raises when no set can have it, and when no
    keeper can be asked. What is left of the timeout, for put_written(). The connection is closed:
    a keeper that is started anew meanwhile is asked then."""
    checked_name(name)
    with _connected(address, timeout) as (_, left):
        return left()


def put_written(writer: typing.Any, name: str, checksum: bool, address: Path,
                timeout: "float | None") -> int:
    with _connected(address, timeout) as (keeper, left):
        return writer.publish(keeper, name, checksum, left())


class Draft(_Arrays):
    """A set that is not put yet: arrays by name, to be written where they will be read. See
    draft(). The arrays keep the memory."""

    def __init__(self, memory: Allocation, layout: typing.Any, own: "dict[str, int]"):
        self.memory, self.nbytes = memory, memory.nbytes
        self.own = list(own)  # Names of those that are no aliases.
        self.places = list(own.values())  # Of these, in the layout.
        self._writer = _core._WeightsWriter(memory, layout)
        self._arrays: "dict[str, Array]" = {}
        # A publisher's, from acquire() to publish(): how it knows, and the stream.
        self._acquired: "tuple[Marks, int] | Mark | None" = None
        try:
            self._arrays = self._writer.arrays()
            self._device: "tuple[int, int]" = next(iter(self._arrays.values())).__dlpack_device__()
        except BaseException:
            self.close()  # Who handles what is raised has this object.
            raise

    @property
    def on_host(self) -> bool:
        """Whether it is memory of a NUMA node of the host."""
        return self._device[0] == CPU

    def torch(self) -> "dict[str, torch.Tensor]":
        """All of them as PyTorch's tensors, without a copy: a module's parameters, by
        load_state_dict(tensors, assign=True), or where they are copied to."""
        return _torch_of(self._writer)

    def wait(self, *, timeout: "float | None" = 10.0) -> None:
        """Of acquire() of a publisher: returns when no follower uses what is there, for a host that
        writes to it, that is when what is on the stream that acquire() was given is done. That
        stream must be there. FailedPrecondition of another one, whose memory is free from the
        beginning, once it is published, and while that stream is captured into a graph."""
        check_open(self._writer)
        acquired = self._acquired
        if acquired is None:
            raise FailedPrecondition("wait() for a draft that is not acquired",
                                     "Call it of what acquire() of a publisher returned, before "
                                     "publish().")
        if not isinstance(acquired, Mark):  # The first wait(): one on the stream is enough.
            marks, stream = acquired
            self._acquired = acquired = marks.mark(stream)
        acquired.wait(timeout, "the slot")

    def put(self, name: str, *, checksum: bool = True, address: Path = "",
            timeout: "float | None" = 10.0) -> int:
        """Puts it under a name as put() does, and copies nothing. All that writes to the arrays
        must have ended; for PyTorch this waits. Whoever goes on writing writes to what others
        read: that is not prevented, and verify() finds it. What the keeper refused may be written
        to and put again. FailedPrecondition while another call puts it, also one that Ctrl-C
        ended, and once it was put or the keeper's answer did not come."""
        check_open(self._writer)
        checked_name(name)
        synchronize_torch(None if self.on_host else self._device[1])
        return put_written(self._writer, name, checksum, address, timeout)

    def close(self) -> None:
        """Lets go of the memory when its arrays are gone. What was put stays."""
        self._arrays = {}
        self._writer.close()
        self.memory.close()

    @property
    def closed(self) -> bool:
        return bool(self._writer.closed)

    def _all(self) -> "dict[str, Array]":
        check_open(self._writer)
        return self._arrays


def draft(like: "typing.Mapping[str, typing.Any]", *, fingerprint: str = "",
          metadata: "typing.Mapping[str, str] | None" = None, device: typing.Any = 0,
          host_node: "int | None" = None) -> Draft:
    """Memory for a set of such tensors, to be filled in place and then put, without a copy.

    like: a state_dict, also of a module on the device "meta"; anything with __dlpack__; or
    (shape, dtype). Only shapes, types and strides are taken of it, and what lies in another's
    bytes stays an alias. ResourceExhausted when it does not fit.
    """
    if not isinstance(like, typing.Mapping) or not like:
        raise TypeError(f"draft() takes tensors by name, as a dict that has some, not "
                        f"{like!r:.80}")
    check_described(fingerprint, metadata)
    reads = describe(like)
    layout = layout_of(fingerprint, metadata)
    reads.lay_out(layout, [])
    memory = Allocation(device, nbytes=layout.nbytes, host_node=host_node)
    try:
        return Draft(memory, layout, reads.own())
    except BaseException:
        memory.close()
        raise
