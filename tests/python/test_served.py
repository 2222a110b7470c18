"""Arrays of other libraries: where they are, in a weaker way by consent, and as a copy."""

import contextlib
import ctypes
import gc
import json
import os
import threading
import time

import numpy as np
import pytest

import vmmshare as vs
import vmmshare._served
import vmmshare.testing
from conftest import Interface, Peer, PeerRaised, mapped

PEER = f"""
import ctypes, vmmshare.testing
cuda, current = ctypes.CDLL({vmmshare.testing.host_driver()!r}), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0) == 0
assert cuda.cuCtxSetCurrent(current) == 0
read = lambda a: (lambda b: (cuda.cuMemcpyDtoH_v2(b, ctypes.c_uint64(a.ptr), a.nbytes), bytes(b))[1])((ctypes.c_char * a.nbytes)())
fill = lambda a, value: (cuda.cuMemsetD8_v2(ctypes.c_uint64(a.ptr), value, ctypes.c_size_t(a.nbytes)), cuda.cuCtxSynchronize())[0]
""".strip()


class Array:
    """Of a library that makes its memory by cuMemAlloc(), as most do."""

    def __init__(self, cuda, values, pool=None, strides=None, at=0, managed=False,
                 default_pool=False):
        self.cuda, self.address = cuda, ctypes.c_uint64()
        cuda.allocated.append(self.address)
        self.values = values
        nbytes = ctypes.c_size_t(at + values.nbytes)
        if managed:
            assert cuda.cuMemAllocManaged(ctypes.byref(self.address), nbytes, 1) == 0
        elif default_pool:
            assert cuda.cuMemAllocAsync(ctypes.byref(self.address), nbytes, None) == 0
        elif pool is None:
            assert cuda.cuMemAlloc_v2(ctypes.byref(self.address), nbytes) == 0
        else:
            assert cuda.cuMemAllocFromPoolAsync(ctypes.byref(self.address), nbytes, pool,
                                                None) == 0
        self.pointer = self.address.value + at
        assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(self.pointer), values.tobytes(),
                                    ctypes.c_size_t(values.nbytes)) == 0
        assert cuda.cuCtxSynchronize() == 0
        self.__cuda_array_interface__ = {
            "version": 3, "shape": values.shape, "typestr": values.dtype.str,
            "data": (self.pointer, False), "strides": strides}

    def read(self):
        out = ctypes.create_string_buffer(self.values.nbytes)
        assert self.cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(self.pointer),
                                         ctypes.c_size_t(self.values.nbytes)) == 0
        return np.frombuffer(out.raw, self.values.dtype).reshape(self.values.shape)


@pytest.fixture
def cuda(cuda):
    """Frees what an Array took, where it may be done: with the context current."""
    cuda.allocated = []
    yield cuda
    for address in cuda.allocated:
        assert cuda.cuMemFree_v2(address) == 0


@pytest.fixture
def exportable_pool(cuda):
    class Props(ctypes.Structure):
        _fields_ = [("allocType", ctypes.c_int), ("handleTypes", ctypes.c_int),
                    ("location", ctypes.c_int * 2), ("win32", ctypes.c_void_p),
                    ("maxSize", ctypes.c_size_t), ("reserved", ctypes.c_ubyte * 56)]
    pool = ctypes.c_void_p()
    props = Props(allocType=1, handleTypes=1, location=(ctypes.c_int * 2)(1, 0))
    assert cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props)) == 0
    yield pool
    for address in cuda.allocated:
        assert cuda.cuMemFree_v2(address) == 0
    cuda.allocated.clear()
    assert cuda.cuMemPoolDestroy(pool) == 0


@pytest.fixture(params=["cudaMalloc", "an exportable pool"])
def array(request, cuda, exportable_pool):
    values = np.arange(24, dtype="float32").reshape(4, 6)
    return Array(cuda, values, exportable_pool if request.param != "cudaMalloc" else None, at=512)


@pytest.fixture
def reader(peer):
    for line in PEER.split("\n"):
        peer(line)
    return peer


def test_nothing_weaker_without_consent(array):
    with pytest.raises(vs.errors.FailedPrecondition) as raised:
        vs.serve_array(array)
    assert "legacy=True" in str(raised.value) and "copy=True" in str(raised.value)


