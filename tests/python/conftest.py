"""What the tests of the Python package have in common."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

import pytest

import vmmshare as vs

# Before any process is started: also those of tests that take no driver are on this run's machine.
os.environ.setdefault("VMMSHARE_HOST_INSTANCE", "py-" + uuid.uuid4().hex[:12])

pytest_plugins = ["vmmshare.testing"]

PEER = str(pathlib.Path(__file__).resolve().parent / "peer.py")


class Peer:
    """Another process: peer.py, which does one line's work after the other."""

    def __init__(self, before=(), env=None):
        """before: words of a command that starts it."""
        self.process = subprocess.Popen([*before, sys.executable, PEER], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, expression):
        """The value of a Python expression there; a statement has none."""
        self.process.stdin.write(expression.replace("\n", ";") + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the peer ended at: {expression}"
        kind, _, text = answer.partition(" ")
        if kind == "raised":
            raise PeerRaised(text.strip())
        return eval(text)  # A repr() that our own peer printed.

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()


class PeerRaised(Exception):
    pass


@pytest.fixture
def peer(driver):
    other = Peer()
    yield other
    if other.process.returncode is None:
        other.close()


@pytest.fixture(scope="session")
def driver(vmmshare_host_driver):
    return vmmshare_host_driver


@pytest.fixture
def pool(driver):
    """A pool of which every test gives back what it took."""
    with vs.Pool(host_node=0, first_segment=8 << 20) as made:
        yield made
        assert made.statistics()["live_blocks"] == 0


@pytest.fixture
def remote(pool):
    """A pool and the same again, as a process has it that connected."""
    with vs.serve(pool) as share, vs.connect(str(share)) as theirs:
        yield theirs


class KeeperProcess:
    """`vmmshare keep`, at an address of its own."""

    def __init__(self, *options):
        self.folder = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
        self.address = f"{self.folder}/k"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vmmshare", "keep", f"--address={self.address}", *options],
            stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == self.address  # It serves.

    def stop(self):
        """Returns when all of its threads stand still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def keeper(driver, request):
    """With the options of an indirect parameter."""
    made = KeeperProcess(*getattr(request, "param", ()))
    yield made
    made.go_on()
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(timeout=30) == 0
    made.process.stdout.close()
    shutil.rmtree(made.folder)


@pytest.fixture
def cuda(driver):
    """The host-memory driver's calls, with a current context."""
    import vmmshare.testing
    calls, current = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
    assert calls.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0) == 0
    assert calls.cuCtxSetCurrent(current) == 0
    calls.context = current
    yield calls
    assert calls.cuCtxSetCurrent(None) == 0
    assert calls.cuDevicePrimaryCtxRelease_v2(0) == 0


class Interface:
    """An array by __cuda_array_interface__ alone."""

    def __init__(self, address, size, typestr="|u1"):
        self.__cuda_array_interface__ = {"version": 3, "shape": (size,), "typestr": typestr,
                                         "data": (address, False)}


class _Properties(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int * 2),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):
    _fields_ = [("location", ctypes.c_int * 2), ("flags", ctypes.c_int)]


@contextlib.contextmanager
def mapped(cuda, chunks):
    """Where so many chunks of 2 MiB are mapped, private, by calls of the driver alone."""
    granule = ctypes.c_size_t(2 << 20)
    size, at, handles = ctypes.c_size_t(chunks * granule.value), ctypes.c_uint64(), []
    none = ctypes.c_ulonglong(0)
    assert cuda.cuMemAddressReserve(ctypes.byref(at), size, ctypes.c_size_t(0), none, none) == 0
    properties = _Properties(kind=1, location=(1, 0))
    for i in range(chunks):
        handle = ctypes.c_ulonglong()
        assert cuda.cuMemCreate(ctypes.byref(handle), granule, ctypes.byref(properties), none) == 0
        assert cuda.cuMemMap(ctypes.c_uint64(at.value + i * granule.value), granule,
                             ctypes.c_size_t(0), handle, none) == 0
        handles.append(handle)
    access = _Access((1, 0), 3)
    assert cuda.cuMemSetAccess(at, size, ctypes.byref(access), ctypes.c_size_t(1)) == 0
    yield at.value
    assert cuda.cuMemUnmap(at, size) == 0
    for handle in handles:
        assert cuda.cuMemRelease(handle) == 0
    assert cuda.cuMemAddressFree(at, size) == 0
