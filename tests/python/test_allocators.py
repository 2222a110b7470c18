"""Pools as the allocators of other libraries, which only look like those here."""

import contextlib
import ctypes
import gc
import subprocess
import sys
import threading
import time
import types

import pytest

import vmmshare as vs
import vmmshare.cuda_core
import vmmshare.cupy
import vmmshare.rmm


class Stream:
    handle = 1

    def __cuda_stream__(self):
        return 0, 1


def without_streams(call, *what):
    return call(*what)


def stream_last(call, *what):
    return call(*what, Stream())


def nameless_stream_last(call, *what):
    """RMM's own before 25.12."""
    return call(*what, object())


def stream_first(call, *what):
    return call(Stream(), *what, 256)


@pytest.mark.parametrize("passed", [without_streams, stream_last, nameless_stream_last,
                                    stream_first])
def test_rmm(pool, monkeypatch, passed):
    rmm = types.ModuleType("rmm")
    rmm.mr = types.SimpleNamespace(CallbackMemoryResource=lambda *calls: calls)
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    allocate, deallocate = vs.rmm.memory_resource(pool)
    address = passed(allocate, 5000)
    assert pool.find(address + 4999) == (address, 5000)
    passed(deallocate, address, 5000)
    with pytest.raises(vs.errors.FailedPrecondition):
        passed(deallocate, address, 5000)
    with vs.Pool(host_node=0, cap=4 << 20, first_segment=2 << 20) as small:
        with pytest.raises(MemoryError):
            passed(vs.rmm.memory_resource(small)[0], 8 << 20)


def test_rmm_asks_for_more_alignment_than_a_pool_has(pool, monkeypatch):
    allocate, _ = rmm_calls(pool, monkeypatch)
    with pytest.raises(ValueError, match="multiple of 512"):
        allocate(Stream(), 4096, 512)
    assert pool.statistics()["live_blocks"] == 0


def by_name(stream):
    return (), {"stream": stream}


def by_place(stream):
    """As cuda.core passes it before version 1.0."""
    return (stream,), {}


@pytest.mark.parametrize("stream", [None, Stream()])
@pytest.mark.parametrize("passed", [by_name, by_place])
def test_cuda_core(pool, monkeypatch, stream, passed):
    class Buffer:
        @classmethod
        def from_handle(cls, ptr, size, mr=None):
            made = cls()
            made.handle, made.size, made.mr = ptr, size, mr
            return made

    core = types.ModuleType("cuda.core")
    core.Buffer, core.MemoryResource = Buffer, type("MemoryResource", (), {})
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    resource = vs.cuda_core.memory_resource(pool)
    places, names = passed(stream)
    assert resource.is_host_accessible and resource.device_id == -1
    buffer = resource.allocate(777, *places, **names)
    assert pool.find(buffer.handle) == (buffer.handle, 777) and buffer.mr is resource
    resource.deallocate(buffer.handle, buffer.size, *places, **names)
    empty = resource.allocate(0, *places, **names)
    assert (empty.handle, empty.size, empty.mr) == (0, 0, resource)
    resource.deallocate(empty.handle, empty.size, *places, **names)
    assert pool.statistics()["live_blocks"] == 0


HOOK_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
HOOK_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class CudaError(RuntimeError):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class CupyOutOfMemory(MemoryError):
    pass


def fake_cupy(monkeypatch):
    """What CuPy would call, by the addresses that it is given. It keeps these alone, and takes
    what malloc returns as it is. What gives memory back of each allocator that is made."""
    backs = []

    def allocator(param, malloc, free, owner):
        assert owner.address == param
        call, back = HOOK_MALLOC(malloc), HOOK_FREE(free)
        backs.append(lambda ptr, size: back(param, ptr, 0))
        return types.SimpleNamespace(malloc=lambda size, _=owner: types.SimpleNamespace(
            ptr=call(param, size, 0) or 0))

    def memory_pool(malloc):
        def allocate(size):
            for last in (False, True):  # It lets go of what it has, and tries again.
                try:
                    return malloc(size).ptr
                except CudaError as error:
                    if error.status != 2:
                        raise
            raise CupyOutOfMemory(size)

        return types.SimpleNamespace(malloc=allocate)

    @contextlib.contextmanager
    def using(allocate):
        cupy.allocate = allocate
        try:
            yield
        finally:
            del cupy.allocate

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        memory=types.SimpleNamespace(CFunctionAllocator=allocator,
                                     OutOfMemoryError=CupyOutOfMemory),
        runtime=types.SimpleNamespace(CUDARuntimeError=CudaError), using_allocator=using,
        MemoryPool=memory_pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy, backs


