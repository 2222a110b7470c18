"""CuPy on vmmshare's memory.

    with vmmshare.cupy.use_pool(pool):
        a = cupy.arange(10)          # in the pool
    b = cupy.from_dlpack(array)      # an Array, as everywhere
"""

from __future__ import annotations

import contextlib

from . import _core
from ._core import Array, Pool
from ._reads import CUDA
from .errors import ResourceExhausted

__all__ = ["allocator", "array", "use_pool"]


def _library():
    try:
        import cupy
    except ImportError as error:
        raise ImportError("vmmshare.cupy needs cupy: pip install cupy-cuda12x") from error
    return cupy


_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, which CuPy has for C alone.


def _allocator(pool: Pool):
    """allocator(), and where what the pool says is put when it cannot serve."""
    cupy = _library()
    param = _core._CupyParam(pool)
    hooks = cupy.cuda.memory.CFunctionAllocator(
        param.address, _core._hook_address("cupy_malloc"), _core._hook_address("cupy_free"), param)
    said: "list[ResourceExhausted]" = []

    def malloc(size: int):
        made = hooks.malloc(size)
        said.clear()
        if made.ptr or not size:
            return made
        # CuPy takes the null for memory. By this error it lets go of what it has cached, tries
        # again, and raises its OutOfMemoryError.
        full = cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY)
        try:
            _core._raise_last_hook_error()
        except ResourceExhausted as error:
            said.append(error)
            raise full from error
        raise full

    return cupy.cuda.MemoryPool(malloc).malloc, said


def allocator(pool: Pool):
    """An allocator of CuPy that takes from `pool`: whole chunks, which CuPy's own MemoryPool cuts
    without Python in its path.

    For cupy.cuda.set_allocator() and cupy.cuda.using_allocator(). CuPy's MemoryPool orders by
    streams. What that lets go of (free_all_blocks(), and by itself where the pool is full) serves
    others after the device's work, for which the host waits, as cudaFree() does; no capture is
    lost by it. CuPy's OutOfMemoryError when the pool is full; FailedPrecondition or
    InvalidArgument for another device than the pool's.
    """
    return _allocator(pool)[0]


@contextlib.contextmanager
def use_pool(pool: Pool):
    """Within it, what CuPy makes is in the pool. What the pool said is the cause of CuPy's
    OutOfMemoryError."""
    cupy = _library()
    allocate, said = _allocator(pool)
    try:
        with cupy.cuda.using_allocator(allocate):
            yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        if not said:
            raise
        raise error from said[-1]


def array(of: Array):
    """The cupy.ndarray of an Array, which it keeps, for the current stream.

    CuPy does not know of read-only memory: a kernel that writes what was not opened with
    writable=True ends this process's context.
    """
    cupy = _library()
    kind, device = of.__dlpack_device__()
    if kind != CUDA:
        raise ValueError("the array is on the host; CuPy wants one of a device")
    of._use_on(cupy.cuda.get_current_stream().ptr)
    dtype = cupy.dtype(of.dtype)
    reach = dtype.itemsize + sum((n - 1) * s for n, s in zip(of.shape, of.strides))
    memory = cupy.cuda.UnownedMemory(of.ptr, max(reach, of.nbytes), of, device)
    return cupy.ndarray(of.shape, dtype, cupy.cuda.MemoryPointer(memory, 0),
                        strides=of.strides)
