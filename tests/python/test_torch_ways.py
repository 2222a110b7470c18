"""Tensors through queues, and of other allocators."""

import contextlib
import ctypes
import pathlib
import pickle
import subprocess
import sys
import time
import weakref
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import fake_torch
import vmmshare as vs
import vmmshare.testing
import vmmshare.torch


@pytest.fixture
def torch(monkeypatch):
    modules = fake_torch.modules(fake_torch.FastTensor)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    # Tensors of this PyTorch say that they are on a device, and are memory of the host.
    monkeypatch.setattr(vmmshare.torch, "_device_of", lambda pool: 0)
    return modules["torch"]


def wait_until(come):
    deadline = time.monotonic() + 60
    while not come():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pool(pool):
    """What was sent goes back a moment after its receiver let go."""
    yield pool
    wait_until(lambda: pool.statistics()["live_blocks"] == 0)


@pytest.fixture(params=["receipts", "no receipts"])
def receipts(request, monkeypatch):
    """Whether receivers can say that they have what was sent: not where a device has no fences."""
    if request.param == "receipts":
        return True

    def refuse(device):
        raise vs.errors.Unimplemented("no stream memory operations", "")

    from vmmshare import _torch_queues
    monkeypatch.setattr(_torch_queues, "FencePool", refuse)
    return False


@pytest.fixture
def context(driver):
    """The host-memory driver's calls, with a current context."""
    cuda, current = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0) == 0
    assert cuda.cuCtxSetCurrent(current) == 0
    yield cuda
    assert cuda.cuCtxSetCurrent(None) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0


def through_a_queue(tensor):
    return pickle.loads(ForkingPickler.dumps(tensor))


@pytest.mark.parametrize("writable", [True, False])
def test_tensors_of_the_pool_go_by_ticket(torch, pool, writable):
    vs.torch.enable_multiprocessing(pool, writable=writable)
    array = pool.empty(100, "float32")
    ours = torch.Tensor(np.from_dlpack(array)[10:])
    array.close()
    ours.array[:] = 1
    theirs = through_a_queue(ours)
    assert theirs.array.ctypes.data != ours.array.ctypes.data  # Mapped once more.
    assert theirs.array.flags.writeable == writable
    ours.array[:] = 5
    assert theirs.array.tolist() == [5] * 90 and len(pool.leases()) == 1
    del theirs
    assert pool.leases() == []


def test_what_is_on_the_stream_is_done_before_a_tensor_is_sent(torch, pool, monkeypatch):
    vs.torch.enable_multiprocessing(pool)
    ours = torch.Tensor(np.from_dlpack(pool.empty(3, "uint8")))
    elsewhere = torch.Tensor(np.zeros(3, "uint8"))
    share, waited = vs.torch.share, []

    def noted(tensor):
        waited[:] = torch.cuda.waited  # Before there is a ticket.
        return share(tensor)

    monkeypatch.setattr(vs.torch, "share", noted)
    ForkingPickler.dumps(elsewhere)
    assert torch.cuda.waited == []
    through_a_queue(ours)
    assert waited == torch.cuda.waited == [ours.device]


def test_parameters_stay_parameters(torch, pool):
    vs.torch.enable_multiprocessing(pool)
    ours = torch.nn.Parameter(torch.Tensor(np.from_dlpack(pool.empty(3, "int32"))))
    theirs = through_a_queue(ours)
    assert type(theirs) is torch.nn.Parameter and theirs.requires_grad


@pytest.mark.parametrize("change", ["elsewhere", "with a history", "on the host", "sparse"])
def test_all_others_go_as_before(torch, pool, change, monkeypatch):
    vs.torch.enable_multiprocessing(pool)
    array = pool.empty(3, "uint8")
    ours = torch.Tensor(np.zeros(3, "uint8") if change == "elsewhere" else np.from_dlpack(array))
    ours.array[:] = 9
    if change == "with a history":
        ours.requires_grad, ours.is_leaf = True, False
    if change == "on the host":
        ours.device.type = "cpu"
    if change == "sparse":
        def data_ptr(self):
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        monkeypatch.setattr(fake_torch.Tensor, "data_ptr", data_ptr)
    assert through_a_queue(ours) == b"\t\t\t"