def test_in_place_by_consent(array, reader):
    with vs.serve_array(array, legacy=True) as served:
        assert not served.is_copy and "discloses" in served.weakness
        base, nbytes = served.disclosed
        assert base <= array.pointer and array.pointer + 96 <= base + nbytes
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        assert reader("theirs.shape, theirs.dtype") == ((4, 6), "float32")
        assert reader("read(theirs)") == array.values.tobytes()
        reader("fill(theirs, 0x40)")
        assert set(array.read().tobytes()) == {0x40}
        lease, = served.leases()
        assert lease["process"] == reader.process.pid
        reader("theirs.close()")
        served.wait_returned(timeout=10)


def test_a_recall_reaches_who_has_it_open(array, reader):
    with vs.serve_array(array, legacy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        assert reader("theirs.recalled_in") is None
        reader("asked = []\nthread = vs.on_recall(theirs, asked.append)")
        served.recall(within=30)
        reader("thread.join(60)")
        assert reader("asked == [[theirs.ptr]]")
        assert 0 < reader("theirs.recalled_in") <= 30
        reader("theirs.close()\ndel theirs")
        served.wait_returned(timeout=10)
    with pytest.raises(vs.errors.FailedPrecondition, match="RemotePool.recalled"):
        with vs.Pool() as pool:
            pool.empty(1, "uint8").recalled_in


def test_who_has_it_open_learns_that_its_owner_ended(driver):
    owner = Peer()
    try:
        for line in PEER.split("\n"):
            owner(line)
        owner("served = vs.serve_array(vs.Allocation(nbytes=64).array(64, 'uint8'))")
        ticket = owner("served.ticket")
        with vs.open_array(memoryview(ticket)) as theirs:
            assert theirs.recalled_in is None
            owner.kill()
            deadline = time.monotonic() + 30
            with pytest.raises(vs.errors.Unavailable):
                while time.monotonic() < deadline:
                    theirs.recalled_in
    finally:
        if owner.process.returncode is None:
            owner.close()


@pytest.mark.parametrize("nbytes", [4096, 32 << 20], ids=["a part of a chunk", "a whole segment"])
def test_a_pool_does_not_use_anew_what_is_served_while_a_reader_has_it(cuda, reader, nbytes):
    with vs.Pool() as pool:
        array = pool.empty(nbytes, "uint8")
        served = vs.serve_array(array)
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        served.close()
        del array, served
        gc.collect()
        assert pool.statistics()["live_blocks"] == 1
        reader("theirs.close()\ndel theirs")
        deadline = time.monotonic() + 30
        while pool.statistics()["live_blocks"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pool.statistics()["live_blocks"] == 0


@pytest.mark.parametrize("how", ["closed", "made for asking"])
def test_memory_is_kept_whatever_becomes_of_the_array(cuda, reader, how):
    """Of an Array that is closed while it is served, and of what goes with its capsule."""
    with vs.Pool() as pool:
        array = pool.empty(3, "uint8") if how == "closed" else MadeForAsking(pool)
        served = vs.serve_array(array)
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        assert reader("fill(theirs, 5)") == 0
        if how == "closed":
            array.close()
        gc.collect()
        assert pool.statistics()["live_blocks"] == 1
        with pool.empty(3, "uint8") as other:  # The pool gives its memory to nobody else.
            assert cuda.cuMemsetD8_v2(ctypes.c_uint64(other.ptr), ctypes.c_ubyte(9),
                                      ctypes.c_size_t(3)) == 0
            assert cuda.cuCtxSynchronize() == 0
            assert reader("read(theirs)") == bytes([5] * 3)
        served.close()
        assert pool.statistics()["live_blocks"] == 1
        reader("theirs.close()\ndel theirs")
        deadline = time.monotonic() + 30
        while pool.statistics()["live_blocks"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pool.statistics()["live_blocks"] == 0


def test_what_was_closed_is_kept_until_it_came_back_and_no_longer(array, reader):
    served = vs.serve_array(array, legacy=True)
    reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
    served.close()
    del served
    assert len(vmmshare._served._kept) == 1
    reader("theirs.close()\ndel theirs")
    # Without another call of this process.
    deadline = time.monotonic() + 30
    while vmmshare._served._kept and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not vmmshare._served._kept


def test_memory_of_cumemcreate_discloses_its_chunk(cuda):
    """As an expandable segment of PyTorch's, or a pool, whose handle gives all of it."""
    with vs.Pool() as pool:
        first, second = pool.empty(64, "uint8"), pool.empty(64, "uint8")
        with vs.serve_array(first) as served:
            assert served.weakness == ""
            base, nbytes = served.disclosed
            assert base <= first.ptr and second.ptr + 64 <= base + nbytes
    with vs.Allocation(nbytes=2 << 20) as whole:
        with vs.serve_array(whole.array(2 << 20, "uint8")) as served:
            assert served.disclosed is None


def test_in_place_is_not_for_reading_alone(array, reader):
    with vs.serve_array(array, legacy=True) as served:
        with pytest.raises(Exception, match="writable=True"):
            reader(f"vs.open_array({served.ticket!r})")


def test_a_copy_without_consent(array, reader):
    with vs.serve_array(array, copy=True) as served:
        assert served.is_copy and served.weakness == "" and served.disclosed is None
        reader(f"theirs = vs.open_array({served.ticket!r})")
        assert reader("read(theirs)") == array.values.tobytes()
        assert reader("fill(theirs, 1)") != 0  # Mapped for reading.
        assert array.cuda.cuMemsetD8_v2(ctypes.c_uint64(array.pointer), 7,
                                        ctypes.c_size_t(4)) == 0
        assert reader("read(theirs)") == array.values.tobytes()
        reader("theirs.close()")


def test_memory_of_the_default_pool_is_served_as_a_copy_alone(cuda, reader):
    array = Array(cuda, np.arange(24, dtype="float32"), default_pool=True)
    for legacy in (False, True):
        with pytest.raises(vs.errors.FailedPrecondition) as raised:
            vs.serve_array(array, legacy=legacy)
        assert "was not made exportable" in str(raised.value)
        assert "copy=True" in str(raised.value)
    with vs.serve_array(array, copy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r})")
        assert reader("read(theirs)") == array.values.tobytes()
        reader("theirs.close()")


def test_dma_bufs_are_of_the_process_that_made_the_memory(array, reader):
    """As the driver has it: what is opened by a weaker kind has none."""
    assert len(vs.dma_bufs(array)) == 1
    with vs.serve_array(array, legacy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        with pytest.raises(PeerRaised, match="that one call of this process made"):
            reader("vs.dma_bufs(theirs)")
        reader("theirs.close()")
    with vs.serve_array(array, copy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        assert reader("len(vs.dma_bufs(theirs))") == 1
        reader("theirs.close()")


OWNER_OF_LEGACY = f"""
import ctypes
import types
cuda = ctypes.CDLL({vmmshare.testing.host_driver()!r})
current, at = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0)
cuda.cuCtxSetCurrent(current)
cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64))
interface = dict(version=3, shape=(16,), typestr="<f4", data=(at.value, False))
array = types.SimpleNamespace(__cuda_array_interface__=interface)
served = vs.serve_array(array, legacy=True)
""".strip()


def test_an_address_that_the_driver_does_not_know_is_not_to_be_copied():
    values = np.zeros(4, "float32")
    with pytest.raises(vs.errors.FailedPrecondition) as raised:
        vs.serve_array(Interface(values.ctypes.data, 4, "<f4"))
    assert "does not know this address" in str(raised.value)
    assert "copy=True" not in str(raised.value)


def test_an_array_alone_has_no_name_in_a_message():
    with pytest.raises((ValueError, TypeError)) as raised:
        vs.serve_array(Interface(1 << 30, 4, "<U4"))
    assert str(raised.value).startswith("the array"), raised.value


def test_managed_memory_is_served_as_a_copy_alone(cuda, reader):
    array = Array(cuda, np.arange(24, dtype="float32"), at=512, managed=True)
    for legacy in (False, True):
        with pytest.raises(vs.errors.FailedPrecondition) as raised:
            vs.serve_array(array, legacy=legacy)
        assert "managed memory" in str(raised.value) and "copy=True" in str(raised.value)
    with vs.serve_array(array, copy=True) as served:
        assert served.is_copy and served.weakness == ""
        reader(f"theirs = vs.open_array({served.ticket!r})")
        assert reader("read(theirs)") == array.values.tobytes()
        reader("theirs.close()")


def test_a_copy_keeps_the_order_of_elements(cuda, reader):
    """Column by column, as the strides say."""
    values = np.arange(6, dtype="int32").reshape(2, 3)
    array = Array(cuda, values, strides=(4, 8))
    with vs.serve_array(array, copy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r})")
        assert reader("theirs.strides") in [(1, 2), (4, 8)]
        reader("theirs.close()")


def test_gaps_are_not_copied(cuda):
    array = Array(cuda, np.arange(8, dtype="int32").reshape(8))
    array.__cuda_array_interface__ |= {"shape": (4,), "strides": (8,)}
    with pytest.raises(ValueError, match="side by side"):
        vs.serve_array(array, copy=True)


def test_what_others_have_is_kept_until_they_let_go(array, reader):
    served = vs.serve_array(array, legacy=True)
    reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
    served.close()
    assert any(kept is array for _, kept in vs._served._kept.values())
    with pytest.raises(Exception, match="NotFound"):
        reader(f"vs.open_array({served.ticket!r}, writable=True)")
    reader("theirs.close()")
    served.wait_returned(timeout=10)
    served.close()
    assert not any(kept is array for _, kept in vs._served._kept.values())


def test_one_that_is_dropped_is_closed_like_that(array, reader):
    served = vs.serve_array(array, legacy=True)
    reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
    del served
    gc.collect()
    assert any(kept is array for _, kept in vs._served._kept.values())
    reader("theirs.close()")


def test_the_collector_may_close_one_while_another_is_closed():
    """Whatever runs within a step, as the garbage collector does: none is lost, none waits."""
    class Memory:
        def leases(self):
            if inner._array is not None:
                inner.close()
            return ["held"]

    class Share:
        def close(self):
            pass

    def made(memory):
        one = object.__new__(vs.Served)
        one._share, one._memory, one._array, one.weakness = Share(), memory, object(), "some"
        one._pid = os.getpid()
        return one

    class Held:
        def leases(self):
            return ["held"]

    inner, outer = made(Held()), made(Memory())
    arrays = [inner._array, outer._array]
    before = dict(vs._served._kept)
    outer.close()
    kept = [one for _, one in vs._served._kept.values()]
    vs._served._kept.clear()
    vs._served._kept.update(before)
    assert all(any(one is array for one in kept) for array in arrays)


def test_the_collector_may_close_one_while_it_is_looked_which_ones_came_back():
    class Held:
        def leases(self):
            return ["held"]

    def close_one(phase, _):
        if phase == "start":
            vs._served._kept[next(vs._served._numbers)] = held, None

    before, held, often = dict(vs._served._kept), Held(), gc.get_threshold()
    for _ in range(5000):  # More than the tuples that Python has in store.
        vs._served._kept[next(vs._served._numbers)] = held, None
    gc.callbacks.append(close_one)
    try:
        gc.set_threshold(100)
        vs._served._let_go_of_what_came_back()
    finally:
        gc.callbacks.remove(close_one)
        gc.set_threshold(*often)
        kept = len(vs._served._kept)
        vs._served._kept.clear()
        vs._served._kept.update(before)
    assert kept >= 5000


def test_who_looks_what_came_back_goes_on_when_there_is_no_memory():
    class Memory:
        def leases(self):
            return []

    class Kept(dict):
        failures = 1

        def __iter__(self):
            if self.failures > 0:
                self.failures -= 1
                raise MemoryError
            return super().__iter__()

    def is_kept():
        return any(one is memory for one, _ in [*kept.values()])

    # With what is kept already: whoever looks after it looks here meanwhile.
    memory, before = Memory(), vs._served._kept
    vs._served._kept = kept = Kept(before)
    try:
        vs._served._keep(memory, None)
        deadline = time.monotonic() + 30
        while is_kept() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert kept.failures == 0 and not is_kept()
    finally:
        before.clear()
        before.update(dict(kept.items()))
        vs._served._kept = before


def test_one_that_cannot_be_asked_is_asked_again_and_hinders_no_other():
    class Memory:
        def __init__(self, failures):
            self.failures = failures

        def leases(self):
            if self.failures > 0:
                self.failures -= 1
                raise vs.errors.ResourceExhausted("no memory", "")
            return []

    class Never:
        def leases(self):
            raise vs.errors.ResourceExhausted("no memory", "")

    def is_kept(memory):
        return any(one is memory for one, _ in list(vs._served._kept.values()))

    never, later, other = Never(), Memory(1), Memory(0)
    for memory in never, later, other:
        vs._served._keep(memory, None)
    deadline = time.monotonic() + 30
    while (is_kept(later) or is_kept(other)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_kept(never) and not is_kept(later) and not is_kept(other)
    for number, (memory, _) in list(vs._served._kept.items()):
        if memory is never:
            vs._served._kept.pop(number)


def test_what_was_opened_is_served_as_a_copy_alone(cuda, driver):
    with vs.Allocation(nbytes=1 << 20) as memory:
        with vs.serve_array(memory.array((16,), "int64")) as served:
            theirs = vs.open_array(served.ticket)
            for legacy in (False, True):
                with pytest.raises(vs.errors.FailedPrecondition):
                    vs.serve_array(theirs, legacy=legacy)
            with vs.serve_array(theirs, copy=True) as copied:
                assert copied.is_copy and vs.open_array(copied.ticket).shape == (16,)
            theirs.close()


def test_private_memory_is_served_as_a_copy_alone(cuda, reader):
    with mapped(cuda, 1) as at:
        array = Interface(at, 16)
        assert cuda.cuMemsetD8_v2(ctypes.c_uint64(at), 7, ctypes.c_size_t(16)) == 0
        assert cuda.cuCtxSynchronize() == 0
        for legacy in (False, True):
            with pytest.raises(vs.errors.FailedPrecondition) as raised:
                vs.serve_array(array, legacy=legacy)
            assert "copy=True" in str(raised.value)
        with vs.serve_array(array, copy=True) as served:
            reader(f"theirs = vs.open_array({served.ticket!r})")
            assert reader("read(theirs)") == bytes([7] * 16)
            reader("theirs.close()")


@pytest.mark.parametrize("how", [{}, {"legacy": True}, {"copy": True}], ids=str)
def test_an_array_of_vmm_memory_by_each_way(cuda, driver, how):
    with vs.Allocation(nbytes=1 << 20) as memory:
        with vs.serve_array(memory.array((16,), "int64"), **how) as served:
            assert served.weakness == "" and served.is_copy == ("copy" in how)
            with vs.open_array(served.ticket) as theirs:
                assert theirs.shape == (16,)


def test_memory_of_the_host_is_no_array_to_serve():
    with vs.Allocation(nbytes=8192, host_node=0) as memory:
        for how in ({}, {"legacy": True}, {"copy": True}):
            with pytest.raises(ValueError, match="on the host"):
                vs.serve_array(memory.array(8192, "uint8"), **how)


def test_a_copy_of_elements_in_reverse(cuda, reader):
    """Which libraries can copy, and nobody can open."""
    values = np.arange(6, dtype="int32")

    class Reversed(Array):
        def copy(self):
            return Array(cuda, values[::-1].copy())

    array = Reversed(cuda, values, strides=(-4,))
    with pytest.raises(ValueError, match="strides are below 0"):
        vs.serve_array(array)
    with vs.serve_array(array, copy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r})")
        assert reader("read(theirs)") == values[::-1].tobytes()
        reader("theirs.close()")


def test_a_forked_child_closes_nothing(array, reader):
    kept = vs.serve_array(array, legacy=True)
    reader(f"first = vs.open_array({kept.ticket!r}, writable=True)")
    kept.close()  # The reader has it: this process keeps it.
    assert vs._served._kept
    with vs.serve_array(array, legacy=True) as served:
        reader(f"theirs = vs.open_array({served.ticket!r}, writable=True)")
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(into, 2)
                served.close()
                del served
                gc.collect()
                vs._served._let_go_of_what_came_back()
                status = 0
            finally:
                os._exit(status)
        os.close(into)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(out, "rb") as said:
            assert said.read() == b""
        assert len(served.leases()) == 1
        reader("first.close(); theirs.close()")


def test_weaker_memory_of_a_hidden_gpu_is_not_said_to_be_had_by_naming_one():
    owner = Peer(env={**os.environ, "VMMSHARE_HOST_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"})
    elsewhere = Peer(env={**os.environ, "VMMSHARE_HOST_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"})
    for line in OWNER_OF_LEGACY.split("\n"):
        owner(line)
    ticket = owner("served.ticket")
    for how in ("", ", device=0"):
        with pytest.raises(PeerRaised) as raised:
            elsewhere(f"vs.open_array({ticket!r}, writable=True{how})")
        assert "Set CUDA_VISIBLE_DEVICES" in str(raised.value), raised.value
    owner.close()
    elsewhere.close()


def test_what_cannot_be_served(cuda):
    with pytest.raises(ValueError, match="on the host"):
        vs.serve_array(np.zeros(3))
    with pytest.raises(ValueError, match="either"):
        vs.serve_array(np.zeros(3), legacy=True, copy=True)
    empty = Array(cuda, np.zeros(4, "uint8"))
    empty.__cuda_array_interface__ |= {"shape": (0,)}
    with pytest.raises(ValueError, match="no elements"):
        vs.serve_array(empty, legacy=True)
    with pytest.raises(TypeError):
        vs.serve_array(object(), legacy=True)


def test_an_array_of_vmm_memory_needs_no_consent(cuda, driver):
    with vs.Allocation(nbytes=1 << 20) as memory:
        own = memory.array((16,), "int64", offset=4096)
        with vs.serve_array(own) as served:
            assert served.weakness == "" and not served.is_copy
            theirs = vs.open_array(served.ticket)
            assert theirs.shape == (16,) and theirs.nbytes == 128
            theirs.close()
        own.close()


@pytest.mark.parametrize("damage", [
    {"shape": [1 << 62]}, {"offset": -1}, {"strides": [-1]}, {"dtype": "object"}, {"text": "x"},
    {"shape": None}, {"offset": 2 ** 64}, {"offset": 3.7}, {"offset": "7"},
    {"strides": [2 ** 70]}, {"text": "\ud800"}, {"text": "vmmshare-pool:\ud800"}], ids=ascii)
def test_a_damaged_ticket(cuda, driver, damage):
    with vs.Allocation(nbytes=4096) as memory:
        own = memory.array((16,), "int64")
        with vs.serve_array(own) as served:
            bad = json.dumps(json.loads(served.ticket) | damage).encode()
            try:
                vs.open_array(bad)
            except ValueError:
                served.wait_returned(30)  # Also while it is handled.
            else:
                pytest.fail("it was opened")
        own.close()


def test_a_copy_comes_after_the_fence_of_what_is_copied(cuda):
    """Also on a thread where no context is current."""
    def serve():
        done.append(vs.serve_array(array, copy=True, timeout=60))

    with vs.Pool() as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        with vs.FencePool() as fences, fences.new() as fence, pool.empty(3, "uint8") as own:
            array, done = remote.open(own.ticket(), fence=fence, value=1), []
            with pytest.raises(vs.errors.DeadlineExceeded, match="fence is at 0, not 1"):
                vs.serve_array(array, copy=True, timeout=0.2)
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join(timeout=0.3)
            waited = thread.is_alive()
            assert cuda.cuMemsetD8_v2(ctypes.c_uint64(own.ptr), ctypes.c_ubyte(5),
                                      ctypes.c_size_t(3)) == 0
            assert cuda.cuCtxSynchronize() == 0
            fence.signal(1)
            thread.join(timeout=60)
            assert waited and len(done) == 1
            with done[0] as served, vs.open_array(served.ticket) as copy:
                out = ctypes.create_string_buffer(3)
                assert cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(copy.ptr), ctypes.c_size_t(3)) == 0
                assert out.raw == b"\5\5\5"
            array.close()


def expect_copied_behind(cuda, stream, fence, array, address):
    """A copy of the 16 bytes there waits for what is written to them on `stream`."""
    fence.wait(stream.value, 1)
    try:
        assert cuda.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(5),
                                    ctypes.c_size_t(16), stream) == 0
        with pytest.raises(vs.errors.DeadlineExceeded, match="stream 0x.* within 0.2 s"):
            vs.serve_array(array, copy=True, timeout=0.2)
    finally:
        fence.signal(1)
    with vs.serve_array(array, copy=True, timeout=60) as served:
        with vs.open_array(served.ticket) as copy:
            out = ctypes.create_string_buffer(16)
            assert cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(copy.ptr), ctypes.c_size_t(16)) == 0
    assert out.raw == bytes([5] * 16)


