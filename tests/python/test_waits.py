"""Waits end by their timeout, by Ctrl-C, and let other threads run."""

import base64
import contextlib
import ctypes
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import vmmshare as vs
import vmmshare.testing
import vmmshare.weights
from conftest import Interface


@pytest.fixture
def fence(driver):
    with vs.FencePool() as fences, fences.new() as made:
        yield made


@pytest.fixture
def silent_text(pool):
    """The text of a share whose server never answers."""
    with vs.Server(directory=tempfile.mkdtemp(dir="/tmp")) as server, server.share(pool) as share:
        text = str(share)
        body = text.split(":")[2]
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        # The domain's 16 bytes, a key, access, the path's length: docs/wire_format.md.
        path = raw[43:43 + int.from_bytes(raw[41:43], "little")].decode()
        share.close()
        os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
        yield text
        listener.close()


def interrupt_soon():
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def interrupted(wait):
    timer = interrupt_soon()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()
    assert time.monotonic() - began < 20


def test_a_fence_that_is_not_signalled(fence):
    with pytest.raises(vs.errors.DeadlineExceeded):
        fence.wait(1, timeout=0.01)


def test_a_wait_that_ends_by_its_timeout_names_that_and_what_it_saw(fence, pool, remote):
    server = vs.Server()
    with vs.Allocation(nbytes=10, host_node=0) as memory, server.share(memory) as share:
        with vs.connect(str(share)), pool.empty(3, "int8") as own, remote.open(own.ticket()):
            waits = {"the fence is at 0, not 1": lambda: fence.wait(1, timeout=0.125),
                     "block 0x": lambda: pool.wait_returned(timeout=0.125),
                     "memory [0-9a-f]+": lambda: server.wait_returned(timeout=0.125)}
            for seen, wait in waits.items():
                with pytest.raises(vs.errors.DeadlineExceeded,
                                   match=f"^not within the timeout of 0.125 s: .*{seen}"):
                    wait()


@pytest.mark.parametrize("timeout", [None, 60, 1e300])
def test_ctrl_c_ends_a_wait_for_a_fence(fence, timeout):
    interrupted(lambda: fence.wait(1, timeout=timeout))
    fence.signal(1)
    fence.wait(1)


def test_ctrl_c_ends_connecting(silent_text):
    interrupted(lambda: vs.connect(silent_text, timeout=30))


def waiting_threads():
    """Those of ours that a call waits on, by number."""
    there = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if (task / "comm").read_text().strip() == "vmmshare-wait":
                there.add(task.name)
    return there


def test_after_ctrl_c_nobody_goes_on_connecting_for_ever(silent_text):
    before = waiting_threads()  # Of other tests, which may end meanwhile.
    interrupted(lambda: vs.connect(silent_text, timeout=None))
    end = time.monotonic() + 20
    while waiting_threads() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert not waiting_threads() - before


def test_who_waits_for_ever_is_told_of_an_error_that_comes_at_once(driver):
    """Though it has the name of what a round of asking ends with."""
    with vs.Allocation(nbytes=10) as memory, vs.serve(memory) as share:
        done = subprocess.run([sys.executable, "-c", """
import sys, vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
try:
    vs.connect(sys.argv[1], timeout=None)
except vs.errors.DeadlineExceeded as why:
    print(why)
""", str(share)], env={**os.environ, "VMMSHARE_HOST_FAIL": "cuMemImportFromShareableHandle:1+:TIMEOUT"},
                              capture_output=True, text=True, timeout=60)
    assert "CUDA_ERROR_TIMEOUT" in done.stdout, done.stderr


def test_connecting_ends_by_its_timeout(silent_text):
    with pytest.raises(vs.errors.DeadlineExceeded):
        vs.connect(silent_text, timeout=0.1)


def test_ctrl_c_ends_waiting_for_holders(pool, remote):
    with pool.empty(3, "int8") as array, remote.open(array.ticket()):
        interrupted(lambda: pool.wait_returned(timeout=60))


