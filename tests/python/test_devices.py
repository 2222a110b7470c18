"""Memory of one GPU mapped for another, and for one that does not see the first."""

import ctypes
import os
import socket

import pytest

import vmmshare as vs
import vmmshare.broker
import vmmshare.keeper
import vmmshare.weights
from conftest import Peer, PeerRaised
from threads import on_a_thread

ON_CUDA = 2  # DLPack's kDLCUDA.
READ = """import ctypes, vmmshare.testing
cuda, current = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0) == 0
assert cuda.cuCtxSetCurrent(current) == 0
read = lambda a: (lambda b: (cuda.cuMemcpyDtoH_v2(b, ctypes.c_uint64(a.ptr), a.nbytes), bytes(b)))((ctypes.c_char * a.nbytes)())"""


@pytest.fixture
def of_gpu_0(cuda):
    """100 bytes of 7 on device 0, in 2 MiB."""
    with vs.Allocation(0, nbytes=100) as memory:
        fill(cuda, memory, 7)
        yield memory


def fill(cuda, memory, value):
    nbytes = ctypes.c_size_t(memory.nbytes)
    assert cuda.cuMemsetD8_v2(ctypes.c_uint64(memory.ptr), value, nbytes) == 0
    assert cuda.cuCtxSynchronize() == 0


@pytest.fixture
def only_gpu_1(driver):
    """A process that sees device 1 alone, as its device 0."""
    other = Peer(env=os.environ | {"CUDA_VISIBLE_DEVICES": "1"})
    assert other("len(vs.devices())") == 1
    yield other
    other.close()


def access(cuda, address):
    """What devices 0 and 1 may do: 0 nothing, 1 read, 3 both."""
    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    found = []
    for device in (0, 1):
        flags = ctypes.c_ulonglong()
        assert cuda.cuMemGetAccess(ctypes.byref(flags), ctypes.byref(Location(1, device)),
                                   ctypes.c_uint64(address)) == 0
        found.append(flags.value)
    return found


def test_an_allocation_is_where_it_lives_unless_a_device_is_named(cuda, of_gpu_0):
    with vs.serve(of_gpu_0) as share:
        with vs.connect(str(share)) as theirs:
            assert theirs.array(100, "uint8").__dlpack_device__() == (ON_CUDA, 0)
            assert access(cuda, theirs.ptr) == [1, 0]
        for device in (1, vs.devices()[1], vs.devices()[1].uuid):
            with vs.connect(str(share), device=device) as theirs:
                assert theirs.array(100, "uint8").__dlpack_device__() == (ON_CUDA, 1)
                assert access(cuda, theirs.ptr) == [0, 1]
        with vs.connect(str(share), device=1, writable=True) as theirs:
            assert access(cuda, theirs.ptr) == [0, 3]
        with pytest.raises(vs.errors.NotFound, match="no device"):
            vs.connect(str(share), device="GPU-no such")
        with pytest.raises(vs.errors.NotFound):
            vs.connect(str(share), device=2)


def test_a_pool_is_mapped_for_the_device_that_is_named(cuda):
    with vs.Pool(0, first_segment=8 << 20) as pool, vs.serve(pool) as share:
        array = pool.empty(100, "uint8")
        with vs.connect(str(share), device=1) as remote:
            theirs = remote.open(array.ticket())
            assert theirs.__dlpack_device__() == (ON_CUDA, 1)
            assert access(cuda, theirs.ptr) == [0, 1]
            # Segments that come later too.
            later = pool.empty(64 << 20, "uint8")
            assert access(cuda, remote.open(later.ticket()).ptr) == [0, 1]
            del theirs


def test_the_gpu_of_the_memory_is_hidden(of_gpu_0, only_gpu_1):
    only_gpu_1(READ)
    with vs.serve(of_gpu_0) as share:
        with pytest.raises(PeerRaised, match=r"FailedPrecondition.*does not see.*device="):
            only_gpu_1(f"vs.connect({str(share)!r})")
        only_gpu_1(f"theirs = vs.connect({str(share)!r}, device=0)")
        assert only_gpu_1("theirs.array(100, 'uint8').__dlpack_device__()") == (ON_CUDA, 0)
        assert only_gpu_1("read(theirs)") == (0, bytes([7] * 100))
        only_gpu_1("theirs.close()")


def test_a_pool_of_a_hidden_gpu(cuda, only_gpu_1):
    with vs.Pool(0, first_segment=8 << 20) as pool, vs.serve(pool) as share:
        array = pool.empty(100, "uint8")
        fill(cuda, array, 9)
        only_gpu_1(READ)
        only_gpu_1(f"remote = vs.connect({str(share)!r}, device=0)")
        only_gpu_1(f"theirs = remote.open({array.ticket()!r})")
        assert only_gpu_1("theirs.__dlpack_device__()") == (ON_CUDA, 0)
        assert only_gpu_1("read(theirs)") == (0, bytes([9] * 100))
        only_gpu_1("del theirs")
        only_gpu_1("remote.close()")


def test_memory_that_sleeps_is_mapped_for_the_device_again(cuda, of_gpu_0):
    with vs.restorable(0, nbytes=100) as own:
        with vs.connect_restorable(own.text, device=1) as theirs:
            assert theirs.array(100, "uint8").__dlpack_device__() == (ON_CUDA, 1)
            theirs.release()
            own.release(keep=True)
            own.restore()
            theirs.restore()
            assert access(cuda, theirs.ptr) == [0, 1]


