"""Memory for network cards, and memory where VMM cannot be shared."""

import copy
import ctypes
import os
import pickle

import numpy as np
import pytest

import vmmshare as vs
import vmmshare.testing
from conftest import Interface, Peer, PeerRaised, mapped

pytestmark = pytest.mark.usefixtures("driver")

# Memory of a device is the driver's to read and write.
BYTES = f"""
import ctypes
cuda, current = ctypes.CDLL({vmmshare.testing.host_driver()!r}), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0) == 0
assert cuda.cuCtxSetCurrent(current) == 0
read = lambda at, n: (lambda b: (cuda.cuMemcpyDtoH_v2(b, ctypes.c_uint64(at), n), bytes(b))[1])((ctypes.c_char * n)())
fill = lambda at, value, n: (cuda.cuMemsetD8_v2(ctypes.c_uint64(at), value, ctypes.c_size_t(n)), cuda.cuCtxSynchronize())[0]
"""
PAGE = os.sysconf("SC_PAGE_SIZE")
GRANULE = 2 << 20


def test_memory_that_nobody_asked_it_of_has_no_flag():
    assert vs.rdma_capable(vs.Allocation(nbytes=1)) == (False, "")


@pytest.mark.parametrize("how", ["try", "require"])
def test_the_flag_is_read_back(how):
    assert vs.rdma_capable(vs.Allocation(nbytes=1, rdma=how)) == (True, "")
    with vs.Pool(rdma=how) as pool:
        assert pool.empty(8, "uint8").nbytes > 0


@pytest.mark.parametrize("how", ["off", "try"])
def test_an_importer_is_told(peer, how):
    memory = vs.Allocation(nbytes=1, rdma=how)
    with vs.serve(memory) as share:
        text = str(share)
        assert peer(f"vs.rdma_capable(vs.connect({text!r}, timeout=30))") == (how == "try", "")


def test_another_word_is_refused():
    for make in (lambda: vs.Allocation(nbytes=1, rdma="yes"), lambda: vs.Pool(rdma="yes")):
        with pytest.raises(ValueError, match="expected 'off', 'try' or 'require'"):
            make()


def test_where_the_machine_refuses():
    elsewhere = Peer(env={**os.environ, "VMMSHARE_HOST_RDMA": "refused"})
    capable, why = elsewhere("vs.rdma_capable(vs.Allocation(nbytes=1, rdma='try'))")
    assert not capable and "GPUDirect RDMA" in why
    with pytest.raises(PeerRaised, match="Ask for Rdma::kTry"):
        elsewhere("vs.Allocation(nbytes=1, rdma='require')")
    elsewhere.close()


def test_memory_of_the_host_on_a_driver_that_has_none():
    elsewhere = Peer(env={**os.environ, "VMMSHARE_HOST_VERSION": "12.0"})
    with pytest.raises(PeerRaised, match="came with CUDA 12.2: install a newer driver"):
        elsewhere("vs.Allocation(nbytes=1, host_node=0)")
    elsewhere.close()


def test_a_pool_tells_of_its_memory():
    with vs.Pool() as pool:
        capable, why = vs.rdma_capable(pool)
        assert not capable and 'rdma="try"' in why
    with vs.Pool(rdma="try") as pool:
        assert vs.rdma_capable(pool) == (False, vs.rdma_capable(pool)[1])
        assert "no memory yet" in vs.rdma_capable(pool)[1]
        pool.empty(1, "uint8")
        with vs.Allocation(nbytes=1, rdma="try") as alone:
            assert vs.rdma_capable(pool) == vs.rdma_capable(alone)


def test_adopted_memory_tells_nothing(cuda):
    with vs.Allocation(nbytes=GRANULE) as own:
        with pytest.raises(vs.errors.FailedPrecondition, match="where it was created"):
            vs.rdma_capable(vs.adopt(own.ptr, GRANULE))
        with pytest.raises(vs.errors.FailedPrecondition, match="where it was created"):
            vs.dma_bufs(vs.adopt(own.ptr, GRANULE))