def cupy_calls(pool, monkeypatch):
    _, backs = fake_cupy(monkeypatch)
    return vs.cupy.allocator(pool), backs.pop()


def test_cupy_learns_that_a_pool_is_full(driver, monkeypatch):
    cupy, backs = fake_cupy(monkeypatch)
    with vs.Pool(0, cap=4 << 20, first_segment=2 << 20) as pool:
        with pytest.raises(CupyOutOfMemory) as raised:
            with vs.cupy.use_pool(pool):
                cupy.allocate(64 << 20)
        assert isinstance(raised.value.__cause__, vs.errors.ResourceExhausted)
        assert "67108864 bytes" in str(raised.value.__cause__)
        with pytest.raises(CupyOutOfMemory, match="its own") as raised:
            with vs.cupy.use_pool(pool):
                address = cupy.allocate(1 << 20)
                raise CupyOutOfMemory("its own")
        assert raised.value.__cause__ is None
        backs.pop()(address, 1 << 20)


def rmm_calls(pool, monkeypatch):
    rmm = types.ModuleType("rmm")
    rmm.mr = types.SimpleNamespace(CallbackMemoryResource=lambda *calls: calls)
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    return vs.rmm.memory_resource(pool)


def cuda_core_calls(pool, monkeypatch):
    core = types.ModuleType("cuda.core")
    core.Buffer = types.SimpleNamespace(from_handle=lambda ptr, size, mr: ptr)
    core.MemoryResource = type("MemoryResource", (), {})
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    resource = vs.cuda_core.memory_resource(pool)
    return resource.allocate, resource.deallocate


@pytest.mark.parametrize("calls_of", [cupy_calls, rmm_calls, cuda_core_calls])
@pytest.mark.parametrize("end", ["close", "drop"])
def test_what_a_library_has_outlives_the_pool(driver, monkeypatch, calls_of, end):
    pool = vs.Pool(0)
    allocate, deallocate = calls_of(pool, monkeypatch)
    first, second = allocate(4096), allocate(8192)
    if end == "close":
        pool.close()
    del pool, allocate
    gc.collect()
    deallocate(first, 4096)
    assert vs._core._is_known(second)
    deallocate(second, 8192)
    vs._core._raise_last_hook_error()
    del deallocate
    monkeypatch.undo()
    gc.collect()
    end = time.monotonic() + 60
    while vs._core._is_known(second) and time.monotonic() < end:
        time.sleep(0.01)
    assert not vs._core._is_known(second)


@contextlib.contextmanager
def blocking_streams(cuda):
    """Two that synchronise with the legacy default stream, as Numba's and CuPy's do."""
    made = [ctypes.c_void_p() for _ in range(2)]
    for stream in made:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 0) == 0
    yield made
    for stream in made:
        assert cuda.cuStreamSynchronize(stream) == 0
        assert cuda.cuStreamDestroy_v2(stream) == 0


def fill(cuda, address, byte, stream):
    assert cuda.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(byte),
                                ctypes.c_size_t(4096), stream) == 0


