"""Weights that outlive engines: named tensors in one range of memory, held by a keeper.

    vmmshare.weights.put("llama/tp0", model.state_dict())       # or a dict of arrays
    vmmshare.weights.load("llama/tp0", "model.safetensors")     # straight from files, or a
                                                                # Shard of them

    weights = vmmshare.weights.open("llama/tp0")     # any process of this user, then or later
    tensors = weights.torch()                        # or weights["embed.weight"], an Array

Nothing is copied by whoever opens them, and they are there after the process that put them was
killed. Putting under a name that has a set replaces that in one step: who opens the name has all
of the old set or all of the new, and who has the old one keeps it.

A trainer that writes its weights anew each step, and engines that switch without a copy:

    publisher = vmmshare.weights.publisher(model.state_dict())      # the trainer
    publisher.add(connection)                                       # for each engine
    publisher.copy(model.state_dict())                              # each step

    follower = vmmshare.weights.follow(connection)                  # an engine
    weights = follower.latest(stream)

In all of these `address` is that of the keeper's socket, this user's own if empty. `timeout` is in
seconds, None for ever: for each thing that the keeper is asked, but of put() and load() for all of
these together, without what is read and copied in between. NotFound: no keeper listens there, which
these two say before they do anything; start one by `vmmshare keep`. docs/weights.md has the rules.
"""

from __future__ import annotations

import builtins
import typing

from . import _core
from ._core import Allocation, Device, Keeper
from ._follower import Follower, follow
from ._paths import Path
from ._publisher import Publisher, Update, publisher
from ._reads import (Read, await_fences, await_torch, dense_copy, elsewhere, forwards, order_made,
                     read_array, read_arrays, torch_type)
from ._safetensors_files import called, check_assigned, find_files, mark_of, read_header, selected
from ._sets import (Draft, TensorSet, check_described, draft, layout_of, put_written,
                    reach_keeper)
from ._shards import Cut, Fused, Shard
from .errors import (DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound,
                     ResourceExhausted, Unavailable, Unimplemented, VmmshareError)

__all__ = ["Draft", "Follower", "Fused", "Publisher", "Shard", "TensorSet", "Update", "draft",
           "drop", "follow", "list", "load", "open", "publisher", "put", "show", "verify"]

Progress = typing.Callable[[int, int], object]


def _take(shard: Shard, tensors: "dict[str, typing.Any]"
          ) -> "tuple[dict[str, typing.Any], builtins.list[typing.Any]]":
    """The rank's slice of each, and those of them that were joined. Of the same memory, as tied
    weights are, there is one copy."""
    fused = {name: array for name, array in tensors.items()
             if isinstance(shard.cut(name), Fused)}
    places = {row[0]: row[1:] for row in (read_arrays(fused).rows() if fused else ())}
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
    return taken, [*copies.values()]


def _await_default_streams(arrays: "typing.Mapping[str, typing.Any]", reads: typing.Any,
                           target: "int | None") -> None:
    """Waits for what is on the default streams on which arrays are read and the device `target` is
    written to: Ctrl-C is heard here, and by no copy. PyTorch's were waited for."""
    torch = torch_type()
    devices = set() if target is None else {target}
    for row in reads.rows():
        read = Read(*row, reads)
        if read.on_device and read.nbytes and not (
                torch is not None and isinstance(arrays[read.name], torch)):
            devices.add(_core._device_at(read.address))
    for device in devices:
        last = Allocation(device, nbytes=2)
        # The thread that waits has no context: here it is put behind what is on this thread's.
        _core._copy_into(last, last.ptr, 0)

        def wait(last: Allocation = last) -> None:
            with last:
                _core._copy_into(last, last.ptr + 1, 1)

        elsewhere(wait)


def _await_made(made: "typing.Iterable[typing.Any]", device: "int | None",
                timeout: "float | None") -> None:
    """Arrays that were made by this call, for which nobody else can have waited, may be copied on
    the default stream of `device` then; None: of the host. PyTorch's were waited for."""
    torch = torch_type()
    of_others: "dict[int, typing.Any]" = {}  # Devices.
    for one in made:
        read = read_array(one)
        if not read.on_device or not read.nbytes or torch is not None and isinstance(one, torch):
            continue
        order_made(one, timeout)
        if hasattr(one, "block_until_ready"):  # It was waited for.
            continue
        on = _core._device_at(read.address)
        if on != device:
            of_others[on] = read
    for on, read in of_others.items():
        # Another device's default stream waits for nothing: a copy on their own comes after all.
        with Allocation(on, nbytes=1) as last:
            _core._copy_into(last, read.address, 1)