def test_a_pool_of_the_host_is_not_pytorchs(torch, pool, monkeypatch):
    monkeypatch.undo()  # So that it asks the pool.
    for call in (vs.torch.enable_multiprocessing, vs.torch.mem_pool):
        with pytest.raises(ValueError, match="on the host"):
            call(pool)


class Cache:
    """Cuts one block of a pool into tensors, and uses the memory of those that went anew, as
    PyTorch's allocator does. `free`: where what went lies."""

    def __init__(self, torch, pool):
        self.whole, self.tensor = np.from_dlpack(pool.empty(8192, "uint8")), torch.Tensor
        self.free = [0, 4096]

    def full(self, value):
        place = self.free.pop(0)
        array = self.whole[place:place + 4096]
        weakref.finalize(array, self.free.insert, 0, place)
        array[:] = value
        return self.tensor(array)


def test_what_a_receiver_has_is_not_used_anew(torch, pool, receipts):
    vs.torch.enable_multiprocessing(pool)
    cache = Cache(torch, pool)
    ours = cache.full(7)
    theirs = through_a_queue(ours)
    del ours
    for _ in range(3):
        vs._served._let_go_of_what_came_back()
    again = cache.full(9)
    assert set(theirs.array.tolist()) == {7}
    assert cache.free == []
    del theirs
    wait_until(lambda: cache.free)
    assert set(cache.full(8).array.tolist()) == {8} and set(again.array.tolist()) == {9}


def test_what_was_sent_is_kept_until_it_was_received(torch, pool):
    vs.torch.enable_multiprocessing(pool)
    cache = Cache(torch, pool)
    ours = cache.full(7)
    first, second = (bytes(ForkingPickler.dumps(ours)) for _ in range(2))
    del ours
    theirs = pickle.loads(first)
    del theirs  # The watch may have seen nothing of it.
    assert pool.leases() == []
    for _ in range(3):
        vs._served._let_go_of_what_came_back()
    assert cache.free == [4096]  # The second one is on its way.
    theirs = pickle.loads(second)
    assert set(theirs.array.tolist()) == {7}
    del theirs
    wait_until(lambda: len(cache.free) == 2)


@pytest.mark.parametrize("end", ["drops it", "is killed"])
def test_another_process_receives_and(torch, pool, peer, end):
    vs.torch.enable_multiprocessing(pool)
    cache = Cache(torch, pool)
    data = bytes(ForkingPickler.dumps(cache.full(7)))
    peer("import pickle, sys, fake_torch, vmmshare.torch")
    peer("sys.modules.update(fake_torch.modules(fake_torch.FastTensor))")
    peer(f"theirs = pickle.loads({data!r})")
    for _ in range(3):
        vs._served._let_go_of_what_came_back()
    assert cache.free == [4096]
    assert peer("set(theirs.array.tolist())") == {7}
    if end == "is killed":
        peer.kill()
    else:
        peer("del theirs")
    wait_until(lambda: len(cache.free) == 2)


def test_what_is_never_received_goes_when_the_pool_is_closed(torch, driver, receipts):
    with vs.Pool(host_node=0) as pool:
        vs.torch.enable_multiprocessing(pool)
        cache = Cache(torch, pool)
        ForkingPickler.dumps(cache.full(7))
        theirs = through_a_queue(cache.full(8))
        for _ in range(3):
            vs._served._let_go_of_what_came_back()
        assert cache.free == []
    # Nobody says any more which of the two the receiver of this block has.
    for _ in range(3):
        vs._served._let_go_of_what_came_back()
    assert cache.free == [] and set(theirs.array.tolist()) == {8}
    del theirs
    wait_until(lambda: len(cache.free) == 2)


def end_of_a_producer(senders):
    """It serves no more, and keeps nothing."""
    sent = [one.on_the_way for one in senders]
    senders.clear()
    for number, (leased, _) in list(vs._served._kept.items()):
        if leased in sent:
            vs._served._kept.pop(number, None)