@pytest.mark.parametrize("calls_of", [rmm_calls, cuda_core_calls])
def test_what_one_stream_uses_another_has_after_it(cuda, monkeypatch, calls_of):
    with vs.Pool(0) as pool, vs.FencePool() as fences, fences.new() as gate, \
            blocking_streams(cuda) as (one, other):
        allocate, deallocate = calls_of(pool, monkeypatch)
        address = allocate(4096)
        gate.wait(one.value, 1)
        fill(cuda, address, 1, one)
        deallocate(address, 4096)
        with pytest.raises(vs.errors.FailedPrecondition):
            deallocate(address, 4096)
        others = [allocate(4096) for _ in range(3)]
        assert address not in others
        gate.signal(1)
        for stream in (one, other):
            assert cuda.cuStreamSynchronize(stream) == 0
        for made in others:
            deallocate(made, 4096)


def fake_cuda_core(monkeypatch, from_handle):
    core = types.ModuleType("cuda.core")
    core.Buffer = types.SimpleNamespace(from_handle=from_handle)
    core.MemoryResource = type("MemoryResource", (), {})
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)


class Dropped:
    """A Buffer of cuda.core's, which gives its memory back when it goes."""

    def __init__(self, ptr, size, mr, back):
        self.handle, self.back = ptr, lambda: back(mr, ptr, size)

    def __del__(self):
        self.back()


def of_1_2(ptr, size, mr=None, owner=None, *, stream=None):
    return Dropped(ptr, size, mr, lambda mr, ptr, size: mr.deallocate(
        ptr, size, stream=stream or Stream()))


def of_1_0(ptr, size, mr=None, owner=None):
    return Dropped(ptr, size, mr, lambda mr, ptr, size: mr.deallocate(ptr, size, stream=Stream()))


def of_0_3(ptr, size, mr=None):
    return Dropped(ptr, size, mr, lambda mr, ptr, size: mr.deallocate(ptr, size, None))


class OwnStream:
    """A Stream of cuda.core's, for which the legacy default stream does not wait."""

    def __init__(self, cuda, destroyed):
        made = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
        self.cuda, self.handle, self.destroyed = cuda, made.value, destroyed

    def __del__(self):
        self.cuda.cuStreamDestroy_v2(ctypes.c_void_p(self.handle))
        self.destroyed.append(self.handle)


@pytest.mark.parametrize("make", [of_1_2, of_1_0, of_0_3])
def test_a_buffer_of_cuda_core_goes_back_behind_its_stream(cuda, monkeypatch, make):
    fake_cuda_core(monkeypatch, make)
    destroyed = []
    with vs.Pool(0) as pool, vs.FencePool() as fences, fences.new() as gate:
        own, other = OwnStream(cuda, destroyed), OwnStream(cuda, destroyed)
        resource = vs.cuda_core.memory_resource(pool)
        gate.wait(own.handle, 1)
        buffer = resource.allocate(4096, stream=own)
        address = buffer.handle
        del buffer
        again = resource.allocate(4096, stream=other)
        assert again.handle != address  # A kernel on its own stream may write there still.
        gate.signal(1)
        del again, own, other
        assert not destroyed  # The pool asks the driver of them.
        del resource
        gc.collect()
        expect_soon(lambda: len(destroyed) == 2)


def expect_soon(is_so):
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_so()


def test_a_resource_of_cuda_core_that_goes_waits_for_no_stream(cuda, monkeypatch):
    fake_cuda_core(monkeypatch, of_1_2)
    destroyed = []
    with vs.Pool(0) as pool, vs.FencePool() as fences, fences.new() as gate:
        own = OwnStream(cuda, destroyed)
        resource = vs.cuda_core.memory_resource(pool)
        gate.wait(own.handle, 1)
        del_buffer = resource.allocate(4096, stream=own)
        del del_buffer, own
        began = time.monotonic()
        del resource
        gc.collect()
        assert time.monotonic() - began < 5
        assert not destroyed  # What was freed there waits for it still.
        gate.signal(1)
        expect_soon(lambda: destroyed)