@pytest.mark.parametrize("timeout", [float("nan"), "soon"])
def test_timeouts_that_are_none(fence, timeout):
    with pytest.raises((ValueError, TypeError)):
        fence.wait(1, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 10 ** 400, 1e300, float("inf")])
def test_a_timeout_beyond_all_time_is_for_ever(fence, timeout):
    threading.Timer(0.1, fence.signal, (1,)).start()
    fence.wait(1, timeout=timeout)


@pytest.mark.parametrize("timeout", [0, -5, 0.0, -10 ** 400])
def test_no_time_only_looks(fence, timeout):
    with pytest.raises(vs.errors.DeadlineExceeded):
        fence.wait(1, timeout=timeout)
    fence.signal(1)
    fence.wait(1, timeout=timeout)


def test_other_threads_run_meanwhile(fence):
    waiting = threading.Thread(target=fence.wait, args=(1,), kwargs={"timeout": 60})
    waiting.start()
    count = 0
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        count += 1
    fence.signal(1)
    waiting.join(timeout=60)
    assert not waiting.is_alive() and count > 100


def test_fences_only_grow(fence):
    fence.signal(5)
    with pytest.raises(vs.errors.FailedPrecondition):
        fence.signal(5)
    with pytest.raises(vs.errors.InvalidArgument):
        fence.signal(0)
    fence.abandon()
    with pytest.raises(vs.errors.Aborted):
        fence.wait(6)
    fence.wait(5)


@pytest.mark.parametrize("stream", [3, 5, 4095, -1])
def test_a_value_where_the_stream_was_to_come_is_refused(fence, pool, stream):
    uses = [lambda: fence.signal(stream, 0x5000), lambda: fence.wait(stream, 0x5000),
            lambda: pool.empty(1, "int8", stream=stream), lambda: pool.release_stream(stream)]
    for use in uses:
        with pytest.raises(ValueError, match=f"stream {stream} is none: expected a CUstream"):
            use()
    for use in [lambda: fence.wait(1, 1, timeout=1), lambda: fence.signal("soon"),
                lambda: fence.wait(1, stream=1)]:
        with pytest.raises(TypeError):
            use()
    assert fence.value == 0


@pytest.mark.parametrize("size", [0, 47, 49, 56])
def test_tickets_that_are_no_fences(driver, size):
    with vs.FencePool() as fences, vs.serve(fences) as share:
        with vs.connect_fences(str(share)) as theirs:
            with pytest.raises(vs.errors.InvalidArgument):
                theirs.open(bytes(size))
            with pytest.raises(vs.errors.FailedPrecondition):
                theirs.new()


def test_ctrl_c_closes_a_keeper(keeper):
    with vs.Keeper(keeper.address) as client:
        client.list()
        keeper.stop()
        interrupted(lambda: client.list(timeout=30))
        assert client.closed
        with pytest.raises(vs.errors.FailedPrecondition, match="was closed"):
            client.list()


def test_a_keeper_that_does_not_answer_is_closed_and_a_lock_that_is_taken_is_not(keeper):
    with vs.Keeper(keeper.address) as other, vs.Keeper(keeper.address) as client:
        with vs.Allocation(nbytes=4096, host_node=0) as memory:
            other.put("name", memory)
        with pytest.raises(vs.errors.DeadlineExceeded):
            client.lock("name", timeout=2)  # Answered in time on a busy machine, too.
        assert not client.closed and len(client.list()) == 1
        keeper.stop()
        with pytest.raises(vs.errors.DeadlineExceeded):
            client.list(timeout=0.05)
        assert client.closed


def test_a_keeper_is_for_one_call_at_a_time(keeper):
    outcomes = queue.Queue()

    def listing():
        try:
            outcomes.put(client.list(timeout=60))
        except vs.errors.FailedPrecondition as error:
            outcomes.put(str(error))

    with vs.Keeper(keeper.address) as client:
        client.list()
        keeper.stop()
        running = [threading.Thread(target=listing) for _ in range(2)]
        for thread in running:
            thread.start()
        assert "one call at a time" in outcomes.get(timeout=30)
        keeper.go_on()
        assert outcomes.get(timeout=60) == []
        for thread in running:
            thread.join()
        assert client.list() == []