def test_producers_that_have_gone_are_forgotten(torch, driver, monkeypatch):
    from vmmshare import _torch_queues
    monkeypatch.setattr(_torch_queues, "_remotes", {})
    monkeypatch.setattr(_torch_queues, "_senders", [])
    kept = []
    for number in range(5):
        with vs.Pool(host_node=0) as pool:
            vs.torch.enable_multiprocessing(pool)
            ours = torch.Tensor(np.from_dlpack(pool.empty(3, "uint8")))
            ours.array[:] = number
            kept.append(through_a_queue(ours))
            remote = list(_torch_queues._remotes.values())[-1]
            end_of_a_producer(_torch_queues._senders)
            del ours
        deadline = time.monotonic() + 30
        with pytest.raises(vs.errors.Unavailable):
            while time.monotonic() < deadline:
                remote.check()
                time.sleep(0.01)
        assert len(_torch_queues._remotes) == 1
    assert [one.array.tolist() for one in kept] == [[number] * 3 for number in range(5)]


def test_memory_of_another_allocator_is_adopted(torch, context):
    """As PyTorch's expandable segments: cuMemCreate(), and an address within."""
    with vs.Allocation(nbytes=4 << 20, host_node=0) as memory:
        whole = np.from_dlpack(memory.array(4 << 20, "uint8"))
        part = whole[(2 << 20) + 64:][:4096].view("int32").reshape(32, 32).T
        part[:] = np.arange(1024).reshape(32, 32)
        served = vs.torch.serve(torch.Tensor(part))
        theirs = vs.torch.open_served(served.ticket)
        assert theirs.array.tolist() == part.tolist()
        assert theirs.stride() == (1, 32) and not theirs.array.flags.writeable
        part[3, 4] = -8
        assert theirs.array[3, 4] == -8
        served.close()
        with pytest.raises(vs.errors.NotFound):
            vs.torch.open_served(served.ticket)
        del whole, part


def test_the_memory_of_a_parameter_that_gets_other_memory_is_kept(torch, context, monkeypatch):
    """As half() of a module gives it, in place."""
    def detach(self):
        return torch.Tensor(self.array)

    monkeypatch.setattr(fake_torch.Tensor, "detach", detach)
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        ours = torch.nn.Parameter(torch.Tensor(np.from_dlpack(memory.array(16, "int32"))))
        address = ours.data_ptr()
        with vs.torch.serve(ours) as served:
            ours.array = np.zeros(16, "float16")
            assert served._array.data_ptr() == address != ours.data_ptr()