def test_dma_bufs_are_of_the_range_and_end_with_their_objects():
    memory = vs.Allocation(nbytes=2 * GRANULE, rdma="try")
    [whole] = vs.dma_bufs(memory)
    assert (whole.offset, whole.nbytes) == (0, 2 * GRANULE)
    [part] = vs.dma_bufs(memory, offset=PAGE, nbytes=3 * PAGE)
    assert (part.offset, part.nbytes) == (PAGE, 3 * PAGE)
    number = part.fileno()
    os.fstat(number)
    with part:
        pass
    with pytest.raises(OSError):
        os.fstat(number)
    part.close()
    with pytest.raises(ValueError, match="closed"):
        part.fileno()
    taken = whole.detach()
    whole.close()
    os.fstat(taken)
    os.close(taken)
    kept = vs.dma_bufs(memory)[0].detach()
    memory.close()
    os.fstat(kept)
    os.close(kept)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_dma_buf_is_not_copied(how):
    descriptor, end = os.pipe()
    with vs.DmaBuf(descriptor, 0, 4096) as own:
        with pytest.raises(TypeError, match="cannot copy or pickle a DmaBuf: it owns a descriptor"):
            how(own)
        os.fstat(descriptor)  # It is open.
    os.close(end)


def test_ranges_that_are_none_leave_no_descriptor():
    memory = vs.Allocation(nbytes=GRANULE)
    before = set(os.listdir("/proc/self/fd"))
    for offset, nbytes in ((1, PAGE), (0, 1), (GRANULE, PAGE), (0, GRANULE + PAGE)):
        with pytest.raises(vs.errors.InvalidArgument):
            vs.dma_bufs(memory, offset=offset, nbytes=nbytes)
    assert set(os.listdir("/proc/self/fd")) == before


def test_dma_bufs_of_a_pools_block_are_of_the_pages_around_it():
    with vs.Pool() as pool:
        pool.empty(300, "uint8")
        array = pool.empty(5000, "uint8")
        for ask, begin, end in (({}, 0, 5000), ({"offset": 4999, "nbytes": 1}, 4999, 5000)):
            (part,) = vs.dma_bufs(array, **ask)
            assert (array.ptr + part.offset) % PAGE == 0 and part.nbytes % PAGE == 0
            assert begin - PAGE < part.offset <= begin
            assert end <= part.offset + part.nbytes < end + PAGE
            os.fstat(part.fileno())
        for offset, nbytes in ((5000, 0), (0, 5001), (1, 5000)):
            with pytest.raises(vs.errors.InvalidArgument, match="leave the array of 5000 bytes"):
                vs.dma_bufs(array, offset=offset, nbytes=nbytes)


def test_dma_bufs_of_an_array_are_one_for_each_chunk(cuda):
    """Whoever made it; more of them than are had at the first try."""
    chunks = 20
    with mapped(cuda, chunks) as at:
        size = chunks * GRANULE
        parts = vs.dma_bufs(Interface(at, size))
        assert [part.offset for part in parts] == [i * GRANULE for i in range(chunks)]
        assert [part.nbytes for part in parts] == [GRANULE] * chunks
        assert len(vs.dma_bufs(Interface(at, size), offset=GRANULE - 1, nbytes=2)) == 2
        with pytest.raises(vs.errors.InvalidArgument, match="nothing of the driver's is mapped"):
            vs.dma_bufs(Interface(at, size + 1))
        for part in parts:
            part.close()


def test_dma_bufs_of_a_page_whose_beginning_was_freed(cuda):
    """Of which the driver knows no address, and which it exports all the same."""
    blocks = [ctypes.c_uint64() for _ in range(3)]
    for block in blocks:
        assert cuda.cuMemAllocAsync(ctypes.byref(block), ctypes.c_size_t(512), None) == 0
    assert cuda.cuCtxSynchronize() == 0
    array = Interface(blocks[1].value, 512)
    assert blocks[0].value // PAGE == blocks[1].value // PAGE
    assert len(vs.dma_bufs(array)) == 1
    for block in (blocks[0], blocks[2]):
        assert cuda.cuMemFreeAsync(block, None) == 0
    assert cuda.cuCtxSynchronize() == 0
    assert len(vs.dma_bufs(array)) == 1
    assert cuda.cuMemFreeAsync(blocks[1], None) == 0
    assert cuda.cuCtxSynchronize() == 0
    with pytest.raises(vs.errors.InvalidArgument, match="is not CUDA's"):
        vs.dma_bufs(array)


def test_dma_bufs_of_adopted_memory_are_those_of_an_array(cuda):
    memory = vs.Allocation(nbytes=GRANULE)
    with vs.adopt(memory.ptr, GRANULE) as adopted:
        with pytest.raises(vs.errors.FailedPrecondition, match="of an array"):
            vs.dma_bufs(adopted)
        assert len(vs.dma_bufs(adopted.array(GRANULE, "uint8"))) == 1