@pytest.mark.parametrize("use", [
    lambda text, keeper: keeper.lock(text), lambda text, keeper: keeper.attach(text),
    lambda text, keeper: vs.Keeper(text), lambda text, keeper: vs.Server(directory=text),
    lambda text, keeper: vs.connect(f"vmmshare-pool:{text}"), lambda text, keeper: vs.connect(text),
    lambda text, keeper: vs.connect_fences(text), lambda text, keeper: vs.Driver(text)])
def test_a_text_with_a_nul_is_refused(keeper, use):
    with vs.Keeper(keeper.address) as client:
        with pytest.raises(vs.errors.InvalidArgument, match="NUL"):
            use("name\0other", client)


@pytest.mark.parametrize("within", [float("nan"), float("inf"), 1e30, -1])
def test_times_of_a_recall_that_make_no_sense(pool, remote, within):
    server = vs.Server()
    with vs.Allocation(nbytes=10, host_node=0) as memory, server.share(memory):
        with pytest.raises(ValueError, match="within"):
            server.recall(memory, within=within)
    with pytest.raises(ValueError, match="within"):
        pool.recall(within=within)


@pytest.mark.parametrize("value, says", [
    (None, "a fence without a value orders nothing: expected fence and value both"),
    (-1, "value -1 is none that a fence reaches: expected 0 to 281474976710655"),
    (2 ** 48, "value 281474976710656 is none that a fence reaches: expected 0 to 281474976710655"),
    (1 << 70, "value 1180591620717411303424 is none that a fence reaches: expected 0 to")])
def test_a_fence_comes_with_a_value_that_it_reaches(pool, remote, fence, value, says):
    more = {} if value is None else {"value": value}
    with pool.empty(3, "int8") as own:
        with pytest.raises(ValueError, match=says):
            remote.open(own.ticket(), fence=fence, **more)
        assert pool.leases() == []  # Nothing was imported.


@pytest.mark.parametrize("value", ["3", 1.5])
def test_a_value_that_is_no_int_is_told_so(pool, remote, fence, value):
    with pool.empty(3, "int8") as own:
        with pytest.raises(TypeError, match=f"value: expected an int, not a {type(value).__name__}"):
            remote.open(own.ticket(), fence=fence, value=value)


@pytest.mark.parametrize("value", [0, 7, 1 << 70])
def test_a_value_comes_with_a_fence(pool, remote, value):
    with pool.empty(3, "int8") as own:
        with pytest.raises(ValueError, match=f"value {value} without a fence orders nothing"):
            remote.open(own.ticket(), value=value)
        with remote.open(own.ticket(), fence=None, value=None) as theirs:
            theirs.__dlpack__(max_version=(1, 0))


def test_every_value_that_a_fence_reaches_may_be_waited_for(pool, remote, fence):
    with pool.empty(3, "int8") as own:
        with remote.open(own.ticket(), fence=fence, value=0) as theirs:
            theirs.__dlpack__(max_version=(1, 0))
        with remote.open(own.ticket(), fence=fence, value=2 ** 48 - 1) as theirs:
            fence.signal(2 ** 48 - 1)
            theirs.__dlpack__(max_version=(1, 0))
    with pytest.raises(ValueError, match="expected at most 281474976710655"):
        fence.wait(2 ** 48, timeout=0)  # The fence's own word.


def test_a_view_waits_for_the_fence_of_its_array(pool, remote, fence):
    with pool.empty(3, "int8") as own, remote.open(own.ticket(), fence=fence, value=1) as theirs:
        with theirs.view(2, "int8", 1) as view:
            signal_it = threading.Timer(0.2, fence.signal, (1,))
            signal_it.start()
            view.__dlpack__(max_version=(1, 0))
            assert fence.value == 1
            signal_it.join()