@pytest.mark.parametrize("call, kind", [("cuMemAlloc_v2", "cuMemAlloc"), (None, "not CUDA")])
def test_other_memory_says_what_to_do(torch, context, call, kind):
    address = ctypes.c_uint64()
    if call:
        assert context[call](ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    else:
        address.value = np.zeros(10).ctypes.data
    with pytest.raises(vs.errors.FailedPrecondition) as raised:
        vs.adopt(address.value, 4096)
    assert raised.value.remedy and "\n" not in str(raised.value)
    if call:
        assert context.cuMemFree_v2(address) == 0


@pytest.mark.parametrize("damage", [
    {"shape": [1 << 62, 4]}, {"offset": 1 << 40}, {"strides": [-1]}, {"shape": [3, 3]},
    {"offset": 2}, {"dtype": "object"}, {"dtype": "\ud800"}, {"dtype": "float8_zzz"},
    {"dtype": "nn"}, {"offset": -1}, {"offset": 2 ** 64}, {"shape": None}, {"shape": [[1]]},
    {"shape": [2 ** 63]}, {"strides": [2 ** 70]}, {"shape": "12"}, {"shape": [1.5]},
    {"text": "\ud800"}], ids=ascii)
def test_a_damaged_ticket_of_a_served_tensor(torch, context, damage):
    import json
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        whole = np.from_dlpack(memory.array(16, "int32"))
        with vs.adopt(whole.ctypes.data, 64) as adopted:
            assert adopted.offset == 0
        served = vs.torch.serve(torch.Tensor(whole))
        ticket = json.loads(served.ticket) | damage
        with pytest.raises(ValueError):
            vs.torch.open_served(json.dumps(ticket).encode())
        served.close()
        del whole


def test_another_name_of_a_type_in_a_ticket_of_a_served_tensor(torch, context):
    import json
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        whole = np.from_dlpack(memory.array(16, "int32"))
        whole[:] = range(16)
        with vs.torch.serve(torch.Tensor(whole)) as served:
            ticket = json.dumps(json.loads(served.ticket) | {"dtype": "torch.int32"}).encode()
            theirs = vs.torch.open_served(ticket)
            assert theirs.dtype == "int32" and theirs.array.tolist() == list(range(16))
            ticket = json.dumps(json.loads(served.ticket) | {
                "dtype": "torch.float8_e5m2", "shape": [64], "strides": [1]}).encode()
            theirs = vs.torch.open_served(ticket)  # As bytes, which DLPack carries.
            assert theirs.dtype == "float8_e5m2" and theirs.array.tolist() == whole.view(
                "uint8").tolist()
        del whole


@pytest.mark.parametrize("ticket", [b"", b"nonsense", b"[]", b"{}", b'{"text": 3}',
                                    b'{"text": "x", "dtype": "int32", "offset": "far"}',
                                    b'{"text": "x", "dtype": "int32", "offset": 1e400}',
                                    b"[" * 200000], ids=lambda ticket: ascii(ticket[:9]))
def test_what_is_no_ticket_of_a_served_tensor(torch, ticket):
    with pytest.raises(ValueError):
        vs.torch.open_served(ticket)


def test_the_text_of_a_pool_in_a_ticket_of_a_served_tensor(torch, driver):
    import json
    with vs.Pool(host_node=0) as pool:
        share = vs.serve(pool)
        ticket = {"text": str(share), "dtype": "int32", "offset": 0, "shape": [1], "strides": [1]}
        with pytest.raises(ValueError, match="that of a pool"):
            vs.torch.open_served(json.dumps(ticket).encode())
        share.close()


def test_a_closed_pool_makes_room_for_another(torch, driver, monkeypatch):
    import sys
    import types
    made = types.SimpleNamespace(allocator=lambda: 1)
    monkeypatch.setattr(sys.modules["torch"], "cuda", types.SimpleNamespace(
        MemPool=lambda allocator: object(), device=lambda ordinal: contextlib.nullcontext(),
        memory=types.SimpleNamespace(CUDAPluggableAllocator=lambda *names: made)), raising=False)
    monkeypatch.setattr(vs._torch_memory, "_hooks", {})
    monkeypatch.setattr(vs.torch, "_pools", {})
    first, second = vs.Pool(), vs.Pool()
    mem_pool = vs.torch.mem_pool(first)
    assert vs.torch.mem_pool(first) is mem_pool
    with pytest.raises(ValueError, match="Close that one first"):
        vs.torch.mem_pool(second)
    first.close()
    assert vs.torch.mem_pool(second) is not mem_pool
    vs._core._torch_set_pool(0, None)
    second.close()


END = """
import contextlib, os, sys, types
import fake_torch

class Ends:
    def __init__(self, name):
        self.name = name

    def __del__(self, write=os.write):
        write(1, self.name)

class Plugged:
    def __init__(self, *names):
        self.kept = Ends(b"allocator ")

    def allocator(self):
        return self.kept

modules = fake_torch.modules(fake_torch.FastTensor)
modules["torch"].cuda = types.SimpleNamespace(
    MemPool=lambda allocator: Ends(b"pool "), device=lambda ordinal: contextlib.nullcontext(),
    memory=types.SimpleNamespace(CUDAPluggableAllocator=Plugged))
sys.modules.update(modules)
import vmmshare.torch
vmmshare.torch._pools[0] = None, vmmshare.torch.make_mem_pool("", 0)
"""


def test_the_allocator_outlives_its_memory_pools_at_the_interpreters_end():
    """A MemPool of PyTorch's calls it when it ends, and does not keep it."""
    done = subprocess.run([sys.executable, "-B", "-c", END], capture_output=True, text=True,
                          timeout=60, cwd=pathlib.Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in ([], ["pool"], ["pool", "allocator"])
