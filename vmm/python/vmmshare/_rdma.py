"""Memory for network cards: GPUDirect RDMA, and Linux's dma-buf."""

from __future__ import annotations

import mmap
import os
import typing

from . import _core, _reads
from ._closing import Closing
from ._core import Allocation, Pool
from .errors import FailedPrecondition, InvalidArgument

__all__ = ["DmaBuf", "dma_bufs", "rdma_capable"]


class DmaBuf(Closing):
    """One chunk's part of a range, as a descriptor: see dma_bufs().

    offset: bytes from where the range begins to where this does; less than 0 for the part of a
    page before it. nbytes: its size. The descriptor keeps the memory, and is closed with this.
    """

    _descriptor: "int | None" = None

    def __init__(self, descriptor: int, offset: int, nbytes: int):
        self._descriptor = descriptor
        self.offset, self.nbytes = offset, nbytes

    def fileno(self) -> int:
        """The descriptor. ValueError once it is closed."""
        if self._descriptor is None:
            raise ValueError("the DmaBuf is closed")
        return self._descriptor

    def detach(self) -> int:
        """The descriptor, which is the caller's to close from now on."""
        descriptor, self._descriptor = self.fileno(), None
        return descriptor

    def close(self) -> None:
        """Closes the descriptor; what has been made of it keeps the memory."""
        if self._descriptor is not None:
            os.close(self.detach())

    @property
    def closed(self) -> bool:
        return self._descriptor is None

    def __reduce__(self) -> typing.NoReturn:
        # Two would close one number, by then perhaps that of something else; and so might another
        # process, where it is another one.
        raise TypeError("cannot copy or pickle a DmaBuf: it owns a descriptor. Pass detach()'s by "
                        "socket.send_fds(), or multiprocessing.reduction.DupFd()")

    def __del__(self) -> None:
        self.close()


def rdma_capable(memory: "Allocation | Pool") -> "tuple[bool, str]":
    """Whether network cards can be given the memory, and, of what was made here with
    rdma="try", why not. Of another process's memory it is what that said; of a Pool, of all
    memory that it has now.

    FailedPrecondition for adopted memory.
    """
    if not isinstance(memory, (Allocation, Pool)):
        raise TypeError("rdma_capable() takes an Allocation or a Pool, not a "
                        f"{type(memory).__name__}")
    return typing.cast("tuple[bool, str]", _core._rdma(memory))


def dma_bufs(memory: typing.Any, *, offset: int = 0, nbytes: int = 0,
             pcie: bool = False) -> "list[DmaBuf]":
    """`nbytes` (0: all) from `offset` on, one DmaBuf for each chunk, in order: for
    ibv_reg_dmabuf_mr() and other drivers.

    memory: an Allocation that was created here, of which these are multiples of the page size; or
    an array in a device's memory: of a Pool, imported, or another library's (PyTorch, CuPy, Numba).
    Of an array the descriptors are of the whole pages around the range: whoever gets one reaches
    what lies beside it there. The block of a pool goes to somebody else when its array is freed,
    whoever has a descriptor: keep the array until nobody uses it.

    pcie: to be reached over PCIe, also where there is another way; not every device has it (a H100
    has not: Unimplemented). Needs no current context: the device's primary one is, for the length
    of the call.

    InvalidArgument for what is no multiple of the page size or leaves the memory. FailedPrecondition
    where the device has no dma-buf; for memory of the host and managed memory; for what is mapped
    for reading alone, since a descriptor gives whole access; for an Allocation that was adopted or
    imported, of which an array is to be given.
    """
    if not 0 <= offset < 2**64 or not 0 <= nbytes < 2**64:
        raise InvalidArgument(f"offset is {offset} and nbytes {nbytes}; expected 0 to 2**64 - 1",
                              "Give a range in the memory.")
    if isinstance(memory, Allocation):
        return [DmaBuf(*part) for part in _core._dma_bufs(memory, offset, nbytes, pcie)]
    array = _reads.read_array(memory)
    if not array.on_device:
        raise FailedPrecondition("the array is on the host",
                                 "Give one in a device's memory: drivers reach the host's by its "
                                 "address.")
    nbytes = nbytes or max(array.nbytes - offset, 0)
    if not 0 < nbytes <= array.nbytes - offset:
        raise InvalidArgument(f"{nbytes} bytes at offset {offset} leave the array of "
                              f"{array.nbytes} bytes", "Give a range in the array.")
    begin = array.address + offset
    page = begin - begin % mmap.PAGESIZE
    return [DmaBuf(descriptor, page + at - array.address, size)
            for descriptor, at, size in _core._dma_bufs_at(begin, nbytes, pcie)]
