"""vmmshare.torch.Region, with a stand-in of PyTorch's memory."""

import ctypes
import gc
import sys
import threading

import pytest

import fake_torch
import fake_torch_memory
import vmmshare as vs
import vmmshare.torch

MIB = 1 << 20


@pytest.fixture
def torch(cuda, monkeypatch):
    modules = fake_torch.modules(fake_torch.Tensor)
    modules["torch"].cuda = fake_torch_memory.Cuda(cuda)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vs._torch_memory, "_hooks", {})
    monkeypatch.setattr(vs.torch, "_pools", {})
    return modules["torch"]


@pytest.fixture
def region(torch):
    made = vs.torch.Region()
    yield made
    gc.collect()
    made.close()


def free_memory(cuda):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def test_tensors_come_back_where_they_were(torch, cuda, region):
    before = free_memory(cuda)
    with region.use() as used:
        assert used is region
        tensors = [torch.cuda.empty(size).fill_(n) for n, size in enumerate([100, 5 * MIB, 3000])]
    assert region.statistics() == {"allocations": 2, "bytes": 8 * MIB, "kept": 0,
                                   "released": False}
    addresses = [tensor.data_ptr() for tensor in tensors]
    for _ in range(3):
        waited = torch.cuda.synchronized
        region.release()
        assert torch.cuda.synchronized > waited and free_memory(cuda) == before
        assert region.released and region.statistics()["kept"] == 8 * MIB
        region.restore()
        assert not region.released and free_memory(cuda) == before - 8 * MIB
        assert [tensor.data_ptr() for tensor in tensors] == addresses
        assert [tensor.bytes() for tensor in tensors] == [
            bytes([n]) * tensor.count for n, tensor in enumerate(tensors)]
    region.release(keep=False)
    assert region.statistics()["kept"] == 0
    region.restore()
    assert tensors[1].fill_(7).bytes() == b"\7" * (5 * MIB)


def test_what_is_cached_is_good_again_too(torch, region):
    with region.use():
        kept, gone = torch.cuda.empty(512).fill_(1), torch.cuda.empty(512)
    address = gone.data_ptr()
    del gone
    region.release()
    region.restore()
    with region.use():
        again = torch.cuda.empty(512).fill_(2)
    assert again.data_ptr() == address and region.statistics()["allocations"] == 1
    assert kept.bytes() == b"\1" * 512 and again.bytes() == b"\2" * 512


def test_tensors_may_go_while_it_is_released(torch, cuda, region):
    before = free_memory(cuda)
    with region.use():
        tensor = torch.cuda.empty(MIB)
    region.release()
    del tensor
    region.restore()
    assert free_memory(cuda) == before - 2 * MIB  # Cached.
    region.close()
    assert free_memory(cuda) == before


def test_tensors_outlive_the_region(torch, cuda):
    before, region = free_memory(cuda), vs.torch.Region()
    with region.use():
        tensor = torch.cuda.empty(MIB).fill_(3)
    region.close()
    region.close()
    assert tensor.bytes() == b"\3" * MIB
    with pytest.raises(vs.errors.FailedPrecondition, match="was closed"):
        region.release()
    with pytest.raises(vs.errors.FailedPrecondition, match="was closed"):
        with region.use():
            pass
    del region, tensor
    gc.collect()
    assert free_memory(cuda) == before - 2 * MIB  # PyTorch has it cached.
    torch.cuda.empty_cache()
    assert free_memory(cuda) == before


def test_a_released_region_gives_out_nothing(torch, region):
    region.release()
    with pytest.raises(vs.errors.FailedPrecondition, match="restore"):
        with region.use():
            raise AssertionError
    with pytest.raises(vs.errors.FailedPrecondition, match="that is released"):
        region.release()
    region.restore()
    with pytest.raises(vs.errors.FailedPrecondition, match="not released"):
        region.restore()


