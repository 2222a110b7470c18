"""PyTorch's memory pools on vmmshare's allocators, and regions, which are such; vmmshare.torch has the
names."""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import threading
import typing

from . import _core
from ._closing import Closing
from .errors import FailedPrecondition, VmmshareError

if typing.TYPE_CHECKING:
    import torch


def library():
    try:
        import torch
    except ImportError as error:
        raise ImportError("vmmshare.torch needs torch: pip install torch") from error
    return torch


_hooks: "dict[str, object]" = {}
_within = threading.local()  # Its `devices`: those for which this thread is in a MemPool of ours.


def make_mem_pool(what: str, device: int) -> "torch.cuda.MemPool":
    """One whose memory is of vmmshare_torch_`what`alloc()."""
    torch = library()
    if not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        raise FailedPrecondition(
            f"PyTorch {torch.__version__} puts what all threads allocate into the memory pool that "
            "one of them uses; expected 2.8 or newer", "Update PyTorch.")
    if what not in _hooks:
        path = pathlib.Path(__file__).resolve().parent / "lib" / "libvmmshare.so.1"
        _hooks[what] = torch.cuda.memory.CUDAPluggableAllocator(
            str(path), f"vmmshare_torch_{what}alloc", f"vmmshare_torch_{what}free")
        # Never freed: a MemPool calls it when it ends, not every PyTorch has the MemPool keep it, and
        # at the interpreter's end nothing says which of the two ends first.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_hooks[what].allocator()))
    with torch.cuda.device(device):  # PyTorch knows of its allocator on that device alone.
        return torch.cuda.MemPool(_hooks[what].allocator())


@contextlib.contextmanager
def allocating_in(made: "torch.cuda.MemPool", device: int):
    torch = library()
    devices = _within.__dict__.setdefault("devices", set())
    if device in devices:
        raise FailedPrecondition(
            f"this thread is in a use_pool() or a use() for device {device} already, and PyTorch "
            "goes by the outer one", "Leave that first.")
    devices.add(device)
    with contextlib.suppress(VmmshareError):
        _core._raise_last_hook_error()  # What was said before is no cause of what comes.
    try:
        with torch.cuda.use_mem_pool(made, device=device):
            yield
    except torch.cuda.OutOfMemoryError as error:
        try:
            _core._raise_last_hook_error()
        except VmmshareError as cause:
            raise error from cause
        raise
    finally:
        devices.remove(device)


class Region(Closing):
    """Tensors of one device whose memory goes back to it for a while, and which keep their
    addresses.

        region = vmmshare.torch.Region()
        with region.use():
            model = Model().cuda()
        region.release()                           # the device's memory is free
        region.restore()                           # tensors, views and captured graphs are good again

    In between nothing is there: a kernel that touches a tensor ends this process's context. What
    PyTorch holds cached is released and restored with the rest, at its addresses, so its books
    stay right; tensors may be freed meanwhile. The memory is this process's alone.
    FailedPrecondition for a PyTorch before 2.8.
    """

    def __init__(self, device: int = 0):
        self.device = device
        self._region = _core._region(device)
        self._mem_pool = make_mem_pool("region_", device)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def use(self):
        """Within it, tensors that this thread makes on the device are in the region.

        One region of a device, by one thread, at a time, and not within use_pool():
        FailedPrecondition otherwise, or while it is released. When there is no memory, PyTorch
        raises OutOfMemoryError; what vmmshare said is its cause.
        """
        with self._alone(), contextlib.ExitStack() as left:
            if self.released:
                raise FailedPrecondition("the region is released: PyTorch would give out addresses "
                                         "where nothing is", "Call its restore() first.")
            left.enter_context(allocating_in(self._mem_pool, self.device))
            try:
                _core._torch_set_region(self.device, self._region)
            except FailedPrecondition as why:
                raise FailedPrecondition(
                    f"another thread is in the use() of a region of device {self.device}, and "
                    "PyTorch does not say for which it allocates", "Wait until it has left.") from why
            left.callback(_core._torch_set_region, self.device, None)
            yield self

    def release(self, *, keep: bool = True) -> None:
        """Gives all its memory back to the device, after all work on that has ended.

        `keep`: the contents are copied to pinned memory of the host first. All or nothing: after
        an exception nothing has changed, but where the driver failed to unmap, all of it is
        released. ResourceExhausted if the host has too little memory. FailedPrecondition if it is
        released, or within use().
        """
        with self._alone():
            library().cuda.synchronize(self.device)
            self._region.release(keep=keep)

    def restore(self) -> None:
        """Brings all its memory back at the same addresses, with the contents that were kept.

        After release(keep=False) what tensors have is not specified. All or nothing: after an
        exception it is released as before; ResourceExhausted if the device has too little memory.
        """
        with self._alone():
            self._region.restore()

    @property
    def released(self) -> bool:
        """Whether nothing is there."""
        return self._region.statistics()["released"]

    def statistics(self) -> "dict[str, int | bool]":
        """allocations: segments that PyTorch has of it; their bytes; bytes kept in host memory;
        released."""
        return self._region.statistics()

    def close(self) -> None:
        """Ends the region. Its tensors stay; what they lie in goes at the next
        torch.cuda.empty_cache() after the last of them, or when PyTorch is short of memory. What
        is released now never comes back."""
        with self._alone():
            self._mem_pool = None
            self._region.close()

    @property
    def closed(self) -> bool:
        return self._region.closed

    @contextlib.contextmanager
    def _alone(self):
        if not self._turn.acquire(blocking=False):
            raise FailedPrecondition("the region is in use(), or is being released, restored or "
                                     "closed", "Wait until that has ended.")
        try:
            yield
        finally:
            self._turn.release()
