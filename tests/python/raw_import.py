"""What software that imports descriptors itself does, on the host-memory driver: no vmmshare."""

import ctypes
import os

import vmmshare.testing

cuda = ctypes.CDLL(vmmshare.testing.host_driver())
_DEVICE, _READ = 1, 1


def must(result):
    assert result == 0, f"CUresult {result}"


def number(value):
    return ctypes.c_uint64(value)


def use_device(ordinal):
    """Its primary context is current from now on."""
    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
    must(cuda.cuCtxSetCurrent(context))


class Mapped:
    """A descriptor's memory; the descriptor is closed."""

    def __init__(self, descriptor, size):
        self.size, self.handle, self.at = number(size), ctypes.c_uint64(), ctypes.c_uint64()
        try:
            must(cuda.cuMemImportFromShareableHandle(ctypes.byref(self.handle),
                                                     ctypes.c_void_p(descriptor), 1))
        finally:
            os.close(descriptor)
        must(cuda.cuMemAddressReserve(ctypes.byref(self.at), self.size, number(0), number(0),
                                      number(0)))
        must(cuda.cuMemMap(self.at, self.size, number(0), self.handle, number(0)))
        must(cuda.cuMemSetAccess(self.at, self.size, (ctypes.c_int * 3)(_DEVICE, 0, _READ),
                                 number(1)))

    def read(self, offset, count):
        back = ctypes.create_string_buffer(count)
        must(cuda.cuMemcpyDtoH_v2(back, number(self.at.value + offset), number(count)))
        return back.raw

    def close(self):
        must(cuda.cuMemUnmap(self.at, self.size))
        must(cuda.cuMemAddressFree(self.at, self.size))
        must(cuda.cuMemRelease(self.handle))


def bytes_behind(descriptor, size, offset, count):
    mapped = Mapped(descriptor, size)
    try:
        return mapped.read(offset, count)
    finally:
        mapped.close()