def test_a_region_in_use_is_neither_released_nor_entered_again(torch, region):
    with region.use():
        for call in (region.release, region.restore, region.close, region.use().__enter__):
            with pytest.raises(vs.errors.FailedPrecondition, match="in use"):
                call()
        tensor = torch.cuda.empty(100).fill_(4)
    region.release()
    region.restore()
    assert tensor.bytes() == b"\4" * 100


def test_memory_of_two_regions_is_never_mixed_up(torch, region):
    other = vs.torch.Region()
    with region.use():
        first = torch.cuda.empty(100)
        # PyTorch would go by the outer one.
        with pytest.raises(vs.errors.FailedPrecondition, match="outer"):
            with other.use():
                raise AssertionError
        second = torch.cuda.empty(3 * MIB)
    with other.use():
        third = torch.cuda.empty(100).fill_(3)
    with region.use():
        fourth = torch.cuda.empty(5 * MIB)
    assert region.statistics()["bytes"] == 12 * MIB and other.statistics()["bytes"] == 2 * MIB
    region.release()
    assert third.bytes() == b"\3" * 100
    region.restore()
    del first, second, third, fourth
    other.close()


def test_another_thread_waits_its_turn(torch, region):
    other, told = vs.torch.Region(), []

    def enter():
        try:
            with other.use():
                torch.cuda.empty(100)
        except vs.errors.FailedPrecondition as error:
            told.append(str(error))

    def run():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()

    with region.use():
        run()
        tensor = torch.cuda.empty(100)  # It is this one's still.
    assert len(told) == 1 and "another thread is in the use()" in told[0]
    assert region.statistics()["allocations"] == 1 and other.statistics()["allocations"] == 0
    run()
    assert len(told) == 1 and other.statistics()["allocations"] == 1
    del tensor
    other.close()


def test_pools_and_regions_are_not_nested(torch, region):
    with vs.Pool() as pool:
        for outer, inner in ((vs.torch.use_pool(pool), region.use()),
                             (region.use(), vs.torch.use_pool(pool))):
            with outer, pytest.raises(vs.errors.FailedPrecondition, match="outer"):
                with inner:
                    raise AssertionError
        with vs.torch.use_pool(pool):
            tensor = torch.cuda.empty(100)
        assert pool.statistics()["live_blocks"] == 1
        with region.use():
            other = torch.cuda.empty(100)
        assert region.statistics()["allocations"] == 1
        del tensor, other
        vs.torch._pools.clear()
        vs._core._torch_set_pool(0, None)


def test_a_full_device(torch, cuda, region):
    with region.use():
        tensors = [torch.cuda.empty(size).fill_(8) for size in (2 * MIB, 4 * MIB, 2 * MIB)]
    region.release()
    with vs.Allocation(nbytes=free_memory(cuda) - 6 * MIB):
        with pytest.raises(vs.errors.ResourceExhausted, match="released as before"):
            region.restore()
        assert region.released and free_memory(cuda) == 6 * MIB
    region.restore()
    assert all(tensor.bytes() == b"\10" * tensor.count for tensor in tensors)
    with vs.Allocation(nbytes=free_memory(cuda)), region.use():
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.cuda.empty(2 * MIB)
    with vs.Allocation(nbytes=free_memory(cuda)):
        with pytest.raises(torch.cuda.OutOfMemoryError) as raised, region.use():
            torch.cuda.empty(2 * MIB)
    assert isinstance(raised.value.__cause__, vs.errors.ResourceExhausted)


def test_a_pytorch_whose_pools_take_what_all_threads_allocate_is_refused(torch, driver):
    del torch._C._cuda_beginAllocateCurrentThreadToPool
    torch.__version__ = "2.7.1"
    with vs.Pool(0) as pool:
        for call in (vs.torch.Region, lambda: vs.torch.mem_pool(pool),
                     vs.torch.use_pool(pool).__enter__):
            with pytest.raises(vs.errors.FailedPrecondition, match="2.7.1.*2.8 or newer"):
                call()
