"""The interpreter destroys streams of the program's before what went back on them."""

import subprocess
import sys

import pytest

BEGIN = """
import ctypes
import vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
cuda, context = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

class Stream:
    # Destroyed with its object, as CuPy's and cuda.core's are.
    def __init__(self):
        made = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
        self.number, self._destroy = made.value, cuda.cuStreamDestroy_v2

    def __del__(self):
        self._destroy(ctypes.c_void_p(self.number))

stream = Stream()  # The first global, so the first to go.
pool = vs.Pool(0)
"""

WAYS = {
    "what a pool would ask after": "array = pool.empty(3, 'int8', stream=stream.number); del array",
    "a block": "array = pool.empty(3, 'int8', stream=stream.number)",
    "a block that nobody could give back": """
array = pool.empty(3, 'int8', stream=stream.number)
mode = ctypes.c_int(0)
assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream.number), 0) == 0
del array
graph = ctypes.c_void_p()
assert cuda.cuStreamEndCapture(ctypes.c_void_p(stream.number), ctypes.byref(graph)) == 0
other = pool.empty(3, 'int8')
""",
    "a peer's block": """
share = vs.serve(pool)
remote = vs.connect(str(share), writable=True)
array = pool.empty(3, 'int8')
theirs = remote.open(array.ticket())
theirs.__dlpack__(stream=stream.number)
""",
    "what a library gives back by itself": """
class Buffer:
    def __init__(self):
        self.number, self.address = stream.number, pool._allocate(3, stream.number)
        self.back = pool._free

    def __del__(self):
        self.back(self.address, self.number)
buffer = Buffer()
""",
    # It asks again and again, also while what comes after the stream takes its time to go.
    "a pool that a thread closes": """
import time
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
gate = vs.FencePool().new()
array = pool.empty(3, 'int8', stream=stream.number)
gate.wait(stream.number, 1)
del array, pool
slow = Slow()
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_no_stream_that_was_destroyed_is_asked_after(way):
    done = subprocess.run([sys.executable, "-B", "-c", BEGIN + WAYS[way]], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_what_the_gpu_writes_to_stays_though_its_stream_is_let_go_of():
    """By who keeps it for the pool alone, as a resource of cuda.core's does."""
    script = """
import atexit

def late():  # After the module's own hook, which is registered later.
    global pool
    assert pool._forget_stream(stream.number)
    pool = None
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    assert cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size),
                                        ctypes.c_uint64(address)) == 0
    print("it stays")
atexit.register(late)
""" + BEGIN + """
gate = vs.FencePool().new()
array = pool.empty(3, 'int8', stream=stream.number)
address = array.ptr
gate.wait(stream.number, 1)
del array
"""
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout) == (0, "it stays\n"), done.stderr


def test_a_child_that_was_forked_after_the_import_waits_for_who_asks():
    """It has a pool of its own. A thread asks after its stream for 50 ms of each 60."""
    script = """
import atexit, os, time
began = []
# The module's own hook comes between these two: the last one is called first.
atexit.register(lambda: print(time.monotonic() - began[0]))
import vmmshare
atexit.register(lambda: began.append(time.monotonic()))
child = os.fork()
if child:
    os._exit(os.waitpid(child, 0)[1] != 0)
""" + BEGIN + """
gate = vs.FencePool().new()
array = pool.empty(3, 'int8', stream=stream.number)
gate.wait(stream.number, 1)
del array, pool
import time
time.sleep(0.02)
"""
    for _ in range(30):  # It may come between two questions.
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stderr
        if float(done.stdout) > 0.01:
            return
    pytest.fail("no exit waited")


def test_an_exit_waits_for_no_gpu():
    """A thread asks after the pool's stream, and stops to when the interpreter ends."""
    stands = """
gate = vs.FencePool().new()
array = pool.empty(3, 'int8', stream=stream.number)
gate.wait(stream.number, 1)
del array, pool
"""
    done = subprocess.run([sys.executable, "-B", "-c", BEGIN + stands], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