def test_a_copy_comes_after_the_stream_that_the_interface_names(cuda):
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0  # No default stream waits for it.
    array = Array(cuda, np.zeros(16, "uint8"))
    array.__cuda_array_interface__ |= {"stream": stream.value}
    with vs.FencePool() as fences, fences.new() as fence:
        expect_copied_behind(cuda, stream, fence, array, array.pointer)
    assert cuda.cuStreamDestroy_v2(stream) == 0
    array.__cuda_array_interface__ |= {"stream": 7}
    with pytest.raises(ValueError, match="stream 7 is none"):
        vs.serve_array(array, copy=True)


@pytest.mark.parametrize("is_theirs", (False, True))
@pytest.mark.parametrize("use", (lambda own, stream: own.__dlpack__(stream=stream),
                                 lambda own, stream: own.view(4, "uint8")._use_on(stream)),
                         ids=("dlpack", "view"))
def test_a_copy_of_an_array_comes_after_the_stream_it_is_used_on(cuda, use, is_theirs):
    """That of a pool's own, and of one that was opened."""
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0  # No default stream waits for it.
    with contextlib.ExitStack() as held:
        pool = held.enter_context(vs.Pool())
        array = own = held.enter_context(pool.empty(16, "uint8", stream=stream.value))
        if is_theirs:
            remote = held.enter_context(vs.connect(str(held.enter_context(vs.serve(pool))),
                                                   writable=True))
            array = held.enter_context(remote.open(own.ticket()))
        fences = held.enter_context(vs.FencePool())
        fence = held.enter_context(fences.new())
        taken = use(array, stream.value)
        expect_copied_behind(cuda, stream, fence, array, array.ptr)
        # Of a stream that was released, and may be gone, nobody asks.
        pool.release_stream(stream.value)
        assert cuda.cuStreamDestroy_v2(stream) == 0
        with vs.serve_array(array, copy=True, timeout=60) as served:
            assert served.is_copy
        del taken