def put(name: str, tensors: "typing.Mapping[str, typing.Any]", *, fingerprint: str = "",
        metadata: "typing.Mapping[str, str] | None" = None, shard: "Shard | None" = None,
        device: typing.Any = 0, host_node: "int | None" = None, checksum: bool = True,
        address: Path = "", timeout: "float | None" = 10.0) -> int:
    """Puts arrays, or a state_dict, under a name, in place of the set that is there.

    tensors: PyTorch's, or anything with __dlpack__, of the host or a device. Each is copied once;
    what lies in another's bytes, as tied weights do, stays an alias. What has gaps, as a slice has,
    is made dense: ValueError where it is not PyTorch's, and of a device or of a type that NumPy has
    not, as bfloat16. TensorSet.torch() has those of a set as PyTorch's.
    host_node: on that NUMA node of the host instead of the device. checksum: for verify(), also of
    what was on a device, which takes it. shard: what this rank takes of each; its metadata say
    which one it was.

    The GPU must be done with what it writes to the tensors. This waits for PyTorch's, and, `timeout`
    seconds at most, for what a library joins for Fused and for the fences that Arrays were opened
    with: DeadlineExceeded, or Unavailable once who serves such a fence has ended.

    Returns the generation, 1 for the first. Aborted when another process put one meanwhile, or
    dropped the old one, FailedPrecondition when what is under the name is no set,
    ResourceExhausted when it does not fit beside the old one. The old set is there until the new
    one is complete.
    """
    if not isinstance(tensors, typing.Mapping):
        raise TypeError(f"put() takes tensors by name, as a dict, not a {type(tensors).__name__}")
    check_described(fingerprint, metadata, shard)
    left = reach_keeper(name, address, timeout)
    kept = dict(tensors)  # What is read is there until it was copied.
    await_fences(kept.values(), timeout)
    kept = forwards(kept)
    joined: "builtins.list[typing.Any]" = []
    if shard is not None:
        kept, joined = _take(shard, kept)
    await_torch(kept)
    reads = read_arrays(kept)
    copies: "dict[str, typing.Any]" = {}
    for one, first in reads.loose():
        # Of the same slice there is one copy, as of tied weights that are cut.
        if first not in copies:
            copies[first] = dense_copy(first, kept[first])
        kept[one] = copies[first]
    if copies:
        await_torch(copies)  # They are made on PyTorch's own streams.
        reads = read_arrays(kept)
    layout = layout_of(fingerprint, metadata, shard)
    # A copy lies in nobody's bytes; what lay in others' does so still.
    reads.lay_out(layout, [*copies])
    # Closed here: who handles what is raised has this function's frame, and all that is in it.
    with Allocation(device, nbytes=layout.nbytes, host_node=host_node) as memory:
        target = _core._device_at(memory.ptr) if host_node is None else None
        _await_default_streams(kept, reads, target)
        with _core._WeightsWriter(memory, layout) as writer:
            _await_made([*joined, *copies.values()], target, timeout)
            reads.copy_to(writer)
            return put_written(writer, name, checksum, address, left)


def load(name: str, paths: "Path | typing.Iterable[Path]", *,
         select: "typing.Callable[[str], bool] | None" = None, shard: "Shard | None" = None,
         fingerprint: str = "", metadata: "typing.Mapping[str, str] | None" = None,
         device: typing.Any = 0, host_node: "int | None" = None,
         threads: "int | None" = None, progress: "Progress | None" = None, address: Path = "",
         timeout: "float | None" = 10.0) -> int:
    """Reads safetensors files straight into shared memory, and puts that as put() does.

    paths: a file, several, or a folder: what its model.safetensors.index.json says, or its only
    other *.safetensors.index.json, and without one all its *.safetensors. Or such an index: of each
    file that it names those tensors that it says are there. select(name): which tensors; ValueError
    if it takes none.
    shard: what this rank takes of each, of which no more is read than that; each rank loads a set
    of its own, "llama/tp0" for example.
    threads: that read at once; as many as processors, at most 8, by default. progress(done,
    total): called with bytes, on the calling thread, some times a second and when all are read;
    what it raises ends the load. The metadata of the files are kept, those that are given go
    before them.

    NotFound for a file that is not there, and others as the system answers; InvalidArgument for
    one that is damaged, lacks what the index says it has, has metadata with a key that a set has
    not (1 to 512 of printable ASCII), or a tensor of which there are no equal parts: headers are
    checked before anything is allocated.
    AlreadyExists for a tensor that two files have, DataLoss for a file that is cut, replaced or
    written to while it is read. Nothing is under the name then that was not there before.
    """
    files, assigned = find_files(paths, select)
    if not files:
        raise ValueError(f"{paths!r} has no *.safetensors" if assigned is None else
                         f"`select` takes none of the tensors in the index of {paths!r}")
    if threads is not None and not 1 <= threads < 2**32:
        raise ValueError(f"{threads} threads; expected 1 to {2**32 - 1}")
    check_described(fingerprint, metadata, shard)
    left = reach_keeper(name, address, timeout)
    marks = [mark_of(path) for path in files]  # Before anything is read of them.
    headers = [read_header(path) for path in files]
    if assigned is not None:
        check_assigned(assigned, files, headers)
    shown = [called(path) for path in files]
    layout = layout_of(fingerprint, metadata, shard,
                       files=zip(shown, (header.metadata() for header in headers)))

    takes = None
    if assigned is not None:
        takes = lambda tensor, file: assigned.get(tensor) == files[file]
    elif select is not None:
        takes = selected(select, headers, paths)
    reads = layout.add_files(headers, shown, takes, shard)
    with Allocation(device, nbytes=layout.nbytes, host_node=host_node) as memory, \
            _core._WeightsWriter(memory, layout) as writer:
        writer.read_files(files, reads, threads or 0, progress)
        for path, as_shown, mark in zip(files, shown, marks):
            if mark_of(path) != mark:
                raise DataLoss(f"{as_shown} was replaced or written to while it was read",
                               "Load it once whoever writes it is done.")
        return put_written(writer, name, False, address, left)


