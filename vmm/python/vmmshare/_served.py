"""Arrays of other libraries, served where they are or as a copy."""

from __future__ import annotations

import _thread
import itertools
import json
import os
import sys
import time
import typing

from . import _core, _reads
from ._closing import Closing
from ._core import Allocation, Array, Device
from ._deadlines import deadline_of
from .errors import FailedPrecondition

__all__ = ["Served", "open_array", "open_parts", "serve_array"]


class _Leased(typing.Protocol):
    """What says who has it: an Allocation, or what is on its way through PyTorch's queues."""

    def leases(self) -> list: ...


# Of shares that are closed, what others still have: its owner must keep it until then. Without
# a lock, for the garbage collector closes shares in the middle of anything: each step on the
# dict is one for the interpreter, and no two shares have a number in common.
_kept: "dict[int, tuple[_Leased, typing.Any]]" = {}
_of_parents: "list[tuple[_Leased, typing.Any]]" = []
_numbers = itertools.count()
_LOOK_AGAIN = 0.2  # Seconds.
_watched = False


def _let_go_of_what_came_back() -> None:
    # The numbers alone: for pairs Python makes tuples, by which the collector comes in the middle.
    try:
        numbers = [*_kept]
    except MemoryError:
        return  # Who looks again and again goes on, and what was closed is closed.
    for number in numbers:
        kept = _kept.get(number)
        try:
            if kept is not None and not kept[0].leases():
                _kept.pop(number, None)
        except Exception:
            pass  # As for want of memory. It is kept, and asked again; and so are all others.


def _watch() -> None:
    """The body of the one thread that looks whether what is kept has come back."""
    global _watched
    while True:
        while _kept:
            time.sleep(_LOOK_AGAIN)
            _let_go_of_what_came_back()
        _watched = False
        if not _kept or _watched:
            return
        _watched = True


def _forget_the_watch() -> None:
    global _watched
    _watched = False
    # As what is kept is, which the child must neither ask nor free.
    _of_parents.extend(_kept.values())
    _kept.clear()


os.register_at_fork(after_in_child=_forget_the_watch)  # The thread is the parent's.


def _keep(memory: _Leased, array: typing.Any) -> None:
    global _watched
    _kept[next(_numbers)] = memory, array
    if not _watched:
        _watched = True
        # Not a threading.Thread, whose start() waits for it: this may be a garbage collector's
        # call, in the middle of anything.
        try:
            _thread.start_new_thread(_watch, ())
        except RuntimeError:  # No thread is to be had: the next call looks.
            _watched = False


class Served(Closing):
    """An array that is served while this exists: see serve_array().

    ticket: bytes for open_array(); a key. weakness: what is weaker about it than about memory
    of vmmshare's, "" for nothing. disclosed: (address, bytes) that whoever opens it can reach,
    with all that lies there, where that is more than the array: a handle gives whole chunks, of
    a pool or of PyTorch's expandable segments too. is_copy: whether it is a copy.
    """

    def __init__(self, ticket: bytes, share: "_core.Share", memory: Allocation,
                 array: typing.Any, is_copy: bool):
        self.ticket, self.is_copy = ticket, is_copy
        self.weakness, self.disclosed = memory.weakness, memory.disclosed
        self._share, self._memory, self._array = share, memory, array
        self._pid = os.getpid()

    def leases(self) -> list:
        """Who has it open: a list of dicts."""
        return self._memory.leases()

    def recall(self, within: float) -> None:
        """Asks all of them to let go within so many seconds; waits for none."""
        self._memory.recall(within)

    def wait_returned(self, timeout: "float | None" = 10.0) -> None:
        """Returns when nobody has it open; DeadlineExceeded names who still has."""
        self._memory.wait_returned(timeout=timeout)

    def close(self) -> None:
        """Serves it no more. Who has it keeps it.

        This process keeps the memory of an array that is served where it is for as long as anybody
        has it open, and a moment longer, also of one that was closed or deleted: its library would
        use it anew for others, under who has it. In a forked child it gives nothing back: all is
        the parent's.
        """
        if self._pid != os.getpid():
            return
        self._share.close()
        if self._array is not None:  # It is no copy.
            _keep(self._memory, self._array)
        self._array = None
        _let_go_of_what_came_back()

    @property
    def closed(self) -> bool:
        return self._share.closed

    def __del__(self) -> None:
        if self.__dict__.get("_array") is not None and not sys.is_finalizing():
            self.close()


def _read(array: typing.Any) -> "_reads.Read":
    return _checked(_reads.read_array(array))


def _checked(read: "_reads.Read") -> "_reads.Read":
    if not read.on_device:
        raise ValueError("the array is on the host; serve_array() takes one of a device")
    if not read.nbytes:
        raise ValueError("the array has no elements, so there is no memory to serve")
    return read


def _dense(array: typing.Any) -> typing.Any:
    for how in ("contiguous", "copy"):  # PyTorch's, and CuPy's.
        if hasattr(array, how):
            return getattr(array, how)()
    raise ValueError(f"the elements of the {type(array).__name__} do not lie side by side; "
                     "make them so, and serve that")