LATE = """
import sys, threading, time
import vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
fences = vs.FenceArray(vs.Pool(0).empty((6, vs.FENCE_BYTES), "uint8"))
first = fences[0]

def hold_up(call):
    # The longest time for which no other thread ran.
    thread = threading.Thread(target=call)
    last, longest = time.monotonic(), 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.monotonic()
        last, longest = now, max(longest, now - last)
    return longest
"""


def with_a_gpu_that_answers_late(code):
    done = subprocess.run([sys.executable, "-c", LATE + code], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "VMMSHARE_HOST_DELAY": "600000"})
    assert (done.returncode, done.stderr) == (0, "")


def test_other_threads_run_while_a_fence_in_a_gpus_memory_is_asked(driver):
    with_a_gpu_that_answers_late("""
fences.clear(timeout=None)

def holds_up(call):
    # In the best of some tries: on a busy machine any thread may stand still for a while.
    for fence in fences:
        began = time.monotonic()
        longest = hold_up(lambda: call(fence))
        assert time.monotonic() - began > 0.6
        if longest < 0.5:
            return False
    return True

assert not holds_up(lambda fence: fence.value)
assert not holds_up(lambda fence: fence.signal(1))
assert first.value == 1
assert not holds_up(lambda fence: fence.abandon())
""")


def test_an_array_of_fences_is_cleared_by_a_gpu_that_answers_late(driver):
    with_a_gpu_that_answers_late("""
fences.clear(timeout=60)
first.signal(7)
fences.clear(timeout=60)
assert first.value == 0
try:
    fences.clear(timeout=0.1)
    sys.exit("no DeadlineExceeded")
except vs.errors.DeadlineExceeded:
    pass
fences.clear(timeout=None)
""")


def test_a_fence_goes_before_the_memory_that_it_lies_in(driver):
    """Its own copy out of that may be under way."""
    with_a_gpu_that_answers_late("""
memory = vs.Allocation(nbytes=1 << 20)
fences = vs.FenceArray(memory.array(vs.FENCE_BYTES, "uint8"))
fences.clear(timeout=None)
fence, address = fences[0], memory.ptr
memory.close()
fences.close()
del memory, fences
try:
    fence.wait(1, timeout=0.05)
    sys.exit("no DeadlineExceeded")
except vs.errors.DeadlineExceeded:
    pass
del fence
assert not vs._core._is_known(address)
""")


LAST = """
import ctypes, sys, threading
import vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
cuda = ctypes.CDLL(vmmshare.testing.host_driver())
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
pool, fences = vs.Pool(0), vs.FencePool()
share, own, fence = vs.serve(pool), pool.empty(3, "int8"), fences.new()
fence.wait(stream.value, 1)
remote = vs.connect(str(share))
theirs = remote.open(own.ticket())
capsule = theirs.__dlpack__(stream=stream.value, max_version=(1, 0))
theirs.close()
"""