def open(name: str, *, fingerprint: "str | None" = None, address: Path = "",
         timeout: "float | None" = 10.0,
         device: "Device | int | str | None" = None) -> TensorSet:
    """The set under a name. `device` as of vmmshare.connect(). NotFound when there is none;
    FailedPrecondition when what is there is no set, or one with another fingerprint than is
    expected; InvalidArgument for one that is damaged."""
    with Keeper(address, timeout=timeout) as keeper:
        memory = keeper.attach(name, timeout=timeout, device=device)
    try:
        weights = TensorSet(name, memory)
        if fingerprint is not None and weights.fingerprint != fingerprint:
            with weights:
                raise FailedPrecondition(
                    f"tensor set {name!r} has the fingerprint {weights.fingerprint!r}; expected "
                    f"{fingerprint!r}", "It is of another model, or made otherwise: put it anew.")
    except BaseException:
        memory.close()
        raise
    return weights


def list(*, address: Path = "", timeout: "float | None" = 10.0
         ) -> "builtins.list[dict[str, typing.Any]]":
    """The sets that a keeper has, by name, as show() has them, without their tensors. What else
    it keeps is left out, and so is what was dropped meanwhile, is damaged or of another version:
    show() says why. Of memory that cannot be opened here, be it a set or not, there are name and
    nbytes, and "error" says why: its device is hidden, for example."""
    with Keeper(address, timeout=timeout) as keeper:
        entries = [_listed(keeper, kept, timeout) for kept in keeper.list(timeout=timeout)
                   if kept["state"] == "sealed"]
    return [entry for entry in entries if entry is not None]


def _listed(keeper: Keeper, kept: "dict[str, typing.Any]", timeout: "float | None"
            ) -> "dict[str, typing.Any] | None":
    """As list() has it; None for what it leaves out."""
    unopened = {"name": kept["name"], "nbytes": kept["bytes"]}
    try:
        memory = keeper.attach(kept["name"], timeout=timeout)
    except NotFound:
        return None
    except (DeadlineExceeded, Unavailable):  # Of the keeper: nothing more can be asked.
        raise
    except VmmshareError as error:
        return {**unopened, "error": str(error)}
    try:
        with TensorSet(kept["name"], memory) as weights:
            return _shown(weights)
    except VmmshareError as error:
        no_set = (FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unimplemented)
        if error.cuda_result is None and isinstance(error, no_set):
            return None
        return {**unopened, "error": str(error)}


def _shown(weights: TensorSet) -> "dict[str, typing.Any]":
    return {"name": weights.name, "generation": weights.generation,
            "fingerprint": weights.fingerprint, "nbytes": weights.nbytes,
            "count": len(weights)}


def show(name: str, *, address: Path = "", timeout: "float | None" = 10.0
         ) -> "dict[str, typing.Any]":
    """Name, generation, fingerprint, nbytes, count, metadata and tensors of a set: these as
    TensorSet.tensors() has them, strides in elements, offset and nbytes in bytes."""
    with open(name, address=address, timeout=timeout) as weights:
        return {**_shown(weights), "metadata": weights.metadata, "tensors": weights.tensors()}


def verify(name: str, *, address: Path = "", timeout: "float | None" = 10.0) -> int:
    """TensorSet.verify() of the set under a name."""
    with open(name, address=address, timeout=timeout) as weights:
        return weights.verify()


def drop(name: str, *, address: Path = "", timeout: "float | None" = 10.0) -> None:
    """The keeper forgets the name, whatever is under it: it does not look whether that is a set.
    Who has it open keeps it. NotFound when nothing is kept under the name."""
    with Keeper(address, timeout=timeout) as keeper:
        keeper.drop(name, timeout=timeout)
