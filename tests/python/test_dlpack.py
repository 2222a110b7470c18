"""The rules of DLPack, and of __cuda_array_interface__."""

import ctypes
import threading
import time

import numpy as np
import pytest

import vmmshare as vs

NAME = ctypes.pythonapi.PyCapsule_GetName
NAME.restype, NAME.argtypes = ctypes.c_char_p, [ctypes.py_object]


@pytest.mark.parametrize("max_version, name", [
    (None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"),
    ((1, 1), b"dltensor_versioned"), ((2, 0), b"dltensor_versioned")])
def test_the_version_is_what_the_consumer_takes(pool, max_version, name):
    with pool.empty(3, "int8") as array:
        capsule = array.__dlpack__(max_version=max_version)
        assert NAME(capsule) == name


def test_a_capsule_that_nobody_took_gives_back(pool):
    array = pool.empty(3, "int8")
    capsule = array.__dlpack__(max_version=(1, 0))
    array.close()
    assert pool.statistics()["live_blocks"] == 1
    del capsule
    assert pool.statistics()["live_blocks"] == 0


def test_read_only_memory_gives_no_writable_view(pool, remote):
    with pool.empty(3, "int8") as array:
        with remote.open(array.ticket()) as theirs:
            assert theirs.readonly
            assert not np.from_dlpack(theirs).flags.writeable
            with pytest.raises(BufferError, match="writable=True"):
                theirs.__dlpack__()


def test_a_consumer_that_never_writes_needs_no_flag(pool, remote):
    with pool.empty(3, "int8") as array, remote.open(array.ticket()) as theirs:
        assert NAME(theirs._dlpack_unflagged(None)) == b"dltensor"


def test_a_writable_import_is_writable(pool):
    with pool.empty(3, "int8") as array, vs.serve(pool) as share:
        with vs.connect(str(share), writable=True) as remote:
            theirs = remote.open(array.ticket())
            view = np.from_dlpack(theirs)
            view[:] = 9
            assert np.from_dlpack(array).tolist() == [9, 9, 9]


@pytest.mark.parametrize("arguments", [
    {"copy": True}, {"copy": np.True_}, {"copy": 1}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}])
def test_what_it_cannot_do_is_a_buffer_error(pool, arguments):
    with pool.empty(3, "int8") as array:
        with pytest.raises(BufferError):
            array.__dlpack__(**arguments)


@pytest.mark.parametrize("arguments", [
    {}, {"copy": False}, {"copy": None}, {"dl_device": (1, 0)}, {"max_version": (1, 0)},
    {"stream": None}])
def test_what_it_can(pool, arguments):
    with pool.empty(3, "int8") as array:
        array.__dlpack__(**arguments)


def test_memory_of_the_host_has_no_stream(pool):
    with pool.empty(3, "int8") as array:
        assert array.__dlpack_device__() == (1, 0)
        with pytest.raises(ValueError, match="no streams"):
            array.__dlpack__(stream=1)
        assert not hasattr(array, "__cuda_array_interface__")


@pytest.mark.parametrize("stream", [None, 1, -1])
def test_memory_of_a_device(driver, stream):
    with vs.Pool() as pool, pool.empty((2, 3), "float16") as array:
        assert array.__dlpack_device__() == (2, 0) and pool.device == 0
        array._use_on(0)
        array.__dlpack__(stream=stream)
        with pytest.raises(ValueError, match="ambiguous"):
            array.__dlpack__(stream=0)
        with pytest.raises(ValueError, match="per-thread"):
            array.__dlpack__(stream=2)
        with pytest.raises(ValueError, match="per-thread"):
            array._use_on(2)
        interface = array.__cuda_array_interface__
        assert interface == {"version": 3, "typestr": "<f2", "shape": (2, 3), "strides": (6, 2),
                             "data": (array.ptr, False), "stream": 1}


def test_a_type_that_the_interface_lacks(driver):
    with vs.Pool() as pool, pool.empty(3, "bfloat16") as array:
        assert not hasattr(array, "__cuda_array_interface__")