def test_no_copy_is_made_of_an_array_whose_stream_is_captured(cuda):
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    with vs.Pool() as pool, pool.empty(16, "uint8", stream=stream.value) as array:
        assert cuda.cuStreamBeginCapture_v2(stream, 2) == 0  # Of the relaxed mode.
        with pytest.raises(vs.errors.FailedPrecondition, match="is being captured"):
            vs.serve_array(array, copy=True, timeout=None)
        assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
        assert cuda.cuGraphDestroy(graph) == 0
        with vs.serve_array(array, copy=True, timeout=60) as served:
            assert served.is_copy
        pool.release_stream(stream.value)
    assert cuda.cuStreamDestroy_v2(stream) == 0


class MadeForAsking:
    """An array of a device that is made when a consumer asks for it, and goes with its capsule."""

    def __init__(self, pool):
        self.pool = pool

    def __dlpack__(self, **how):
        return self.pool.empty(3, "uint8").__dlpack__(**how)

    def __dlpack_device__(self):
        return 2, 0


def test_what_is_made_when_it_is_asked_for_is_there_until_it_was_copied(cuda, monkeypatch):
    def copy_into(*what):
        live.append(pool.statistics()["live_blocks"])
        return copy(*what)

    live, copy = [], vs._core._copy_into
    monkeypatch.setattr(vs._core, "_copy_into", copy_into)
    with vs.Pool() as pool:
        with vs.serve_array(MadeForAsking(pool), copy=True):
            assert live == [1, 1]  # When its place among streams is made, and when it is copied.
        assert pool.statistics()["live_blocks"] == 0
