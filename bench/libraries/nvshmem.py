"""NVSHMEM's host library by ctypes, of NVIDIA's package nvidia-nvshmem-cu13, from version 3 on.

Interfaces as nvshmem_types.h, nvshmem_uniqueid.h and nvshmemx_api.h of 3.4.5 have them.
"""

import ctypes
import importlib.util
import os

WITH_UNIQUE_ID = 1 << 3
SIGNAL_SET = 9
COMPARE_GE = 5


class UniqueId(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("internal", ctypes.c_ubyte * 124)]


class UniqueIdArguments(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("id", ctypes.POINTER(UniqueId)),
                ("rank", ctypes.c_int), ("ranks", ctypes.c_int)]


class Arguments(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("unique", UniqueIdArguments),
                ("content", ctypes.c_ubyte * 96)]


class Attributes(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("communicator", ctypes.c_void_p),
                ("arguments", Arguments)]


assert [ctypes.sizeof(one) for one in (UniqueId, UniqueIdArguments, Arguments, Attributes)] == [
    128, 24, 128, 144]


def version_of(kind, number=1):
    return (number << 16) + ctypes.sizeof(kind)


def library_path():
    """Where the package has it."""
    found = importlib.util.find_spec("nvidia.nvshmem")
    for folder in found.submodule_search_locations if found else ():
        path = os.path.join(folder, "lib", "libnvshmem_host.so.3")
        if os.path.exists(path):
            return path
    raise ImportError("libnvshmem_host.so.3 is not there: pip install nvidia-nvshmem-cu13")


class Nvshmem:
    def __init__(self):
        self._library = library = ctypes.CDLL(library_path(), mode=ctypes.RTLD_GLOBAL)
        library.nvshmem_malloc.restype = library.nvshmem_ptr.restype = ctypes.c_void_p

    def start(self, side):
        """Collective; the unique id travels over the pipe."""
        unique = UniqueId(version=version_of(UniqueId))
        if side.rank == 0:
            self._check("nvshmemx_get_uniqueid",
                        self._library.nvshmemx_get_uniqueid(ctypes.byref(unique)))
            side.pipe.send(bytes(unique))
        else:
            unique = UniqueId.from_buffer_copy(side.pipe.recv())
        self._unique = unique  # The attributes point to it.
        attributes = Attributes(version=version_of(Attributes))
        attributes.arguments.version = version_of(Arguments)
        attributes.arguments.unique.version = version_of(UniqueIdArguments)
        self._check("nvshmemx_set_attr_uniqueid_args",
                    self._library.nvshmemx_set_attr_uniqueid_args(
                        side.rank, 2, ctypes.byref(unique), ctypes.byref(attributes)))
        self._check("nvshmemx_hostlib_init_attr", self._library.nvshmemx_hostlib_init_attr(
            ctypes.c_uint(WITH_UNIQUE_ID), ctypes.byref(attributes)))

    @staticmethod
    def _check(call, result):
        if result != 0:
            raise RuntimeError(f"{call} returned {result}")

    def allocate(self, nbytes):
        address = self._library.nvshmem_malloc(ctypes.c_size_t(nbytes))
        if not address:
            raise RuntimeError(f"nvshmem_malloc({nbytes}) returned no memory")
        return address

    def free(self, address):
        self._library.nvshmem_free(ctypes.c_void_p(address))

    def address_at(self, address, rank):
        """Where this process has that rank's copy."""
        there = self._library.nvshmem_ptr(ctypes.c_void_p(address), rank)
        if not there:
            raise RuntimeError(f"nvshmem_ptr: rank {rank}'s memory is not mapped here")
        return there

    def barrier(self, stream):
        self._library.nvshmemx_barrier_all_on_stream(ctypes.c_void_p(stream))

    def signal(self, address, value, rank, stream):
        self._library.nvshmemx_signal_op_on_stream(
            ctypes.c_void_p(address), ctypes.c_uint64(value), SIGNAL_SET, rank,
            ctypes.c_void_p(stream))

    def wait(self, address, value, stream):
        self._library.nvshmemx_signal_wait_until_on_stream(
            ctypes.c_void_p(address), COMPARE_GE, ctypes.c_uint64(value), ctypes.c_void_p(stream))

    def stop(self):
        self._library.nvshmemx_hostlib_finalize()