@pytest.mark.parametrize("close", ["remote.close()", "del remote"])
def test_the_last_array_of_a_remote_pool_is_dropped_while_the_gpu_uses_it(driver, close):
    """Python would stand still until the GPU has done with it."""
    done = subprocess.run([sys.executable, "-c", LAST + f"""
{close}
rescue = threading.Timer(30, fence.signal, (1,))
rescue.start()
del capsule
assert fence.value == 0
try:
    pool.wait_returned(timeout=0.05)
    sys.exit("no DeadlineExceeded")
except vs.errors.DeadlineExceeded:
    pass
rescue.cancel()
fence.signal(1)
pool.wait_returned(timeout=60)
"""], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_of_many_threads_that_signal_a_fence_one_reaches_a_value(fence, cuda):
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    with vs.FencePool() as pool, pool.new() as second:
        signals, reached, met = threading.Barrier(4), [], []

        def work(place):
            assert cuda.cuCtxSetCurrent(cuda.context) == 0
            signals.wait(60)
            for value in range(1, 1000):
                with contextlib.suppress(vs.errors.FailedPrecondition):
                    fence.signal(made.value, value)
                    reached.append(value)
            signals.wait(60)
            both = [fence, second][::1 if place % 2 else -1]  # In any order.
            for value in range(1000, 2000):
                with contextlib.suppress(vs.errors.FailedPrecondition):
                    vs.meet(both, (), made.value, value)
                    met.append(value)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for values in (reached, met):
            assert values and len(values) == len(set(values))
        assert cuda.cuStreamSynchronize(made) == 0
        assert fence.value == second.value == 1999
    assert cuda.cuStreamDestroy_v2(made) == 0


NO_THREADS = """
import resource, sys
import vmmshare as vs
import vmmshare.testing
vmmshare.testing.use_host_driver()
memory = vs.Allocation(nbytes=4096, host_node=0)
text, own = str(vs.serve(memory)), vs.restorable(nbytes=4096, host_node=0)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
# Not enough for the stack of another thread.
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
for call in (lambda: vs.connect(text), lambda: vs.Keeper("/nowhere"), own.release):
    try:
        call()
    except vs.errors.ResourceExhausted as why:
        print("thread" in str(why))
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))  # What the interpreter's end takes.
"""


def test_a_wait_that_gets_no_thread_is_resource_exhausted():
    done = subprocess.run([sys.executable, "-B", "-c", NO_THREADS], capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n" * 3, "")


NO_LOCKED_STACK = """
import ctypes, mmap, resource
import vmmshare as vs
libc = ctypes.CDLL(None, use_errno=True)
attributes = ctypes.create_string_buffer(256)  # More than a pthread_attr_t takes.
assert libc.pthread_attr_init(attributes) == 0
assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(64 << 20)) == 0
assert libc.pthread_setattr_default_np(attributes) == 0
CAP_IPC_LOCK, MCL_FUTURE = 14, 2  # Whom no limit binds; what is mapped from now on.
header, held = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
assert libc.capget(header, held) == 0
held[0] &= ~(1 << CAP_IPC_LOCK)
assert libc.capset(header, held) == 0
before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
is_refused, limit = False, 6 << 20
if before[1] == resource.RLIM_INFINITY or before[1] >= limit:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, before[1]))
    try:
        if libc.mlockall(MCL_FUTURE) == 0:
            mmap.mmap(-1, 64 << 20).close()
    except OSError:
        is_refused = True
if is_refused:
    try:
        vs.Keeper("/nowhere")
    except vs.errors.ResourceExhausted as why:
        print("thread" in str(why), "ulimit -l" in why.remedy, "pids.max" in why.remedy)
libc.munlockall()
resource.setrlimit(resource.RLIMIT_MEMLOCK, before)  # What the interpreter's end takes.
"""


def test_a_thread_whose_stack_may_not_be_locked_is_told_of_that_limit():
    done = subprocess.run([sys.executable, "-B", "-c", NO_LOCKED_STACK], capture_output=True,
                          text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    if not done.stdout:
        pytest.skip("what is mapped here is not locked, or its limit cannot be 6 MiB")
    assert done.stdout == "True True True\n"


def test_a_pool_of_which_nothing_is_left_goes_after_the_gpus_work(cuda, fence):
    """Not under what is still on the streams of its arrays."""
    streams = [ctypes.c_void_p() for _ in range(2)]
    pool, made = vs.Pool(0), []
    for stream in streams:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        array = pool.empty(4096, "int8", stream=stream.value)
        fence.wait(stream.value, 1)
        assert cuda.cuMemsetD8Async(ctypes.c_uint64(array.ptr), ctypes.c_uint8(1),
                                    ctypes.c_size_t(4096), stream) == 0
        made.append(array)
    address = made[0].ptr
    pool.close()
    while made:
        made.pop().close()
    assert vs._core._is_known(address)
    fence.signal(1)
    for stream in streams:
        assert cuda.cuStreamSynchronize(stream) == 0
    end = time.monotonic() + 60
    while vs._core._is_known(address) and time.monotonic() < end:
        time.sleep(0.01)
    assert not vs._core._is_known(address)
    for stream in streams:
        assert cuda.cuStreamDestroy_v2(stream) == 0


def test_a_pool_stays_while_a_stream_of_its_arrays_is_captured(cuda, fence):
    """As long as it is, nobody can say how far the GPU is with it."""
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    pool = vs.Pool(0)
    array = pool.empty(4096, "int8", stream=stream.value)
    address = array.ptr
    fence.wait(stream.value, 1)
    array.close()
    assert cuda.cuStreamBeginCapture_v2(stream, 2) == 0  # Of the relaxed mode.
    pool.close()
    assert vs._core._is_known(address)
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert cuda.cuGraphDestroy(graph) == 0
    assert vs._core._is_known(address)
    fence.signal(1)
    end = time.monotonic() + 60
    while vs._core._is_known(address) and time.monotonic() < end:
        time.sleep(0.01)
    assert not vs._core._is_known(address)
    assert cuda.cuStreamDestroy_v2(stream) == 0


def expect_deaf_to_nothing(cuda, wait):
    """While the default stream stands, Ctrl-C ends `wait`, and other threads run."""
    with vs.FencePool() as fences, fences.new() as gate:
        gate.wait(0, 1)
        try:
            interrupted(wait)
        finally:
            gate.signal(1)
        assert cuda.cuCtxSynchronize() == 0


@pytest.mark.parametrize("timeout", [None, 60])
def test_ctrl_c_ends_a_copy_behind_the_default_stream(cuda, timeout):
    with vs.Pool() as pool, pool.empty(16, "uint8") as array:
        with vs.serve_array(array, copy=True, timeout=timeout) as served:
            assert served.is_copy
        expect_deaf_to_nothing(cuda, lambda: vs.serve_array(array, copy=True, timeout=timeout))


def test_a_copy_behind_the_default_stream_ends_by_its_timeout(cuda):
    with vs.Pool() as pool, pool.empty(16, "uint8") as array, vs.FencePool() as fences:
        vs.serve_array(array, copy=True).close()
        with fences.new() as gate:
            gate.wait(0, 1)
            try:
                began = time.monotonic()
                with pytest.raises(vs.errors.DeadlineExceeded, match="not done within 0.2 s"):
                    vs.serve_array(array, copy=True, timeout=0.2)
                assert time.monotonic() - began < 20
            finally:
                gate.signal(1)
            assert cuda.cuCtxSynchronize() == 0
            # What was given up goes on, and holds what it copies until it is done.
            with vs.serve_array(array, copy=True, timeout=60) as served:
                assert served.is_copy


def test_ctrl_c_ends_putting_weights_behind_the_default_stream(cuda, keeper):
    with vs.Pool() as pool, pool.empty(16, "uint8") as array:
        assert vs.weights.put("set", {"a": array}, address=keeper.address) == 1
        expect_deaf_to_nothing(
            cuda, lambda: vs.weights.put("set", {"a": array}, address=keeper.address, timeout=60))
        assert vs.weights.put("set", {"a": array}, address=keeper.address) == 2


@pytest.fixture
def own_context(driver):
    """The host-memory driver's calls, in a context of the program's own; the primary one is not
    there."""
    calls, context = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
    assert calls.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    yield calls
    assert calls.cuCtxDestroy_v2(context) == 0


@contextlib.contextmanager
def written_late(cuda):
    """An array of 16 bytes to which what stands on the default stream writes 5, and the fence that
    lets that go on."""
    address, nbytes = ctypes.c_uint64(), ctypes.c_size_t(16)
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), nbytes) == 0
    assert cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(0), nbytes) == 0
    assert cuda.cuCtxSynchronize() == 0
    with vs.FencePool() as fences, fences.new() as gate:
        gate.wait(0, 1)
        assert cuda.cuMemsetD8Async(address, ctypes.c_ubyte(5), nbytes, None) == 0
        try:
            yield Interface(address.value, 16), gate
        finally:
            if gate.value == 0:
                gate.signal(1)
            assert cuda.cuCtxSynchronize() == 0
    assert cuda.cuMemFree_v2(address) == 0