def test_a_resource_of_cuda_core_that_goes_releases_its_streams_for_itself_alone(
        cuda, monkeypatch):
    """Arrays that others have used there go back behind them."""
    fake_cuda_core(monkeypatch, of_1_2)
    destroyed = []
    own = OwnStream(cuda, destroyed)
    with vs.Pool(0) as pool, vs.FencePool() as fences, fences.new() as gate:
        array = pool.empty(4096, "uint8", stream=own.handle)
        resource = vs.cuda_core.memory_resource(pool)
        buffer = resource.allocate(4096, stream=own)
        del buffer, resource
        gc.collect()
        gate.wait(own.handle, 1)
        address = array.ptr
        array.close()
        with pool.empty(4096, "uint8", stream=1) as other:
            assert other.ptr != address
        gate.signal(1)
        pool.release_stream(own.handle, timeout=60)
        del own
        expect_soon(lambda: destroyed)  # Its context ends with this test.


def test_what_no_stream_was_said_of_waits_in_the_context_that_the_pool_grew_in(cuda):
    """Whichever is current where that is asked."""
    made, stream, opened, got = ctypes.c_void_p(), ctypes.c_void_p(), threading.Event(), []
    waits = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: opened.wait(60))
    assert cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0
    with vs.Pool(0, cap=2 << 20, first_segment=2 << 20) as pool:
        address = pool._allocate(2 << 20, 0)
        assert cuda.cuStreamCreate(ctypes.byref(stream), 0) == 0  # One that blocks.
        assert cuda.cuLaunchHostFunc(stream, waits, None) == 0
        pool._free(address, 0)
        again = threading.Thread(target=lambda: got.append(pool._allocate(2 << 20, 0)))
        again.start()  # Without a context.
        again.join(0.3)
        assert again.is_alive()
        opened.set()
        again.join(60)
        assert got == [address]
        pool._free(address, 0)
    assert cuda.cuStreamDestroy_v2(stream) == 0
    assert cuda.cuCtxDestroy_v2(made) == 0
    assert cuda.cuCtxSetCurrent(cuda.context) == 0


CUPY_WAITS = """
import ctypes, threading, time
import vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
cuda, context, stream = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
pool, gate = vs.Pool(0), vs.FencePool().new()
param = vs._core._CupyParam(pool)
# With the GIL, as CuPy calls them.
malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
    vs._core._hook_address("cupy_malloc"))
free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
    vs._core._hook_address("cupy_free"))
made = malloc(param.address, 4096, 0)
gate.wait(stream.value, 1)
waits = threading.Event()

def open_it():
    waits.wait()
    time.sleep(0.2)  # Most often the other thread waits by then; it may not.
    gate.signal(1)

threading.Thread(target=open_it).start()
waits.set()
free(param.address, made, 0)
print("freed")
"""


