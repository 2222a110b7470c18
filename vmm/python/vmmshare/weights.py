"""Weights that outlive engines: named tensors in one range of memory, held by a keeper.

    vmmshare.weights.put("llama/tp0", model.state_dict())       # or a dict of arrays
    vmmshare.weights.load("llama/tp0", "model.safetensors")     # straight from files, or a
                                                                # Shard of them

    weights = vmmshare.weights.open("llama/tp0")     # any process of this user, then or later
    tensors = weights.torch()                        # or weights["embed.weight"], an Array

Nothing is copied by whoever opens them, and they are there after the process that put them was
killed. Putting under a name that has a set replaces that in one step: who opens the name has all
of the old set or all of the new, and who has the old one keeps it.

In all of these `address` is that of the keeper's socket, this user's own if empty, and
`timeout` is in seconds, for each thing that the keeper is asked, None for ever. NotFound: no
keeper listens there; start one by `vmmshare keep`. docs/weights.md has the rules.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import os
import sys
import threading
import typing

from . import _core
from ._core import Allocation, Array, Keeper
from ._parts import part_of, read_part
from ._safetensors import read_header
from ._shards import Cut, Fused, Shard
from .errors import AlreadyExists, FailedPrecondition

if typing.TYPE_CHECKING:
    import torch

__all__ = ["Fused", "Shard", "TensorSet", "drop", "list", "load", "open", "put", "show", "verify"]

Progress = typing.Callable[[int, int], object]


class TensorSet(typing.Mapping[str, Array]):
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

    def tensors(self) -> "builtins.list[dict[str, typing.Any]]":
        """Name, dtype, shape, strides, offset, nbytes, alias_of and checksum of each."""
        return self._set.table()

    def torch(self) -> "dict[str, torch.Tensor]":
        """All of them as PyTorch's tensors, without a copy: for
        model.load_state_dict(tensors, assign=True)."""
        import torch
        return self._set.tensors(torch.Tensor, torch.from_dlpack,
                                 lambda tensor, dtype: tensor.view(getattr(torch, dtype)))

    def verify(self) -> int:
        """How many tensors have the checksum that they were put with. DataLoss names one that
        has another."""
        return self._set.verify()

    def close(self) -> None:
        """Lets go of the memory; arrays of it keep it."""
        self._arrays = {}
        self._set.close()

    def __enter__(self) -> "TensorSet":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _all(self) -> "dict[str, Array]":
        if self._arrays is None:
            self._arrays = self._set.arrays()
        return self._arrays

    def __getitem__(self, name: str) -> Array:
        return self._all()[name]

    def __iter__(self) -> "typing.Iterator[str]":
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        if self._set.closed:
            return f"<vmmshare.weights.TensorSet {self.name!r}, closed>"
        return (f"<vmmshare.weights.TensorSet {self.name!r}, generation {self.generation}, "
                f"{len(self)} tensors, {self.nbytes} bytes>")


class _Read(typing.NamedTuple):
    """Where an array lies, in this process."""

    name: str
    address: int
    dtype: str
    shape: "tuple[int, ...]"
    strides: "tuple[int, ...]"
    on_device: bool
    itemsize: int

    @property
    def nbytes(self) -> int:
        if 0 in self.shape:
            return 0
        return self.itemsize * (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)))

    @property
    def is_dense(self) -> bool:
        """Whether its elements fill its bytes, each once, in whatever order."""
        expected = 1
        for stride, length in sorted((s, n) for n, s in zip(self.shape, self.strides) if n != 1):
            if stride != expected:
                return False
            expected *= length
        return True


def _torch_type():
    # Who has no tensor of PyTorch's has not imported it.
    library = sys.modules.get("torch")
    return getattr(library, "Tensor", None)


def _copy(array: typing.Any) -> typing.Any:
    if hasattr(array, "contiguous"):
        return array.contiguous()
    import numpy
    return numpy.ascontiguousarray(array)


def _await_torch(tensors: "typing.Mapping[str, typing.Any]", kind: typing.Any) -> None:
    """Waits until every device is done with what it writes to PyTorch's tensors."""
    if kind is None:
        return
    devices = {str(one.device): one.device for one in tensors.values()
               if isinstance(one, kind) and one.is_cuda}
    for device in devices.values():
        sys.modules["torch"].cuda.synchronize(device)


def _aliases(reads: "builtins.list[_Read]") -> "dict[str, _Read]":
    """Those that lie in the bytes of another one, and that one: tied weights, views."""
    found: "dict[str, _Read]" = {}
    cover: "_Read | None" = None
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


