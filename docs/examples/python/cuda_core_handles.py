"""Memory of cuda.core goes to another process by vmmshare, which has it as a descriptor and a Buffer.

Shows both directions without a copy: vmmshare adopts what cuda.core's VirtualMemoryResource made,
and cuda.bindings imports the descriptor that vmmshare hands out. Needs a GPU, numpy, cuda-core 1.0
or newer, cuda-bindings. Linux. Run it by itself: it starts the other process.
"""

import os

import support
import vmmshare as vs
import vmmshare.broker

SIZE = 4 << 20


def must(answer):
    """What a call of cuda.bindings returned, without its result."""
    result, *values = answer
    if int(result) != 0:
        raise RuntimeError(f"the driver answered {result.name}")
    return values[0] if values else None


class Mapped:
    """The memory behind a descriptor, mapped for one device by cuda.bindings. Closes the descriptor:
    the driver has its own then."""

    def __init__(self, driver, descriptor, size, device):
        self._driver, self.size = driver, size
        posix = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        try:
            self._handle = must(driver.cuMemImportFromShareableHandle(descriptor, posix))
        finally:
            os.close(descriptor)
        self.ptr = int(must(driver.cuMemAddressReserve(size, 0, 0, 0)))
        must(driver.cuMemMap(self.ptr, size, 0, self._handle, 0))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        must(driver.cuMemSetAccess(self.ptr, size, [access], 1))

    def close(self):
        must(self._driver.cuMemUnmap(self.ptr, self.size))
        must(self._driver.cuMemAddressFree(self.ptr, self.size))
        must(self._driver.cuMemRelease(self._handle))


def total(driver, numpy, buffer):
    found = numpy.zeros(buffer.size, numpy.uint8)
    must(driver.cuMemcpyDtoH(found.ctypes.data, int(buffer.handle), buffer.size))
    return int(found.sum(dtype="int64"))


def use(name):
    """In the other process: reads what is there, and writes twos."""
    import numpy
    from cuda import core
    from cuda.bindings import driver
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    with vs.broker.fetch_handles(name, timeout=10) as handles:  # The lease: held while it is mapped.
        descriptor, size = handles.take()
        mapped = Mapped(driver, descriptor, size, 0)
        theirs = core.Buffer.from_handle(mapped.ptr, size, owner=mapped)
        found = total(driver, numpy, theirs)
        theirs.fill(2, stream=stream)
        stream.sync()
        theirs.close()
        mapped.close()
    return found


def main():
    support.arguments(__doc__)
    numpy = support.library("numpy", "numpy")
    core = support.library("cuda.core", "cuda-core")
    support.gpu()
    driver = support.library("cuda.bindings.driver", "cuda-bindings")
    if not hasattr(core, "VirtualMemoryResource"):
        support.skip("cuda.core is older than 1.0: pip install --upgrade cuda-core")
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    resource = core.VirtualMemoryResource(device, config=core.VirtualMemoryResourceOptions())
    buffer = resource.allocate(SIZE, stream=stream)
    buffer.fill(1, stream=stream)
    stream.sync()
    name = f"cuda-core-{os.getpid()}"
    with vs.broker.publish(name, vs.adopt(int(buffer.handle), buffer.size)):
        theirs = support.elsewhere(use, name)
    print(f"sum there {theirs}, here after it wrote {total(driver, numpy, buffer)}")
    buffer.close()


if __name__ == "__main__":
    main()
