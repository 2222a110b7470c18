"""Memory for network cards, and memory where VMM cannot be shared."""

import ctypes
import os
import subprocess
import sys

import pytest

import vmmshare as vs

PAGE = os.sysconf("SC_PAGE_SIZE")
GRANULE = 2 << 20


def test_memory_that_nobody_asked_it_of_has_no_flag():
    assert vs.rdma_capable(vs.Allocation(nbytes=1)) == (False, "")


@pytest.mark.parametrize("how", ["try", "require"])
def test_the_flag_is_read_back(how):
    assert vs.rdma_capable(vs.Allocation(nbytes=1, rdma=how)) == (True, "")
    with vs.Pool(rdma=how) as pool:
        assert pool.empty(8).nbytes > 0


def test_another_word_is_refused():
    for make in (lambda: vs.Allocation(nbytes=1, rdma="yes"), lambda: vs.Pool(rdma="yes")):
        with pytest.raises(ValueError, match="expected 'off', 'try' or 'require'"):
            make()


def test_where_the_machine_refuses():
    code = ("import vmmshare as vs\n"
            "capable, why = vs.rdma_capable(vs.Allocation(nbytes=1, rdma='try'))\n"
            "assert not capable and 'GPUDirect RDMA' in why, why\n"
            "try: vs.Allocation(nbytes=1, rdma='require')\n"
            "except vs.errors.FailedPrecondition as error: assert 'Rdma::kTry' in str(error)\n"
            "else: raise AssertionError('made')\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60,
                   env={**os.environ, "VMMSHARE_HOST_RDMA": "0"})


def test_adopted_memory_tells_nothing():
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


def test_ranges_that_are_none_leave_no_descriptor():
    memory = vs.Allocation(nbytes=GRANULE)
    before = set(os.listdir("/proc/self/fd"))
    for offset, nbytes in ((1, PAGE), (0, 1), (GRANULE, PAGE), (0, GRANULE + PAGE)):
        with pytest.raises(vs.errors.InvalidArgument):
            vs.dma_bufs(memory, offset=offset, nbytes=nbytes)
    assert set(os.listdir("/proc/self/fd")) == before


# --- where VMM has no kind that can be shared ---------------------------------------------------

def test_legacy_is_taken_only_where_nothing_else_works():
    with vs.Allocation(nbytes=5, legacy=True) as memory:
        assert memory.weakness == "" and memory.disclosed is None


OWNER = """
import ctypes, sys
import vmmshare as vs
try: vs.Allocation(nbytes=5)
except vs.errors.VmmshareError as error: assert 'cuMemExportToShareableHandle' in str(error), error
else: raise AssertionError('made')
pool = vs.Pool(legacy=True)
array = pool.empty(1000, "uint8")
ctypes.memset(array.ptr, 7, 1000)
memory = vs.Allocation(nbytes=5, legacy=True)
assert 'legacy CUDA IPC' in memory.weakness
assert memory.disclosed == (memory.ptr, 2 << 20)
ctypes.memset(memory.ptr, 9, 5)
shares = vs.serve(pool), vs.serve(memory)
print(shares[0], shares[1], array.ticket().hex(), flush=True)
sys.stdin.readline()
assert ctypes.string_at(array.ptr, 2) == bytes([8, 7])
assert ctypes.string_at(memory.ptr, 5) == bytes([9, 9, 9, 9, 10])
"""


def test_pools_and_allocations_work_over_legacy_ipc():
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ,
             "VMMSHARE_HOST_FAIL": "cuMemExportToShareableHandle:1+:NOT_SUPPORTED"})
    try:
        pool, memory, ticket = owner.stdout.readline().split()
        with vs.connect(pool, timeout=30, writable=True) as remote, \
                vs.connect(memory, timeout=30, writable=True) as opened:
            assert "legacy CUDA IPC" in opened.weakness
            with remote.open(bytes.fromhex(ticket)) as array:
                assert ctypes.string_at(array.ptr, 1000) == bytes([7]) * 1000
                ctypes.memset(array.ptr, 8, 1)
            assert ctypes.string_at(opened.ptr, 5) == bytes([9]) * 5
            ctypes.memset(opened.ptr + 4, 10, 1)
        owner.stdin.write("\n")
        owner.stdin.close()
        assert owner.wait(30) == 0
    finally:
        owner.kill()
        owner.wait()
