"""A module that looks like torch.cuda, as far as vmmshare.torch allocates by it.

It calls the hooks in libvmmshare as PyTorch does: of segments, which it cuts into blocks and
keeps when tensors go. Of several MemPools that a thread is in, the outer one counts. Memory is
the host-memory driver's, which the CPU sees by copies only.
"""

import contextlib
import ctypes
import threading
import types

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
STREAM = 1  # The legacy one.
SEGMENT = 2 << 20


class OutOfMemoryError(RuntimeError):
    pass


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        self.alloc, self.free = ALLOC((alloc, library)), FREE((free, library))

    def allocator(self):
        return self


class MemPool:
    def __init__(self, allocator, device):
        self.allocator, self.device = allocator, device
        self.segments, self.free = {}, []  # Sizes by address; (address, size) of what is cached.
        self.tensors, self.has_handle = 0, True

    def take(self, size):
        size = -(-size // 512) * 512
        found = [block for block in self.free if block[1] >= size]
        if not found:
            whole = -(-size // SEGMENT) * SEGMENT
            address = self.allocator.alloc(whole, self.device, STREAM)
            if not address:
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {whole} bytes")
            self.segments[address] = whole
            found = [(address, whole)]
            self.free += found
        address, left = best = min(found, key=lambda block: block[1])
        self.free.remove(best)
        if left > size:
            self.free.append((address + size, left - size))
        self.tensors += 1
        return address, size

    def put_back(self, block):
        self.free.append(block)
        self.tensors -= 1

    def give_back(self):
        for address, size in self.segments.items():
            self.allocator.free(address, size, self.device, STREAM)
        self.segments, self.free = {}, []


class Handle:
    """What the program has of a MemPool: without it segments go at an empty_cache() after the last
    tensor, or at once if there is none."""

    def __init__(self, pool):
        self.pool = pool

    def __del__(self):
        self.pool.has_handle = False
        if self.pool.tensors == 0:
            self.pool.give_back()


class DeviceTensor:
    """`count` bytes of a device."""

    def __init__(self, cuda, count):
        self.cuda, self.count, self.pool = cuda, count, cuda.current()
        self.block = self.pool.take(count)

    def data_ptr(self):
        return self.block[0]

    def fill_(self, value):
        assert self.cuda.driver.cuMemsetD8_v2(ctypes.c_uint64(self.data_ptr()), value,
                                              ctypes.c_size_t(self.count)) == 0
        return self

    def bytes(self):
        self.cuda.synchronize(0)
        into = ctypes.create_string_buffer(self.count)
        assert self.cuda.driver.cuMemcpyDtoH_v2(into, ctypes.c_uint64(self.data_ptr()),
                                                ctypes.c_size_t(self.count)) == 0
        return into.raw

    def __del__(self):
        if hasattr(self, "block"):
            self.pool.put_back(self.block)


class Cuda:
    OutOfMemoryError = OutOfMemoryError

    def __init__(self, driver):
        """driver: calls of the host-memory driver, with a current context."""
        self.driver, self.at, self.entered = driver, 0, []
        self.synchronized, self.pools = 0, []
        self.memory = types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator)

    def MemPool(self, allocator):
        self.pools.append(MemPool(allocator, self.at))
        return Handle(self.pools[-1])

    def empty_cache(self):
        for pool in self.pools:
            if pool.tensors == 0 and not pool.has_handle:
                pool.give_back()

    def current_device(self):
        return self.at

    @contextlib.contextmanager
    def device(self, ordinal):
        before, self.at = self.at, ordinal
        try:
            yield
        finally:
            self.at = before

    @contextlib.contextmanager
    def use_mem_pool(self, handle, device=None):
        assert device == handle.pool.device, "PyTorch would take memory of another allocator"
        if any(pool is handle.pool for pool, _ in self.entered):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        entry = handle.pool, threading.get_ident()
        self.entered.append(entry)
        try:
            yield
        finally:
            self.entered.remove(entry)

    def current(self):
        return next(pool for pool, thread in self.entered if thread == threading.get_ident())

    def synchronize(self, device):
        self.synchronized += 1
        assert self.driver.cuCtxSynchronize() == 0

    def empty(self, count):
        return DeviceTensor(self, count)