def test_dma_bufs_of_imported_memory_are_of_what_may_be_written(peer):
    with vs.Allocation(nbytes=GRANULE) as memory, vs.serve(memory) as share:
        peer(f"theirs = vs.connect({str(share)!r}, timeout=30, writable=True)")
        assert peer("len(vs.dma_bufs(theirs.array(4096, 'uint8')))") == 1
        peer(f"theirs = vs.connect({str(share)!r}, timeout=30)")
        with pytest.raises(PeerRaised, match="mapped for reading alone"):
            peer("vs.dma_bufs(theirs.array(4096, 'uint8'))")


def test_dma_bufs_of_memory_of_the_host_are_refused():
    for array in (vs.Allocation(nbytes=8, host_node=0).array(8, "uint8"), np.zeros(8, "uint8")):
        with pytest.raises(vs.errors.FailedPrecondition, match="the array is on the host"):
            vs.dma_bufs(array)


def test_dma_bufs_of_what_is_no_range():
    memory = vs.Allocation(nbytes=GRANULE)
    for what in (memory, memory.array(GRANULE, "uint8")):
        for ask in ({"offset": -1}, {"nbytes": -1}, {"offset": 2**64}, {"nbytes": 2**70}):
            with pytest.raises(vs.errors.InvalidArgument):
                vs.dma_bufs(what, **ask)
    with pytest.raises(TypeError):
        vs.DmaBuf()


# --- where VMM has no kind that can be shared ---------------------------------------------------

def test_legacy_is_taken_only_where_nothing_else_works():
    with vs.Allocation(nbytes=5, legacy=True) as memory:
        assert memory.weakness == "" and memory.disclosed is None
        over = memory.passed_over[-1]
        assert over["kind"] == "legacy IPC handle" and "the stronger of the two" in over["why"]
    assert vs.Allocation(nbytes=5).passed_over == []
    with vs.Pool(legacy=True) as pool:
        array = pool.empty(1, "uint8")
        with vs.serve(pool) as share:
            remote = vs.connect(str(share))
            opened = remote.open(array.ticket())
            assert pool.weakness == "" and remote.weakness == ""
            del opened
            remote.close()
        del array


@pytest.fixture
def owner(driver):
    """A process on a machine that exports no memory of cuMemCreate()."""
    other = Peer(env={**os.environ,
                      "VMMSHARE_HOST_FAIL": "cuMemExportToShareableHandle:1+:NOT_SUPPORTED"})
    yield other
    if other.process.returncode is None:
        other.close()


def test_pools_and_allocations_work_over_legacy_ipc(cuda, owner):
    here: dict = {}
    exec(BYTES, here)
    read, fill = here["read"], here["fill"]
    for line in BYTES.strip().split("\n"):
        owner(line)
    for make in ("vs.Allocation(nbytes=5)", "vs.Pool()"):
        with pytest.raises(PeerRaised, match="cuMemExportToShareableHandle"):
            owner(make)
    owner("pool = vs.Pool(legacy=True)")
    assert owner("pool.weakness") == ""
    owner("array = pool.empty(1000, 'uint8')")
    assert "legacy CUDA IPC, which discloses 33554432 bytes" in owner("pool.weakness")
    assert owner("fill(array.ptr, 7, 1000)") == 0
    owner("memory = vs.Allocation(nbytes=5, legacy=True)")
    assert "legacy CUDA IPC" in owner("memory.weakness")
    assert owner("memory.disclosed == (memory.ptr, 2 << 20)")
    assert owner("fill(memory.ptr, 9, 5)") == 0
    owner("shares = vs.serve(pool), vs.serve(memory)")
    with vs.connect(owner("str(shares[0])"), timeout=30, writable=True) as remote, \
            vs.connect(owner("str(shares[1])"), timeout=30, writable=True) as opened:
        assert "legacy CUDA IPC" in opened.weakness
        with remote.open(owner("array.ticket()")) as array:
            assert read(array.ptr, 1000) == bytes([7]) * 1000
            assert "legacy CUDA IPC, which discloses 33554432 bytes" in remote.weakness
            assert fill(array.ptr, 8, 1) == 0
        assert read(opened.ptr, 5) == bytes([9]) * 5
        assert fill(opened.ptr + 4, 10, 1) == 0
    assert owner("read(array.ptr, 2)") == bytes([8, 7])
    assert owner("read(memory.ptr, 5)") == bytes([9, 9, 9, 9, 10])
