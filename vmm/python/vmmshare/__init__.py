"""Share GPU memory between processes.

    import vmmshare as vs
    pool = vs.Pool(device=0)
    array = pool.empty((1024, 1024), "float16")   # torch.from_dlpack(array)
    share = vs.serve(pool)                        # str(share): its key, for the other process
    ticket = array.ticket()                       # bytes, for the other process

    theirs = vs.connect(text, timeout=10).open(ticket)     # there; read-only

Importing this loads no driver, starts no thread and touches no GPU: the first call that
needs the driver does. Failures are exceptions of `vmmshare.errors`, which say what to do.
Ctrl-C ends every wait.
"""

import importlib as _importlib
import os as _os
import typing as _typing

from . import _main_interpreter  # Before _core is loaded.
from . import errors
from ._core import (
    FENCE_BYTES,
    Allocation,
    Array,
    Device,
    Driver,
    Fence,
    FenceArray,
    FencePool,
    Keeper,
    Pool,
    RemotePool,
    Restorable,
    Server,
    Share,
    SymmetricMemory,
    adopt,
    _open_fences,
    _open_memory,
    _open_pool,
    _open_restorable,
    _restorable,
    _version as __version__,
    devices,
    meet,
    set_driver,
    share_all,
    ticket,
)
from ._doctor import DoctorReport, doctor
from ._paths import is_removed as _is_removed
from ._rdma import DmaBuf, dma_bufs, rdma_capable
from ._recall import on_recall
from ._served import Served, open_array, serve_array
from ._ring import RingBuffer, RingHome, RingReader, RingWriter, open_ring

__all__ = [
    "Allocation",
    "Array",
    "Device",
    "DmaBuf",
    "DoctorReport",
    "Driver",
    "FENCE_BYTES",
    "Fence",
    "FenceArray",
    "FencePool",
    "Keeper",
    "Pool",
    "RemotePool",
    "Restorable",
    "RingBuffer",
    "RingHome",
    "RingReader",
    "RingWriter",
    "Served",
    "Server",
    "Share",
    "SymmetricMemory",
    "__version__",
    "adopt",
    "connect",
    "connect_fences",
    "connect_restorable",
    "devices",
    "dma_bufs",
    "doctor",
    "errors",
    "meet",
    "on_recall",
    "open_array",
    "open_ring",
    "rdma_capable",
    "restorable",
    "serve",
    "serve_array",
    "set_driver",
    "share_all",
    "ticket",
]

if _typing.TYPE_CHECKING:
    from . import broker, cuda_core, cupy, jax, job, keeper, numba, rmm, testing, torch, weights

_WHEN_USED = ("broker", "cuda_core", "cupy", "jax", "job", "keeper", "numba", "rmm", "testing",
              "torch", "weights")


def __getattr__(name: str) -> _typing.Any:
    if name in _WHEN_USED:
        return _importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *_WHEN_USED})


_server: "tuple[int, Server] | None" = None


def serve(what: "Pool | Allocation | FencePool") -> Share:
    """Serves it to processes of the same user, while the Share that is returned exists.

    Each Share opens what it was made of and nothing else: keep its text from whoever must
    not have the memory. Raises FailedPrecondition for what another process made.
    """
    if not isinstance(what, (Pool, Allocation, FencePool)):
        raise TypeError("serve() takes a Pool, an Allocation or a FencePool, not a "
                        f"{type(what).__name__}")
    return _own_server().share(what)


def _own_server() -> Server:
    global _server
    # A forked child's server is its own. Where its socket was removed, as the end of a login does,
    # nobody can connect any more.
    if (_server is None or _server[0] != _os.getpid()
            or _is_removed(_server[1]._address)):
        _server = (_os.getpid(), Server())
    return _server[1]


def connect(text: str, *, timeout: "float | None" = 10.0, writable: bool = False,
            device: "Device | int | str | None" = None) -> _typing.Any:
    """What another process serves: a RemotePool of a pool's text, an Allocation of memory's. For
    type checkers it is Any: only the caller knows of which the text is.

    text: str() of its Share. timeout: seconds, None for ever. writable: otherwise the
    memory is mapped read-only, and a stray write of a kernel ends this process's context.
    device: whose kernels are to reach it, which its arrays then say they are on; needed for
    memory of another GPU, which may be one that this process does not see. None: the one on
    which it lives.

    Raises NotFound when nobody serves it any more, InvalidArgument for another text,
    PermissionDenied when it is another user's, DeadlineExceeded, ResourceExhausted where its
    owner had no room for another in that time, Unimplemented for an owner of another release;
    FailedPrecondition where the device cannot reach it, or, with None, does not see it.
    """
    _check_is_text("connect", text)
    opener = _open_pool if text.lstrip().startswith("vmmshare-pool:") else _open_memory
    return opener(text, writable, timeout, device)


def _check_is_text(call: str, text: object, whose: str = "a share, str(share)") -> None:
    """A str may have halves of a pair of UTF-16, as JSON from elsewhere does, which no share's text
    has and which cannot be passed on."""
    if not isinstance(text, str):
        raise TypeError(f"{call}() takes the text of {whose}, not a {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as why:
        raise errors.InvalidArgument(f"{call}(): {text!a:.80} is no text of a share: {why}",
                                     "Pass the text as its owner has it.") from why


def connect_fences(text: str, device: "Device | int | str" = 0, *,
                   timeout: "float | None" = 10.0) -> FencePool:
    """The FencePool of another process. `device`: whose streams use its fences here. `timeout` in
    seconds. Errors as connect(); Unimplemented also where the device has no stream memory
    operations."""
    _check_is_text("connect_fences", text)
    return _open_fences(text, device, timeout)


def restorable(device: "Device | int | str" = 0, *, nbytes: int,
               host_node: "int | None" = None) -> Restorable:
    """`nbytes` bytes that can be given back for a while, served while they exist.

    Give its `text` to the processes that are to have it. host_node: on that NUMA node of the
    host. ResourceExhausted when it does not fit.
    """
    return _restorable(_own_server(), device, nbytes, host_node)


def connect_restorable(text: str, *, timeout: "float | None" = 10.0, writable: bool = False,
                       device: "Device | int | str | None" = None) -> Restorable:
    """Another process's memory, of its Restorable's `text`; as connect().

    Let go of it by release() once `recalled_in` is a number, and restore() it then.
    """
    _check_is_text("connect_restorable", text, "a Restorable, its `text`")
    return _open_restorable(text, writable, timeout, device)
