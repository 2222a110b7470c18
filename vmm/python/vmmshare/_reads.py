"""Where arrays lie in this process."""

from __future__ import annotations

import functools
import sys
import threading
import time
import typing

from . import _core
from ._deadlines import deadline_of, left_of
from ._marks import check_not_captured, keep
from .errors import DeadlineExceeded

CPU, CUDA = 1, 2  # DLPack's names of devices.


class Read(typing.NamedTuple):
    """Where an array lies, in this process."""

    name: str
    address: int
    dtype: str
    shape: "tuple[int, ...]"
    strides: "tuple[int, ...]"
    on_device: bool
    itemsize: int
    nbytes: int  # From its first element to its last.
    is_dense: bool  # Whether its elements fill these, each once, in whatever order.
    kept: typing.Any  # By which the memory is there, which may be made for who asks.


def torch_type() -> typing.Any:
    """PyTorch's tensors, or None."""
    # Who has no tensor of PyTorch's has not imported it.
    library = sys.modules.get("torch")
    return getattr(library, "Tensor", None)


def dense_copy(name: str, array: typing.Any) -> typing.Any:
    """A copy whose elements lie side by side. ValueError names one that its own library has to
    copy."""
    if hasattr(array, "contiguous"):
        return array.contiguous()
    import numpy
    if isinstance(array, numpy.ndarray):
        return numpy.ascontiguousarray(array)
    refused: "Exception | None" = None
    if array.__dlpack_device__()[0] == CPU:
        try:
            return numpy.ascontiguousarray(numpy.from_dlpack(array))
        except (RuntimeError, BufferError) as why:  # A type that NumPy has not: bfloat16.
            refused = why
    raise ValueError(f"the elements of {name!r} do not lie side by side, and it is no tensor of "
                     "PyTorch's: pass it as one, as torch() of a set makes them, or a dense copy, "
                     "as ascontiguousarray() makes one") from refused


def _goes_backwards(array: typing.Any) -> bool:
    """Whether it is NumPy's and goes backwards in memory, which no layout says. None that is masked,
    for no copy has its mask: who reads it refuses it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        return False
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return (masked is None or not isinstance(array, masked)) and any(
        stride < 0 < length - 1 for stride, length in zip(array.strides, array.shape))


def _view(array: typing.Any) -> typing.Any:
    """The same of two arrays of NumPy's that are one view."""
    return array.ctypes.data, array.dtype, array.shape, array.strides


def forwards(arrays: "dict[str, typing.Any]") -> "dict[str, typing.Any]":
    """The same with dense copies of NumPy's that go backwards. Of the same view there is one copy."""
    copies: "dict[typing.Any, typing.Any]" = {}
    made = {}
    for name, one in arrays.items():
        if _goes_backwards(one):
            key = _view(one)
            if key not in copies:
                copies[key] = sys.modules["numpy"].ascontiguousarray(one)
            one = copies[key]
        made[name] = one
    return made


def elsewhere(call: "typing.Callable[[], object]", timeout: "float | None" = None,
               deadline: "float | None" = None) -> None:
    """Runs `call`, by which a library waits for a GPU and hears neither Ctrl-C nor a deadline, on a
    thread of its own, which may outlast this. DeadlineExceeded when it takes longer."""
    raised: "list[BaseException]" = []
    done = threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as why:  # Raised to who waits.
            raised.append(why)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="vmmshare-wait", daemon=True).start()
    except RuntimeError:  # None can be had, as while the interpreter ends.
        call()
        return
    # In slices: not every system ends a wait for a lock on Ctrl-C.
    while not done.wait(0.05 if deadline is None else min(0.05, left_of(deadline))):
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"what a GPU writes to the array was not done within {timeout} s",
                "Call again when it is, or with a longer timeout.")
    if raised:
        raise raised[0]


def await_torch(tensors: "typing.Mapping[str, typing.Any]", timeout: "float | None" = None,
                deadline: "float | None" = None) -> None:
    """Waits until every device is done with what it writes to PyTorch's tensors."""
    kind = torch_type()
    if kind is None:
        return
    devices = {one.get_device(): one.device for one in tensors.values()
               if isinstance(one, kind) and one.is_cuda}
    for device in devices.values():
        elsewhere(functools.partial(sys.modules["torch"].cuda.synchronize, device), timeout, deadline)


