"""PyTorch on vmmshare's memory.

    with vmmshare.torch.use_pool(pool):
        model = Model().cuda()                 # its tensors are in the pool
    data = vmmshare.torch.share_all(model.state_dict())
    ...
    tensors = vmmshare.torch.open_all(vs.connect(text), data)     # another process

Region: tensors whose memory goes back to the device for a while.

Any tensor of the pool can be shared, views and aliases too: no copy is made. A tensor of an
opened array is mapped read-only unless connect() was told writable=True; PyTorch does not
know that, and a kernel that writes it ends this process's context.
"""

from __future__ import annotations

import contextlib
import typing

from . import _core, _served
from ._core import Device, Pool, RemotePool
from ._served import Served
from ._torch_memory import Region, allocating_in, library, make_mem_pool

if typing.TYPE_CHECKING:
    import torch

__all__ = ["Region", "Served", "enable_multiprocessing", "mem_pool", "open", "open_all", "open_served",
           "serve", "share", "share_all", "use_pool"]


_pools: "dict[int, tuple[Pool, object]]" = {}


def _device_of(pool: Pool) -> int:
    if pool.device is None:
        raise ValueError("the pool is on the host; PyTorch wants one of a device")
    return pool.device


def mem_pool(pool: Pool) -> "torch.cuda.MemPool":
    """A torch.cuda.MemPool whose memory is of `pool`, one for each pool.

    Drop its tensors before it. FailedPrecondition for a PyTorch before 2.8, whose pools take what
    all threads allocate. One Pool of a device serves PyTorch at a time: ValueError
    for another one, until the first is closed.
    """
    device = _device_of(pool)
    if device in _pools:
        current, made = _pools[device]
        if current is pool:
            return made
        if not current.closed:
            raise ValueError(f"device {device} has another pool for PyTorch already. "
                             "Close that one first.")
    made = make_mem_pool("", device)
    _core._torch_set_pool(device, pool)
    _pools[device] = (pool, made)
    return made


@contextlib.contextmanager
def use_pool(pool: Pool):
    """Within it, tensors that this thread makes on the pool's device are in the pool.

    When there is no memory, PyTorch raises OutOfMemoryError; what the pool said is its cause.
    FailedPrecondition for a PyTorch before 2.8.
    """
    made = mem_pool(pool)
    with allocating_in(made, _device_of(pool)):
        yield made


def share_all(tensors: "typing.Mapping[str, torch.Tensor]") -> bytes:
    """One bytes object for many tensors, a state_dict for example.

    Each is in memory of a Pool: of use_pool(), or made of an Array. Views and aliases too, and
    at no cost: a block has one ticket, however many tensors lie in it. PyTorch cuts its blocks
    into tensors, and uses the memory of one of use_pool() anew when it goes, whoever has the
    block: keep the tensors until pool.leases() no longer names it. NotFound for a tensor
    elsewhere: make it within use_pool(), or copy it into one that was. InvalidArgument for a
    lazy conjugate or negative, as x.conj() is: share its resolve_conj() or resolve_neg().
    """
    torch = library()
    if not isinstance(tensors, typing.Mapping):
        raise TypeError("share_all() takes tensors by name, as a dict, not a "
                        f"{type(tensors).__name__}; share() takes one tensor")
    return _core._pack_tensors(dict(tensors), torch.Tensor)


def share(tensor: "torch.Tensor") -> bytes:
    """A ticket for one tensor, for open(). Errors as share_all()."""
    return share_all({"": tensor})


def _stream_of(device: int) -> int:
    return library().cuda.current_stream(device).cuda_stream


def _as_type(tensor, dtype: str):
    return tensor.view(getattr(library(), dtype))


def open_all(remote: RemotePool, tickets: "bytes | bytearray | memoryview", *,
             timeout: "float | None" = 10.0) -> "dict[str, torch.Tensor]":
    """The tensors of share_all(), by name. `timeout` in seconds, None for ever.

    A block goes back to its owner when the last of these tensors in it, and the last view of
    them, is gone, after what is then on the stream that is current now. InvalidArgument for
    what was damaged or would leave its block.
    """
    torch = library()
    if not isinstance(remote, RemotePool) or not isinstance(tickets, (bytes, bytearray, memoryview)):
        raise TypeError("expected a RemotePool, from connect(), and the bytes of share() or "
                        f"share_all(), not a {type(remote).__name__} and a "
                        f"{type(tickets).__name__}")
    return remote._open_tensors(tickets, timeout, torch.Tensor, torch.from_dlpack, _stream_of,
                                _as_type)


def open(remote: RemotePool, ticket: "bytes | bytearray | memoryview", *,
         timeout: "float | None" = 10.0) -> "torch.Tensor":
    """The tensor of share()."""
    tensors = open_all(remote, ticket, timeout=timeout)
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors; use open_all()")
    return next(iter(tensors.values()))


def serve(tensor: "torch.Tensor", *, legacy: bool = False, copy: bool = False) -> Served:
    """Serves a tensor that is not of a Pool: vmmshare.serve_array() of it.

    With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True it is shared where it is, without a
    copy, and whoever has its `ticket` has the segments around it too. A tensor of PyTorch's
    default allocator, cudaMalloc()'s, takes legacy=True, which is weaker and discloses the
    allocator's whole segment, or copy=True. FailedPrecondition without either, with what to
    do. InvalidArgument for a lazy conjugate or negative.
    """
    _core._check_tensor(tensor, library().Tensor)
    return _served.serve_array(tensor, legacy=legacy, copy=copy)


def open_served(ticket: "bytes | bytearray | memoryview", *, timeout: "float | None" = 10.0,
                writable: bool = False, device: "Device | int | str | None" = None) -> "torch.Tensor":
    """The tensor of a Served.ticket. As vmmshare.open_array()."""
    torch = library()
    # DLPack does not carry float8 to PyTorch, but bytes.
    array, dtype = _served.open_parts(ticket, timeout, writable, device, lambda dtype: (
        "uint8" if dtype.startswith("float8") and hasattr(torch, dtype) else dtype))
    tensor = torch.from_dlpack(array)
    is_carried = dtype.startswith("float8") and array.dtype != dtype
    return _as_type(tensor, dtype) if is_carried else tensor


def enable_multiprocessing(pool: Pool, *, writable: bool = True) -> None:
    """From now on tensors in `pool` pass through torch.multiprocessing's queues by ticket.

    All others pass as before. Sending waits for the current stream of the tensor's device, in the
    thread that pickles: a Queue's own, where that is the default stream. Synchronise others
    before put(). The receiver has the same memory, mapped for writing unless writable=False, and
    gives it back with its last view. The sender keeps what it put until it was received and
    nobody has its block any more, so nothing else is written there; as with PyTorch's own queue,
    once for each put, so what nobody takes out stays until the pool is closed. Both processes
    import vmmshare.torch. ValueError for a pool of the host.
    """
    from . import _torch_queues
    _device_of(pool)
    _torch_queues.enable(library(), pool, writable)
