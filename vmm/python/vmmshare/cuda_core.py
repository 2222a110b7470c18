"""cuda.core's buffers and views of vmmshare's memory."""

from __future__ import annotations

import importlib
import typing
import weakref

from . import _served, errors
from ._core import Array, Pool
from ._reads import CUDA

__all__ = ["buffer", "memory_resource", "view"]


# Where its names are: before version 1.0 all of it was experimental.
_PLACES = ("cuda.core", "cuda.core.utils", "cuda.core.experimental",
           "cuda.core.experimental.utils")


def _name(name: str):
    found = False
    for place in _PLACES:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        found = True
        if hasattr(module, name):
            return getattr(module, name)
    if not found:
        raise ImportError("vmmshare.cuda_core needs cuda.core: pip install cuda-core")
    raise ImportError(f"cuda.core has no {name} where it was up to version 1.2")


def _stream_of(stream: typing.Any) -> int:
    """Of an int or one of cuda.core's. 0 is the legacy default stream, which is 1 for DLPack."""
    return int(getattr(stream, "handle", stream)) or 1


def buffer(of: Array, *, stream: typing.Any = 0, readonly: bool = False):
    """A cuda.core.Buffer of an Array's bytes, which it keeps.

    A Buffer has no stream: pass the one that will use it first, cuda.core's or a CUstream as an
    int. It waits for the fence that the array was opened with, and the memory goes back after
    what is on it then: see Pool.release_stream() before it is destroyed. 0, the legacy default
    stream, is in no order with cuda.core's own streams, which are non-blocking unless they are
    made otherwise: work there begins before the fence.

    Nor does a Buffer know what is read-only, and a kernel that writes there ends this process's
    context: of such an array one is made only where readonly=True says that nothing will,
    FailedPrecondition otherwise. ValueError for an array that is not dense, and for stream 2, each
    thread's own.
    """
    make = _name("Buffer").from_handle
    if of.readonly and not readonly:
        raise errors.FailedPrecondition(
            "the array is read-only, and cuda.core would take its Buffer for writable",
            "Open it with connect(..., writable=True), pass readonly=True if nothing writes "
            "there, or use view(), which knows.")
    strides, step = [], of.nbytes
    for length in of.shape:
        step //= max(length, 1)
        strides.append(step)
    if of.nbytes and any(n > 1 and s != d for n, s, d in zip(of.shape, of.strides, strides)):
        raise ValueError(f"the array is not dense: shape {of.shape}, strides {of.strides}")
    if of.__dlpack_device__()[0] == CUDA:
        of._use_on(_stream_of(stream))
    return make(of.ptr, of.nbytes, owner=of)


def view(of: Array, stream: typing.Any = -1):
    """A cuda.core StridedMemoryView of an Array, for launching kernels. `stream`: as buffer()'s,
    or -1, which orders nothing: neither is the fence waited for that the array was opened with,
    nor does the memory go back after the kernels."""
    return _name("StridedMemoryView").from_dlpack(of, stream_ptr=_stream_of(stream))


def memory_resource(pool: Pool):
    """A cuda.core.MemoryResource that takes from `pool`, in the order of streams.

    A Buffer that is dropped goes back behind the stream that it was allocated for, and so does
    one that is closed on the default stream with cuda.core before 1.2. What was allocated without
    a stream, or for the default one, serves others after the work that is then on all streams
    which synchronise with the legacy default stream. The resource keeps the Streams that it was
    given: before close() of one call pool.release_stream(int(stream.handle)).
    """
    make = _name("Buffer").from_handle
    pool = pool._kept()  # close() is of the program's own handle.
    own: dict = {}  # Streams by address, where a Buffer does not know its own: before 1.2.
    used: dict = {}  # Streams by handle: at one that was destroyed the driver may end the process.

    def handle(stream):
        number = _handle(stream)
        if not _is_default(stream):
            used[number] = stream
        return number

    class Resource(_name("MemoryResource")):  # type: ignore[misc]
        is_device_accessible = True
        is_host_accessible = pool.device is None
        device_id = -1 if pool.device is None else pool.device

        # Before version 1.0 cuda.core passes the stream by its place.
        def allocate(self, size, stream=None):
            if size == 0:  # What has no elements has no memory.
                return make(0, 0, mr=self)
            address = pool._allocate(size, handle(stream))
            if _is_default(stream):
                return make(address, size, mr=self)
            try:
                return make(address, size, mr=self, stream=stream)
            except TypeError as why:
                if "unexpected keyword argument" not in str(why):
                    raise
            own[address] = stream
            return make(address, size, mr=self)

        def deallocate(self, ptr, size, stream=None):
            if size == 0:
                return
            first = own.pop(int(ptr), None)
            pool._free(int(ptr), handle(first if _is_default(stream) else stream))

    made = Resource()
    weakref.finalize(made, _release, _Used(pool, used)).atexit = False
    return made


class _Used:
    """Streams that a pool may ask the driver after, for which the watch of _served looks."""

    def __init__(self, pool: Pool, streams: dict):
        self._pool, self._streams = pool, streams

    def leases(self) -> list:
        """Lets go of those that the GPU has passed; what is kept."""
        for number in [*self._streams]:
            if self._pool._forget_stream(number):
                self._streams.pop(number, None)
        return [*self._streams]


def _release(used: _Used) -> None:
    if used.leases():
        _served._keep(used, None)


def _handle(stream) -> int:
    return 0 if stream is None else int(stream.handle)


def _is_default(stream) -> bool:
    return _handle(stream) in (0, 1)  # CU_STREAM_LEGACY