def test_while_cupy_waits_for_the_gpu_other_threads_run():
    done = subprocess.run([sys.executable, "-B", "-c", CUPY_WAITS], capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")


@pytest.mark.parametrize("calls_of", [rmm_calls, cuda_core_calls])
def test_what_is_let_go_of_beside_a_capture_goes_back(cuda, monkeypatch, calls_of):
    with vs.Pool(0) as pool, blocking_streams(cuda) as (one, _):
        allocate, deallocate = calls_of(pool, monkeypatch)
        first = allocate(4096)
        assert cuda.cuStreamBeginCapture_v2(one, 0) == 0
        deallocate(first, 4096)
        assert pool.statistics()["live_blocks"] == 0
        assert allocate(4096) != first  # Nobody may ask how far the GPU is.
        graph = ctypes.c_void_p()
        assert cuda.cuStreamEndCapture(one, ctypes.byref(graph)) == 0
        assert cuda.cuGraphDestroy(graph) == 0


def test_what_cupy_lets_go_of_is_waited_for(cuda, monkeypatch):
    """As cudaFree() does: CuPy gives to every stream what it takes from one."""
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0  # In no order with others.
    with vs.Pool(0, cap=4 << 20, first_segment=2 << 20) as pool, vs.FencePool() as fences, \
            fences.new() as gate:
        allocate, deallocate = cupy_calls(pool, monkeypatch)
        address = allocate(4 << 20)
        gate.wait(stream.value, 1)
        fill(cuda, address, 1, stream)
        waits = threading.Thread(target=deallocate, args=(address, 4 << 20), daemon=True)
        waits.start()
        waits.join(0.5)  # It does not end before the gate is open.
        assert waits.is_alive() and pool.statistics()["live_blocks"] == 1
        gate.signal(1)
        waits.join(60)
        assert not waits.is_alive()
        assert allocate(4 << 20) == address
        deallocate(address, 4 << 20)
        vs._core._raise_last_hook_error()
    assert cuda.cuStreamDestroy_v2(stream) == 0


@pytest.mark.parametrize("make", [
    lambda array, stream: vs.cuda_core.buffer(array, stream=stream),
    lambda array, stream: vs.cuda_core.buffer(array, stream=types.SimpleNamespace(handle=stream)),
    lambda array, stream: vs.cuda_core.view(array, stream),
    lambda array, stream: vs.cuda_core.view(array, types.SimpleNamespace(handle=stream))],
    ids=["buffer", "buffer-Stream", "view", "view-Stream"])
def test_a_stream_of_cuda_core_waits_for_the_fence_of_what_it_is_given(cuda, monkeypatch, make):
    """Also one that waits for no default stream, as those that cuda.core makes."""
    core = types.ModuleType("cuda.core")
    core.Buffer = types.SimpleNamespace(from_handle=lambda ptr, size, owner: owner)
    core.StridedMemoryView = types.SimpleNamespace(
        from_dlpack=lambda of, stream_ptr: of.__dlpack__(stream=stream_ptr, max_version=(1, 0)))
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    with vs.Pool() as pool, vs.serve(pool) as share:
        with vs.connect(str(share), writable=True) as remote, vs.FencePool() as fences, \
                fences.new() as fence, pool.empty(3, "uint8") as own:
            theirs = remote.open(own.ticket(), fence=fence, value=1)
            made = make(theirs, stream.value)
            assert cuda.cuMemsetD8Async(ctypes.c_uint64(theirs.ptr), ctypes.c_ubyte(5),
                                        ctypes.c_size_t(3), stream) == 0
            pending = cuda.cuStreamQuery(stream)
            fence.signal(1)
            assert cuda.cuStreamSynchronize(stream) == 0
            assert pending == 600  # CUDA_ERROR_NOT_READY.
            with pytest.raises(ValueError, match="stream 2"):
                make(theirs, 2)
            make(theirs, 0)  # The legacy default stream.
            del made
            theirs.close()
            pool.wait_returned(timeout=60)
        pool.release_stream(stream.value)
    assert cuda.cuStreamDestroy_v2(stream) == 0


def test_a_buffer_of_cuda_core_is_dense_and_ordered(cuda, monkeypatch):
    core = types.ModuleType("cuda.core")
    core.Buffer = types.SimpleNamespace(from_handle=lambda ptr, size, owner: owner)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    with vs.Allocation(nbytes=4096) as memory:
        with pytest.raises(ValueError, match="dense"):
            vs.cuda_core.buffer(memory._strided((2, 3), (8, 1), "float16", 0))
        vs.cuda_core.buffer(memory._strided((1, 3), (99, 1), "float16", 0))
        vs.cuda_core.buffer(memory.array((2, 0, 3), "float16"))
    with vs.Pool() as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        with vs.FencePool() as fences, fences.new() as fence, pool.empty(3, "int8") as own:
            fence.wait(1, 1)  # As a kernel on the legacy default stream.
            theirs = remote.open(own.ticket())
            with pytest.raises(vs.errors.FailedPrecondition, match="read-only"):
                vs.cuda_core.buffer(theirs)
            vs.cuda_core.buffer(theirs, readonly=True)
            theirs.close()
            with pytest.raises(vs.errors.DeadlineExceeded):
                pool.wait_returned(timeout=0.2)
            fence.signal(1)
            pool.wait_returned(timeout=60)