def test_a_set_of_weights_on_another_gpu(cuda, keeper):
    like = {"a": ((2, 3), "float32"), "b": (5, "int8")}
    with vs.weights.draft(like, device=0) as draft:
        draft.put("model", address=keeper.address)
    with vs.weights.open("model", address=keeper.address, device=1) as weights:
        # Its manifest was read by the device that maps it.
        assert sorted(weights) == ["a", "b"]
        assert {array.__dlpack_device__() for array in weights.values()} == {(ON_CUDA, 1)}
        assert access(cuda, weights["a"].ptr) == [0, 1]
    with vs.keeper.attach("model", address=keeper.address, device=1) as memory:
        assert access(cuda, memory.ptr) == [0, 1]


def test_weights_of_a_hidden_gpu_are_checked_by_the_one_that_is_seen(keeper, only_gpu_1):
    with vs.weights.draft({"a": ((2, 3), "float32")}, device=0) as draft:
        draft.put("model", address=keeper.address)
    only_gpu_1("import vmmshare.weights")
    only_gpu_1(f"weights = vs.weights.open('model', address={keeper.address!r}, device=0)")
    assert only_gpu_1("weights['a'].__dlpack_device__()") == (ON_CUDA, 0)
    only_gpu_1("weights.verify()")
    only_gpu_1("weights.close()")


def test_weights_of_a_hidden_gpu_are_replaced(keeper, only_gpu_1):
    shape = {"a": ((2, 3), "float32")}
    with vs.weights.draft(shape, device=0) as draft:
        assert draft.put("model", address=keeper.address) == 1
    only_gpu_1("import vmmshare.weights")
    only_gpu_1(f"draft = vs.weights.draft({shape!r}, device=0)")
    assert only_gpu_1(f"draft.put('model', address={keeper.address!r})") == 2
    only_gpu_1("draft.close()")
    with vs.weights.open("model", address=keeper.address) as weights:
        assert weights.generation == 2
        assert weights["a"].__dlpack_device__() == (ON_CUDA, 1)
    # What is no set, of such a GPU too, stays what it is.
    with vs.Allocation(0, nbytes=100) as other:
        vs.keeper.put("other", other, address=keeper.address)
        only_gpu_1(f"draft = vs.weights.draft({shape!r}, device=0)")
        with pytest.raises(PeerRaised, match="FailedPrecondition.*does not see"):
            only_gpu_1(f"draft.put('other', address={keeper.address!r})")
        only_gpu_1("draft.close()")


@pytest.fixture
def streams(cuda):
    """One of each device."""
    made, context = [], ctypes.c_void_p()
    for device in (0, 1):
        made.append(ctypes.c_void_p())
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuStreamCreate(ctypes.byref(made[-1]), 1) == 0
    assert cuda.cuCtxSetCurrent(cuda.context) == 0
    yield [stream.value for stream in made]
    for device, stream in enumerate(made):
        assert cuda.cuStreamDestroy_v2(stream) == 0
        assert cuda.cuDevicePrimaryCtxRelease_v2(device) == 0


def test_a_follower_maps_the_weights_for_its_own_device(cuda, streams):
    with vs.weights.publisher({"a": (5, "int8")}, device=0) as publisher:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened = on_a_thread(cuda, lambda: vs.weights.follow(theirs, device=1, timeout=60))
        publisher.add(ours, "", timeout=60)
        with opened() as follower:
            publisher.acquire(streams[0], timeout=60)
            publisher.publish(streams[0], timeout=60)
            array = follower.latest(streams[1], timeout=60)["a"]
            assert array.__dlpack_device__() == (ON_CUDA, 1)
            assert access(cuda, array.ptr) == [0, 1]
            del array
            follower.release(streams[1])


class Legacy:
    """cudaMalloc()'s memory on a device, as another library's array."""

    def __init__(self, cuda, device):
        self.cuda, self.device, self.address = cuda, device, ctypes.c_uint64()
        self.context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device) == 0
        with self:
            assert cuda.cuMemAlloc_v2(ctypes.byref(self.address), 100) == 0
        self.__cuda_array_interface__ = {"shape": (100,), "typestr": "|u1", "version": 3,
                                         "data": (self.address.value, False)}

    def __enter__(self):
        assert self.cuda.cuCtxSetCurrent(self.context) == 0

    def __exit__(self, *_):
        assert self.cuda.cuCtxSetCurrent(self.cuda.context) == 0

    def free(self):
        with self:
            assert self.cuda.cuMemFree_v2(self.address) == 0
        assert self.cuda.cuDevicePrimaryCtxRelease_v2(self.device) == 0


@pytest.mark.parametrize("device", [0, 1])
def test_the_copy_of_an_array_is_on_its_device(cuda, device):
    array = Legacy(cuda, device)
    with vs.serve_array(array, copy=True) as served:
        assert vs.open_array(served.ticket).__dlpack_device__() == (ON_CUDA, device)
        other = vs.open_array(served.ticket, device=1 - device)
        assert other.__dlpack_device__() == (ON_CUDA, 1 - device)
        del other
    array.free()


def test_legacy_memory_of_the_second_gpu(cuda, peer):
    array = Legacy(cuda, 1)
    with vs.serve_array(array, legacy=True) as served:
        peer(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        assert peer("theirs.__dlpack_device__()") == (ON_CUDA, 1)
        peer("del theirs")
        peer(f"theirs = vs.open_array({served.ticket!r}, writable=True, device=0)")
        assert peer("theirs.__dlpack_device__()") == (ON_CUDA, 0)
        peer("del theirs")
    array.free()


def test_a_published_pointer_is_fetched_for_another_gpu(cuda, of_gpu_0, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    with vs.broker.publish("kv/0", of_gpu_0):
        with vs.broker.fetch("kv/0", device=1) as fetched:
            assert fetched.array(100, "uint8").__dlpack_device__() == (ON_CUDA, 1)