def _copied(array: typing.Any, timeout: "float | None") -> "tuple[Allocation, _reads.Read]":
    try:
        read = _reads.read_array(array)
    except ValueError:
        # As of elements in reverse, which nobody else can be told of.
        if not hasattr(array, "copy"):
            raise
        array = array.copy()
        read = _reads.read_array(array)
    _checked(read)
    if not read.is_dense:
        array = _dense(array)
        read = _read(array)
    deadline = deadline_of(timeout)
    _reads.order_made(array, timeout)  # It is copied on the default stream.
    memory = Allocation(_core._device_at(read.address), nbytes=read.nbytes)
    # The thread that copies has no context: here it is put behind what is on this thread's.
    _core._copy_into(memory, memory.ptr, 0)

    def copy(kept: object = (array, read)) -> None:  # Until it is made, though nobody waits.
        _core._copy_into(memory, read.address, read.nbytes)

    _reads.elsewhere(copy, timeout, deadline)
    return memory, read


def serve_array(array: typing.Any, *, legacy: bool = False, copy: bool = False,
                timeout: "float | None" = 10.0) -> Served:
    """Serves an array of another library, in a device's memory: PyTorch, CuPy, Numba, JAX.

    Where it is, without a copy, if it lies in memory of cuMemCreate() that was made exportable,
    as PyTorch's is with expandable_segments:True. legacy: also if it is cudaMalloc()'s, as
    PyTorch's and CuPy's is by default, or an exportable stream-ordered pool's. That is weaker:
    `weakness` says how. Whoever opens it can reach all that is `disclosed`. copy: a copy of it
    is served, from memory of its own, made when what is on the array's stream is done: of an Array
    of a pool the last one that was said, of whole memory none, so synchronise first. Writes to one
    are not seen in the other. timeout: of the wait for what a copy comes after, the fence that an
    Array was opened with, its stream, or the one that __cuda_array_interface__ names, and the
    device's default one, on which it is copied, and that of a context of the program's own, if the
    calling thread has one; None for ever.

    FailedPrecondition for memory that cannot be shared so, with what to do. ValueError for an
    array of the host or without elements, or for legacy and copy both. DeadlineExceeded for a
    fence that does not come, or a stream that is not done. Unavailable once who serves the fence
    has ended.
    """
    if legacy and copy:
        raise ValueError("either legacy=True, which serves it where it is, or copy=True")
    if copy:
        memory, read = _copied(array, timeout)
        offset = 0
    else:
        read = _read(array)
        try:
            memory = _core.adopt(read.address, read.nbytes, legacy=legacy)
        except FailedPrecondition as why:
            if not _core._is_known(read.address):
                raise
            raise FailedPrecondition(f"{why.args[0]} With copy=True a copy is served.",
                                     why.remedy) from None
        offset = memory.offset
    from . import serve
    _let_go_of_what_came_back()
    share = serve(memory)
    ticket = json.dumps({"text": str(share), "offset": offset, "dtype": read.dtype,
                         "shape": list(read.shape), "strides": list(read.strides)})
    return Served(ticket.encode(), share, memory, None if copy else _lasting(array, read), copy)


def _lasting(array: typing.Any, read: "_reads.Read") -> typing.Any:
    """What keeps the memory that the array lies in now. PyTorch puts other memory into a tensor
    that it changes in place, as half() of a module does with parameters. An array of others may be
    closed or deleted, or have been made for who asked; by the capsule that was read the memory is
    there all the same."""
    torch = _reads.torch_type()
    if torch is not None and isinstance(array, torch):
        return array.detach()
    return (array, read.kept) if hasattr(array, "__dlpack__") else array


def open_parts(ticket: "bytes | bytearray | memoryview", timeout: "float | None", writable: bool,
               device: typing.Any, carried: "typing.Callable[[str], str]") -> "tuple[Array, str]":
    """The Array of a Served.ticket, of the type that `carried` makes of its own, and that."""
    from . import connect
    try:
        what = json.loads(bytes(ticket) if isinstance(ticket, memoryview) else ticket)
        text, dtype, offset = str(what["text"]), str(what["dtype"]), what["offset"]
        text.encode()  # JSON may say what is no Unicode.
        dtype = dtype.removeprefix("torch.")
        shape, strides = list(what["shape"]), list(what["strides"])
        if type(offset) is not int or not 0 <= offset < 2**64:
            raise ValueError(f"offset {offset}")
        if any(type(number) is not int for number in shape + strides):
            raise ValueError(f"shape {shape}, strides {strides}")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as why:
        raise ValueError(f"no ticket of serve_array(): {why!r}") from why
    memory = connect(text, timeout=timeout, writable=writable, device=device)
    try:
        if not isinstance(memory, Allocation):
            raise ValueError("no ticket of serve_array(): its text is that of a pool")
        return memory._strided(shape, strides, carried(dtype), offset), dtype
    except TypeError as why:  # A type that is not known.
        memory.close()
        raise ValueError(f"no ticket of serve_array(): {why}") from why
    except BaseException:
        memory.close()
        raise


def open_array(ticket: "bytes | bytearray | memoryview", *, timeout: "float | None" = 10.0,
               writable: bool = False, device: "Device | int | str | None" = None) -> Array:
    """The Array of a Served.ticket, for from_dlpack() of any library.

    timeout: seconds, None for ever. writable: otherwise it is mapped read-only, which what was
    served with legacy=True cannot be: FailedPrecondition. device as of connect(). ValueError for a ticket that was
    damaged; otherwise as connect().
    """
    return open_parts(ticket, timeout, writable, device, str)[0]
