"""Numba's device arrays of vmmshare's memory."""

from __future__ import annotations

import ctypes

from ._core import Array, Pool

__all__ = ["array", "memory_manager"]


def _library():
    try:
        import numba.cuda
    except ImportError as error:
        raise ImportError("vmmshare.numba needs numba: pip install numba-cuda") from error
    return numba.cuda


def array(of: Array):
    """The device array of an Array, which it keeps, for numba.cuda kernels."""
    return _library().as_cuda_array(of)


def memory_manager(pool: Pool):
    """A memory manager of Numba (EMM plugin) that takes device memory from `pool`.

    For numba.cuda.set_memory_manager(), before Numba first uses the GPU; the pool lives as
    long as the process. What Numba makes is of memory that the GPU is done with, for any stream.
    What it lets go of serves others after the work that is on its streams then, without a wait of
    the host. So it is of all streams that synchronise with the legacy default stream: synchronise
    one that does not (a non-blocking one of another library, or a per-thread default one) before
    you drop what it uses. RuntimeError for memory of a device other than the pool's, and for
    Numba's get_ipc_handle(): a ticket shares it.
    """
    cuda = _library()
    pool = pool._kept()  # close() is of the program's own handle.
    driver = cuda.cudadrv.driver
    by_binding = getattr(driver, "USE_NV_BINDING", True)

    class Manager(cuda.HostOnlyCUDAMemoryManager):
        interface_version = 1

        def initialize(self):
            pass  # The pool is there.

        def memalloc(self, size):
            if self.context.device.id != pool.device:
                raise RuntimeError(f"the pool is of device {pool.device}, "
                                   f"Numba's context of device {self.context.device.id}")
            address = pool._allocate(size, 0)
            pointer = driver.binding.CUdeviceptr(address) if by_binding else \
                ctypes.c_uint64(address)
            return cuda.MemoryPointer(self.context, pointer, size,
                                      finalizer=lambda: pool._free(address, 0))

        def get_ipc_handle(self, memory):
            raise RuntimeError("memory of a vmmshare.Pool has no CUDA IPC handle: share it by "
                               "a ticket, vmmshare.serve(pool) and Array.ticket()")

        def get_memory_info(self):
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            result = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free),
                                                                 ctypes.byref(total))
            if result != 0:
                raise RuntimeError(f"cuMemGetInfo answered {result}")
            return cuda.MemoryInfo(free=free.value, total=total.value)

    return Manager