def await_fences(arrays: "typing.Iterable[typing.Any]", timeout: "float | None") -> None:
    """Waits for the fences that Arrays were opened with: what is copied after that is complete, on
    whichever stream, and no context has to be current. DeadlineExceeded for one that does not
    come within so many seconds."""
    deadline = deadline_of(timeout)
    for one in arrays:
        if isinstance(one, _core.Array):
            one._await_fence(left_of(deadline))


def _await_stream(stream: int, device: int, timeout: "float | None",
                  deadline: "float | None") -> None:
    """Waits until what is on a stream of the device now is done. timeout: what the whole call was
    given, for the message; deadline: when that ends. FailedPrecondition while it is captured."""
    check_not_captured(stream, "a copy of what is written on the array's stream")
    fences = _core.FencePool(device)
    fence = fences.new()
    fence.signal(stream, 1)
    try:
        fence.wait(1, timeout=left_of(deadline))
    except DeadlineExceeded:
        keep(fences, fence)  # The GPU will write there.
        raise DeadlineExceeded(
            f"what is on the array's stream {stream:#x} was not done within {timeout} s",
            "Call again when it is, or with a longer timeout.") from None
    except BaseException:
        keep(fences, fence)
        raise
    fence.close()
    fences.close()


def order_made(array: typing.Any, timeout: "float | None") -> None:
    """Has the default stream of an array's device wait for what its library does to it now, on
    streams of its own; or waits for that here. DeadlineExceeded when it takes longer."""
    deadline = deadline_of(timeout)
    torch = torch_type()
    if torch is not None and isinstance(array, torch):
        # By no capsule: parameters, and types that DLPack lacks, have none.
        await_torch({"": array}, timeout, deadline)
    elif hasattr(array, "block_until_ready"):  # JAX's, which knows no default stream.
        elsewhere(array.block_until_ready, timeout, deadline)
    elif isinstance(array, _core.Array):
        await_fences([array], timeout)
        # The fence says when it was written there. Here who took it may write on any stream.
        if array._stream not in (0, 1):
            _await_stream(array._stream, array.__dlpack_device__()[1], timeout, deadline)
    elif hasattr(array, "__dlpack__"):
        array.__dlpack__(stream=1)
    else:
        interface = array.__cuda_array_interface__
        stream = interface.get("stream")
        if stream not in (None, 0, 1):  # What is on the default stream is in order.
            _await_stream(stream, _core._device_at(interface["data"][0]), timeout, deadline)


def synchronize_torch(device: "int | None") -> None:
    """Waits until PyTorch's work on the device, the current one if None, is done."""
    library = sys.modules.get("torch")
    if library is not None and library.cuda.is_initialized():
        library.cuda.synchronize(device)


def read_arrays(arrays: "dict[str, typing.Any]") -> typing.Any:
    """Of PyTorch's tensors, and of anything with __dlpack__."""
    reads = _core._Reads(torch_type())
    reads.read_all(arrays)
    return reads


def read_array(array: typing.Any) -> Read:
    """The same of one alone."""
    reads = read_arrays({"": array})
    return Read(*reads.rows()[0], reads)


def describe(like: "typing.Mapping[str, typing.Any]") -> typing.Any:
    """As read_arrays(), also of what has no memory: PyTorch's tensors of the device "meta", and
    pairs of shape and dtype. Those of one storage lie in each other's bytes. NumPy's that go
    backwards are as forwards() makes them."""
    kind = torch_type()
    reads = _core._Reads(kind)
    storages: "dict[typing.Any, int]" = {}
    # What is told apart by where it lies is there until all of them were looked at.
    for name, one in dict(like).items():
        number = len(storages) + 1
        if isinstance(one, tuple):
            shape, dtype = one
            reads.say(name, storages.setdefault(name, number), 0, dtype,
                      (shape,) if isinstance(shape, int) else tuple(shape))
        elif kind is not None and isinstance(one, kind) and one.is_meta:
            number = storages.setdefault(one.untyped_storage()._cdata, number)
            reads.say(name, number, one.storage_offset() * one.element_size(),
                      str(one.dtype).removeprefix("torch."), tuple(one.shape), tuple(one.stride()))
        elif _goes_backwards(one):
            reads.say(name, storages.setdefault(_view(one), number), 0, one.dtype, one.shape)
        else:
            reads.read(name, one)
    return reads