def _take(shard: Shard, tensors: "dict[str, typing.Any]", kind: typing.Any
          ) -> "dict[str, typing.Any]":
    """The rank's slice of each. Of the same memory, as tied weights are, there is one copy."""
    fused = {name: array for name, array in tensors.items()
             if isinstance(shard.cut(name), Fused)}
    places = {one.name: one[1:] for one in
              (_Read(*row) for row in (_core._read_arrays(fused, kind) if fused else ()))}
    copies: "dict[typing.Any, typing.Any]" = {}
    taken = {}
    for name, array in tensors.items():
        if name not in fused:
            taken[name] = shard.take(name, array)
            continue
        key = (places[name], shard.cut(name))
        if key not in copies:
            copies[key] = shard.take(name, array)
        taken[name] = copies[key]
    return taken


def _publish(writer: typing.Any, name: str, checksum: bool, address: str,
             timeout: "float | None") -> int:
    with Keeper(address, timeout=timeout) as keeper:
        return writer.publish(keeper, name, checksum, timeout)


def _layout(fingerprint: str, metadata: "typing.Mapping[str, str] | None",
            shard: "Shard | None"):
    layout = _core._WeightsLayout(fingerprint)
    notes = {} if shard is None else {"shard.rank": str(shard.rank),
                                      "shard.count": str(shard.count)}
    for key, value in {**(metadata or {}), **notes}.items():
        layout.note(key, value)
    return layout


def put(name: str, tensors: "typing.Mapping[str, typing.Any]", *, fingerprint: str = "",
        metadata: "typing.Mapping[str, str] | None" = None, shard: "Shard | None" = None,
        device: typing.Any = 0, host_node: "int | None" = None, checksum: bool = True,
        address: str = "", timeout: "float | None" = 10.0) -> int:
    """Puts arrays, or a state_dict, under a name, in place of the set that is there.

    tensors: PyTorch's, or anything with __dlpack__, of the host or a device; each is copied
    once, but what lies in another's bytes, as tied weights do, stays an alias. The GPU must be
    done with what it writes to them; for PyTorch's this waits. host_node: on that NUMA node of the
    host instead of the device. checksum: for verify(), also of what was on a device, which is
    read back for it. shard: what this rank takes of each; its metadata say which one it was.

    Returns the generation, 1 for the first. Aborted when another process put one meanwhile,
    FailedPrecondition when what is under the name is no set, ResourceExhausted when it does not
    fit beside the old one. The old set is there until the new one is complete.
    """
    if not isinstance(tensors, typing.Mapping):
        raise TypeError(f"put() takes tensors by name, as a dict, not a {type(tensors).__name__}")
    kept = dict(tensors)  # What is read is there until it was copied.
    kind = _torch_type()
    if shard is not None:
        kept = _take(shard, kept, kind)
    _await_torch(kept, kind)
    reads = [_Read(*row) for row in _core._read_arrays(kept, kind)]
    aliases = _aliases(reads)
    loose: "dict[str, typing.Any]" = {}
    places_of: "dict[tuple[typing.Any, ...], str]" = {}
    for one in reads:
        if not one.is_dense and one.name not in aliases:
            # Of the same slice there is one copy, as of tied weights that are cut.
            first = places_of.setdefault(one[1:], one.name)
            if first == one.name:
                loose[first] = _copy(kept[first])
            kept[one.name] = loose[first]
    if loose:
        _await_torch(loose, kind)  # The copies are made on PyTorch's own streams.
        reads = [_Read(*row) for row in _core._read_arrays(kept, kind)]
        # A copy lies in nobody's bytes; what lay in others' does so still.
        aliases = {alias: base for alias, base in _aliases(reads).items() if alias not in loose}
    layout = _layout(fingerprint, metadata, shard)
    places = {one.name: layout.add(one.name, one.dtype, one.shape, one.strides)
              for one in reads if one.name not in aliases}
    for one in reads:
        if one.name in aliases:
            base = aliases[one.name]
            layout.add(one.name, one.dtype, one.shape, one.strides, places[base.name],
                       one.address - base.address)
    memory = Allocation(device, nbytes=layout.nbytes, host_node=host_node)
    with _core._WeightsWriter(memory, layout) as writer:
        for one in reads:
            if one.name in places and one.nbytes > 0:
                writer.copy(places[one.name], one.address, one.nbytes, one.on_device)
        return _publish(writer, name, checksum, address, timeout)


def _files(paths: typing.Any) -> "builtins.list[str]":
    if isinstance(paths, (str, os.PathLike)):
        path = os.fspath(paths)
        if not os.path.isdir(path):
            return [path]
        return sorted(os.path.join(path, one) for one in os.listdir(path)
                      if one.endswith(".safetensors"))
    return [os.fspath(path) for path in paths]