def bytes_of(cuda, array):
    out = ctypes.create_string_buffer(16)
    assert cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(array.ptr), ctypes.c_size_t(16)) == 0
    return out.raw


def test_a_copy_comes_after_the_default_stream_of_a_context_of_ones_own(own_context):
    """Copies are made in the primary context, which that stream is not of."""
    with written_late(own_context) as (array, gate):
        with pytest.raises(vs.errors.DeadlineExceeded, match="not done within 0.2 s"):
            vs.serve_array(array, copy=True, timeout=0.2)
        interrupted(lambda: vs.serve_array(array, copy=True, timeout=None))
        later = threading.Timer(0.3, gate.signal, [1])
        later.start()
        with vs.serve_array(array, copy=True, timeout=60) as served:
            with vs.open_array(served.ticket) as copy:
                assert bytes_of(own_context, copy) == bytes([5] * 16)
        later.join()


def test_weights_are_put_after_the_default_stream_of_a_context_of_ones_own(own_context, keeper):
    with written_late(own_context) as (array, gate):
        interrupted(lambda: vs.weights.put("set", {"a": array}, address=keeper.address))
        later = threading.Timer(0.3, gate.signal, [1])
        later.start()
        assert vs.weights.put("set", {"a": array}, address=keeper.address) == 1
        with vs.weights.open("set", address=keeper.address) as weights:
            assert bytes_of(own_context, weights["a"]) == bytes([5] * 16)
        later.join()


