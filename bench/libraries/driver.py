"""The CUDA driver's calls by ctypes: what every row needs to look at memory and time streams."""

import ctypes

WAIT_GEQ = 0
NON_BLOCKING = 1
LAZY_PEER_ACCESS = 1
WHOLE_HANDLE = 64


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * WHOLE_HANDLE)]


class Driver:
    """The installed driver, or the library at `path`. Calls raise RuntimeError with their name."""

    def __init__(self, path="libcuda.so.1"):
        self._library = ctypes.CDLL(path)
        self("cuInit", 0)

    def __call__(self, name, *arguments):
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({result})")

    def has(self, name):
        return hasattr(self._library, name)

    def device_names(self):
        count, names = ctypes.c_int(), []
        self("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            text = ctypes.create_string_buffer(256)
            self("cuDeviceGetName", text, 256, ordinal)
            names.append(text.value.decode())
        return names

    def version(self):
        number = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def use(self, device):
        """Makes the primary context, which PyTorch and the others use too, current."""
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def synchronize(self):
        self("cuCtxSynchronize")

    # --- memory -----------------------------------------------------------------------------

    def allocate(self, nbytes):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, address):
        self("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, address, word, nbytes):
        self("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint32(word),
             ctypes.c_size_t(nbytes // 4))

    def word(self, address):
        value = ctypes.c_uint32()
        self("cuMemcpyDtoH_v2", ctypes.byref(value), ctypes.c_uint64(address), ctypes.c_size_t(4))
        return value.value

    def allocation_of(self, address):
        """First byte and size of the allocation that `address` lies in."""
        first, size = ctypes.c_uint64(), ctypes.c_size_t()
        self("cuMemGetAddressRange_v2", ctypes.byref(first), ctypes.byref(size),
             ctypes.c_uint64(address))
        return first.value, size.value

    def ipc_handle(self, address):
        handle = IpcHandle()
        self("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def open_ipc_handle(self, handle):
        address = ctypes.c_uint64()
        self("cuIpcOpenMemHandle_v2", ctypes.byref(address), IpcHandle.from_buffer_copy(handle),
             ctypes.c_uint(LAZY_PEER_ACCESS))
        return address.value

    def close_ipc_handle(self, address):
        self("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    # --- streams ----------------------------------------------------------------------------

    def new_stream(self):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream.value

    def finish(self, stream):
        self("cuStreamSynchronize", ctypes.c_void_p(stream))

    def write_value(self, stream, address, value):
        self("cuStreamWriteValue64_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address),
             ctypes.c_uint64(value), 0)

    def wait_value(self, stream, address, value):
        """Later work on the stream waits until the word is `value` or more."""
        self("cuStreamWaitValue64_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address),
             ctypes.c_uint64(value), WAIT_GEQ)

    def new_event(self):
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 0)
        return event.value

    def record(self, event, stream):
        self("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def milliseconds(self, start, end):
        passed = ctypes.c_float()
        self("cuEventElapsedTime", ctypes.byref(passed), ctypes.c_void_p(start),
             ctypes.c_void_p(end))
        return passed.value


class Gate:
    """Holds a stream back until all that is timed is on it, so that the host's pace is not."""

    def __init__(self, driver):
        self._driver, self._value = driver, 0
        memory = ctypes.c_void_p()
        driver("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(8), 3)  # Portable, mapped.
        self._word = ctypes.c_uint64.from_address(memory.value)
        self._word.value = 0
        self._address = memory.value

    def close(self, stream):
        self._value += 1
        self._driver.wait_value(stream, self._address, self._value)

    def open(self):
        self._word.value = self._value