def load(name: str, paths: "str | os.PathLike[str] | typing.Iterable[str | os.PathLike[str]]", *,
         select: "typing.Callable[[str], bool] | None" = None, shard: "Shard | None" = None,
         fingerprint: str = "", metadata: "typing.Mapping[str, str] | None" = None,
         device: typing.Any = 0, host_node: "int | None" = None,
         threads: "int | None" = None, progress: "Progress | None" = None, address: str = "",
         timeout: "float | None" = 10.0) -> int:
    """Reads safetensors files straight into shared memory, and puts that as put() does.

    paths: a file, several, or a folder with all its *.safetensors. select(name): which tensors.
    shard: what this rank takes of each, of which no more is read than that; each rank loads a set
    of its own, "llama/tp0" for example.
    threads: that read at once; as many as processors, at most 8, by default. progress(done,
    total): called with bytes, on any of them, one call at a time. The metadata of the files are
    kept, those that are given go before them.

    NotFound for a file that cannot be read, InvalidArgument for one that is damaged, or has a
    tensor of which there are no equal parts: headers are checked before anything is allocated.
    AlreadyExists for a tensor that two files have, DataLoss for a file that is cut while it is
    read. Nothing is under the name then that was not there before.
    """
    files = _files(paths)
    if not files:
        raise ValueError(f"{paths!r} has no *.safetensors")
    notes: "dict[str, str]" = {}
    work = []
    names: "dict[str, str]" = {}
    for path in files:
        entries, said = read_header(path)
        notes.update(said)
        for entry in entries:
            if select is not None and not select(entry.name):
                continue
            if names.setdefault(entry.name, path) != path:
                raise AlreadyExists(f"tensor {entry.name!r} is in {names[entry.name]} and in "
                                    f"{path}")
            work.append(part_of(shard, path, entry))
    layout = _layout(fingerprint, {**notes, **(metadata or {})}, shard)
    for part in work:
        layout.add(part.entry.name, part.entry.dtype, part.shape)
    total, done, lock = sum(part.nbytes for part in work), 0, threading.Lock()
    memory = Allocation(device, nbytes=layout.nbytes, host_node=host_node)
    with _core._WeightsWriter(memory, layout) as writer:

        def read(place: int) -> None:
            nonlocal done
            read_part(writer, place, work[place])
            with lock:
                done += work[place].nbytes
                if progress is not None:
                    progress(done, total)

        # The largest first, so that no thread has one left when the others are done.
        order = sorted(range(len(work)), key=lambda place: -work[place].nbytes)
        workers = threads or min(8, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(workers, "vmmshare-load") as pool:
            reading = [pool.submit(read, place) for place in order]
            try:
                for one in reading:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return _publish(writer, name, False, address, timeout)


def open(name: str, *, fingerprint: "str | None" = None, address: str = "",
         timeout: "float | None" = 10.0) -> TensorSet:
    """The set under a name. NotFound when there is none; FailedPrecondition when what is there
    is no set, or one with another fingerprint than is expected; InvalidArgument for one that is
    damaged."""
    with Keeper(address, timeout=timeout) as keeper:
        memory = keeper.attach(name, timeout=timeout)
    weights = TensorSet(name, memory)
    if fingerprint is not None and weights.fingerprint != fingerprint:
        raise FailedPrecondition(
            f"tensor set {name!r} has the fingerprint {weights.fingerprint!r}; expected "
            f"{fingerprint!r}", "It is of another model, or made otherwise: put it anew.")
    return weights


def list(*, address: str = "", timeout: "float | None" = 10.0
         ) -> "builtins.list[dict[str, typing.Any]]":
    """The sets that a keeper has, by name, as show() has them, without their tensors. What else
    it keeps is left out, and so is what was dropped meanwhile."""
    found = []
    with Keeper(address, timeout=timeout) as keeper:
        names = [kept["name"] for kept in keeper.list(timeout=timeout)
                 if kept["state"] == "sealed"]
    for name in names:
        try:
            with open(name, address=address, timeout=timeout) as weights:
                found.append(_shown(weights))
        except (FailedPrecondition, LookupError):
            continue
    return found


def _shown(weights: TensorSet) -> "dict[str, typing.Any]":
    return {"name": weights.name, "generation": weights.generation,
            "fingerprint": weights.fingerprint, "nbytes": weights.nbytes,
            "count": len(weights)}


def show(name: str, *, address: str = "", timeout: "float | None" = 10.0
         ) -> "dict[str, typing.Any]":
    """Name, generation, fingerprint, nbytes, count, metadata and tensors of a set."""
    with open(name, address=address, timeout=timeout) as weights:
        return {**_shown(weights), "metadata": weights.metadata, "tensors": weights.tensors()}


def verify(name: str, *, address: str = "", timeout: "float | None" = 10.0) -> int:
    """TensorSet.verify() of the set under a name."""
    with open(name, address=address, timeout=timeout) as weights:
        return weights.verify()


def drop(name: str, *, address: str = "", timeout: "float | None" = 10.0) -> None:
    """The keeper forgets the set; who has it open keeps it. NotFound when there is none."""
    with Keeper(address, timeout=timeout) as keeper:
        keeper.drop(name, timeout=timeout)