@pytest.mark.parametrize("make", [vs.weights.draft, vs.weights.publisher])
def test_ctrl_c_ends_making_a_set_behind_the_default_stream(cuda, make):
    like = {"a": (16, "uint8")}
    expect_deaf_to_nothing(cuda, lambda: make(like))
    make(like).close()


def test_ctrl_c_ends_making_a_publishers_sets_readable_behind_the_default_stream(cuda, monkeypatch):
    """They were begun before it stood still."""
    drafts = [vs.weights.draft({"a": (16, "uint8")}) for _ in range(2)]
    made = iter(drafts)
    monkeypatch.setattr(vs._publisher, "draft", lambda *like, **how: next(made))
    expect_deaf_to_nothing(cuda, lambda: vs.weights.publisher({"a": (16, "uint8")}))
    assert all(one.closed for one in drafts)


class SlowlyMade:
    """An array as JAX's, whose library waits for the GPU and hears nothing."""

    def __init__(self, array, done):
        self.array, self.done = array, done

    def block_until_ready(self):
        self.done.wait(120)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)


def test_ctrl_c_and_the_timeout_end_a_wait_of_another_library(cuda):
    with vs.Pool() as pool, pool.empty(16, "uint8") as array:
        done = threading.Event()
        slow = SlowlyMade(array, done)
        interrupted(lambda: vs.serve_array(slow, copy=True, timeout=None))
        with pytest.raises(vs.errors.DeadlineExceeded, match="not done within 0.2 s"):
            vs.serve_array(slow, copy=True, timeout=0.2)
        done.set()
        with vs.serve_array(slow, copy=True, timeout=60) as served:
            assert served.is_copy


def test_what_a_library_raises_where_it_waits_is_raised(cuda):
    class Broken(SlowlyMade):
        def block_until_ready(self):
            raise RuntimeError("the computation failed")

    with vs.Pool() as pool, pool.empty(16, "uint8") as array:
        with pytest.raises(RuntimeError, match="the computation failed"):
            vs.serve_array(Broken(array, None), copy=True)