def test_the_last_view_may_go_on_any_thread(pool, remote):
    own = pool.empty(1000, "uint8")
    views = [np.from_dlpack(remote.open(own.ticket())) for _ in range(50)]
    threads = [threading.Thread(target=views.pop) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.leases() == []


@pytest.mark.parametrize("times", [2000])
def test_importing_again_and_again_leaves_nothing(pool, remote, times):
    own = pool.empty((4, 4), "float32")
    ticket = own.ticket()
    before = pool.statistics()
    for _ in range(times):
        np.from_dlpack(remote.open(ticket))
    assert pool.statistics() == before
    assert pool.leases() == []


@pytest.mark.parametrize("take", [
    lambda array: array.__dlpack__(stream=1, max_version=(1, 0)),
    lambda array: array.__cuda_array_interface__], ids=["DLPack", "__cuda_array_interface__"])
def test_memory_goes_back_after_what_is_on_the_consumers_stream(cuda, take):
    with vs.Pool() as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        with vs.FencePool() as fences, fences.new() as fence, pool.empty(3, "int8") as own:
            fence.wait(1, 1)  # As a kernel on the legacy default stream.
            theirs = remote.open(own.ticket())
            take(theirs)
            theirs.close()
            with pytest.raises(vs.errors.DeadlineExceeded):
                pool.wait_returned(timeout=0.2)
            fence.signal(1)
            pool.wait_returned(timeout=60)


@pytest.fixture
def stream(cuda):
    """A stream, which the test destroys."""
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value


def test_a_stream_may_be_destroyed_before_the_arrays_that_were_used_on_it(cuda, stream):
    with vs.Pool() as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        own = pool.empty(3, "int8", stream=stream)
        theirs = remote.open(own.ticket())
        theirs.__dlpack__(stream=stream, max_version=(1, 0))
        with vs.FencePool() as fences, fences.new() as fence:
            fence.wait(stream, 1)  # As a kernel.
            with pytest.raises(vs.errors.DeadlineExceeded, match="timeout of 0.2 s"):
                pool.release_stream(stream, timeout=0.2)
            fence.signal(1)
            pool.release_stream(stream, timeout=60)
        assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0
        theirs.close()  # The host-memory driver ends who asks a stream that is none.
        own.close()
        assert pool.leases() == [] and pool.statistics()["live_blocks"] == 0
        with pytest.raises(ValueError, match="per-thread"):
            pool.release_stream(2)


def test_a_stream_that_is_used_again_after_its_release_is_waited_for(cuda, stream):
    """Another stream may have the value of one that was destroyed."""
    with vs.Pool() as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        with vs.FencePool() as fences, fences.new() as fence, pool.empty(3, "int8") as own:
            pool.release_stream(stream)
            fence.wait(stream, 1)
            theirs = remote.open(own.ticket())
            theirs.__dlpack__(stream=stream, max_version=(1, 0))
            pool.release_stream(1)  # Of another.
            theirs.close()
            with pytest.raises(vs.errors.DeadlineExceeded):
                pool.wait_returned(timeout=0.2)
            fence.signal(1)
            pool.wait_returned(timeout=60)
        pool.release_stream(stream, timeout=60)
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


@pytest.fixture
def held(cuda):
    """A fence for which the legacy default stream waits, as a kernel is under way on it."""
    with vs.FencePool() as fences, fences.new() as fence:
        fence.wait(1, 1)
        yield fence
        if fence.value < 1:
            fence.signal(1)


READY, NOT_READY = 0, 600


def query(cuda, stream):
    return cuda.cuStreamQuery(ctypes.c_void_p(stream))


TAKES = pytest.mark.parametrize("take", [
    lambda array, stream: array.__dlpack__(stream=stream),
    lambda array, stream: array.__dlpack__(stream=stream, max_version=(1, 0)),
    lambda array, stream: array.view(1, "int8").__dlpack__(stream=stream),
    lambda array, stream: array._dlpack_unflagged(stream),
    lambda array, stream: array._use_on(stream),
], ids=["DLPack 0", "DLPack 1", "a view", "unflagged", "an adapter"])


@TAKES
def test_the_first_consumers_stream_comes_after_who_had_the_block_before(
        cuda, stream, held, take):
    with vs.Pool() as pool, pool.empty(3, "int8") as array:
        assert query(cuda, stream) == READY
        take(array, stream)
        assert query(cuda, stream) == NOT_READY
        held.signal(1)
        pool.release_stream(stream)
        assert query(cuda, stream) == READY
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_a_block_of_the_consumers_stream_waits_for_no_other(cuda, stream, held):
    with vs.Pool() as pool, pool.empty(3, "int8", stream=stream) as array:
        array.__dlpack__(stream=stream)
        assert query(cuda, stream) == READY
        array.__dlpack__(stream=1)  # A second consumer's order is who hands it on's.
        array.__dlpack__(stream=stream)
        assert query(cuda, stream) == READY
        held.signal(1)
        pool.release_stream(stream)
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_who_asks_for_no_order_gets_none_and_the_next_one_does(cuda, stream, held):
    with vs.Pool() as pool, pool.empty(3, "int8") as array:
        array.__dlpack__(stream=-1)
        assert query(cuda, stream) == READY
        array.__dlpack__(stream=stream)
        assert query(cuda, stream) == NOT_READY
        held.signal(1)
        pool.release_stream(stream)
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_a_look_at_the_interface_is_no_consumer_yet(cuda, stream, held):
    """Libraries look at it to learn what an object can do."""
    with vs.Pool() as pool, pool.empty(3, "int8") as array:
        assert hasattr(array, "__cuda_array_interface__")
        array.__dlpack__(stream=stream)
        assert query(cuda, stream) == NOT_READY
        held.signal(1)
        pool.release_stream(stream)
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_the_interface_says_a_stream_that_comes_after_the_blocks_own(cuda, stream):
    with vs.Pool() as pool, vs.FencePool() as fences, fences.new() as fence:
        with pool.empty(3, "int8", stream=stream) as array:
            fence.wait(stream, 1)
            assert array.__cuda_array_interface__["stream"] == 1
            assert query(cuda, 1) == NOT_READY
            fence.signal(1)
            pool.release_stream(1)
        pool.release_stream(stream)
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_the_first_consumer_waits_for_no_stream_that_was_released(cuda, stream):
    with vs.Pool() as pool, pool.empty(3, "int8", stream=stream) as array:
        pool.release_stream(stream)
        assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0
        array.__dlpack__(stream=1)  # The host-memory driver ends who asks a stream that is none.


def test_the_first_consumer_in_a_capture_waits_itself(cuda, stream, held):
    """A wait in a graph would be done at each launch."""
    graph = ctypes.c_void_p()
    with vs.Pool() as pool, pool.empty(3, "int8") as array:
        assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
        done = threading.Timer(0.3, held.signal, [1])
        began = time.monotonic()
        done.start()
        array.__dlpack__(stream=stream)
        assert time.monotonic() - began > 0.2
        done.join()
        assert cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        pool.release_stream(stream)
    assert cuda.cuGraphDestroy(graph) == 0
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_beside_the_capture_of_a_stream_that_blocks_a_first_use_is_in_no_order(cuda, stream):
    """The default stream may not be asked then, and whose capture it is nobody knows."""
    blocking, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(blocking), 0) == 0
    with vs.Pool() as pool, pool.empty(3, "int8") as array, pool.empty(3, "int8") as another:
        assert cuda.cuStreamBeginCapture_v2(blocking, 0) == 0
        array.__dlpack__(stream=stream)
        another.__dlpack__(stream=blocking.value)
        another.__dlpack__(stream=stream)
        assert cuda.cuStreamEndCapture(blocking, ctypes.byref(graph)) == 0
        pool.release_stream(stream)
    assert cuda.cuGraphDestroy(graph) == 0
    for one in (blocking, ctypes.c_void_p(stream)):
        assert cuda.cuStreamDestroy_v2(one) == 0


def test_a_block_of_a_captured_stream_is_not_used_first_beside_its_graph(cuda, stream):
    graph = ctypes.c_void_p()
    with vs.Pool() as pool:
        assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
        array = pool.empty(3, "int8", stream=stream)
        with pytest.raises(vs.errors.FailedPrecondition,
                           match="put another stream behind this one: .*captured.*allocate the block"):
            array.__dlpack__(stream=1)
        assert hasattr(array, "__cuda_array_interface__")
        assert cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        array.close()
        pool.release_stream(stream)
    assert cuda.cuGraphDestroy(graph) == 0
    assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0
