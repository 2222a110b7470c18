"""What vmmshare.torch does, on tensors that only look like PyTorch's."""

import ctypes
import sys
import threading
import types

import numpy as np
import pytest

import fake_torch
import vmmshare as vs
import vmmshare.torch
from vmmshare import _core

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
LEGACY_STREAM = 1


@pytest.fixture(params=[fake_torch.Tensor, fake_torch.FastTensor],
                ids=["by Python", "by DLPack's exchange API"])
def Tensor(request, monkeypatch):
    for name, module in fake_torch.modules(request.param).items():
        monkeypatch.setitem(sys.modules, name, module)
    return request.param


@pytest.fixture
def block(pool):
    """4096 bytes that the hook of PyTorch gave out, as a NumPy array."""
    _core._torch_set_pool(0, pool)
    alloc, free = ALLOC(_core._hook_address("torch_alloc")), FREE(_core._hook_address("torch_free"))
    address = alloc(4096, 0, LEGACY_STREAM)
    assert address
    view = np.ctypeslib.as_array((ctypes.c_uint8 * 4096).from_address(address))
    view[:] = np.arange(4096) % 251
    yield view
    free(address, 4096, 0, LEGACY_STREAM)
    _core._torch_set_pool(0, None)


def tensor_at(Tensor, block, dtype, offset, shape, strides):
    array = np.ndarray(shape, fake_torch.numpy_dtype(dtype), block.data, offset)
    strided = np.lib.stride_tricks.as_strided(array, shape, [s * array.itemsize for s in strides])
    return Tensor(strided, dtype)


VIEWS = [("uint8", 0, (4096,), (1,)), ("uint8", 4095, (1,), (1,)), ("float32", 64, (4, 8), (8, 1)),
         ("float32", 64, (8, 4), (1, 8)), ("int64", 8, (3,), (0,)), ("float64", 4088, (), ()),
         ("int16", 0, (1,) * 6, (1,) * 6), ("bfloat16", 2, (10,), (1,)),
         ("float8_e4m3fn", 3, (10,), (1,)), ("float8_e5m2", 5, (2, 5), (5, 1)),
         ("float8_e8m0fnu", 3, (10,), (1,)), ("float8_e4m3fnuz", 1, (4,), (1,))]


@pytest.mark.parametrize("dtype, offset, shape, strides", VIEWS)
def test_views_and_aliases_are_shared(Tensor, block, remote, dtype, offset, shape, strides):
    if dtype == "bfloat16" and Tensor is fake_torch.Tensor:
        pytest.skip("NumPy takes no bfloat16")
    ours = tensor_at(Tensor, block, dtype, offset, shape, strides)
    before = fake_torch.FastTensor.conversions
    data = vs.torch.share_all({"weight": ours})
    (name, theirs), = vs.torch.open_all(remote, data).items()
    assert name == "weight" and type(theirs) is Tensor
    assert (theirs.dtype, theirs.shape, theirs.stride()) == (ours.dtype, ours.shape, strides)
    assert theirs.array.tobytes() == ours.array.tobytes()
    # The fast way was taken, or was not there.
    fast = fake_torch.FastTensor.conversions - before
    assert fast == (2 if Tensor is fake_torch.FastTensor else 0)


def test_one_tensor(Tensor, block, remote):
    ours = tensor_at(Tensor, block, "int32", 4, (5,), (1,))
    theirs = vs.torch.open(remote, vs.torch.share(ours))
    ours.array[2] = 77
    assert theirs.array[2] == 77
    with pytest.raises(ValueError, match="2 tensors"):
        vs.torch.open(remote, vs.torch.share_all({"a": ours, "b": ours}))


def test_an_array_of_a_pool_as_a_tensor_is_shared_too(Tensor, pool, remote):
    array = pool.empty(10, "int32")
    ours = Tensor(np.from_dlpack(array)[3:])
    array.close()
    ours.array[:] = range(7)
    theirs = vs.torch.open(remote, vs.torch.share(ours))
    assert theirs.array.tolist() == list(range(7))


def test_what_is_outside_is_named(Tensor, block, pool):
    other = np.zeros(10, "uint8")
    with pytest.raises(vs.errors.NotFound, match="no block of a pool"):
        vs.torch.share(Tensor(other))
    with pytest.raises(vs.errors.NotFound):
        vs.torch.share_all({"in": Tensor(block[:3]), "out": Tensor(other)})


def test_a_tensor_that_leaves_its_block_is_refused_by_who_opens_it(Tensor, block, remote):
    beyond = np.lib.stride_tricks.as_strided(block, (4097,))
    with pytest.raises(vs.errors.InvalidArgument, match="4096"):
        remote.open_all(vs.torch.share(Tensor(beyond)))


def test_a_type_that_is_not_known(Tensor, block):
    with pytest.raises(TypeError, match="is not known"):
        vs.torch.share(Tensor(block, "quint4x2"))
    tensors = {"weight": Tensor(block), "scale": Tensor(block, "quint4x2")}
    with pytest.raises(TypeError, match="^tensor 'scale': dtype .* is not known.* as uint8"):
        vs.torch.share_all(tensors)


@pytest.mark.parametrize("lazy", ["conj", "neg"])
@pytest.mark.parametrize("share", [
    vmmshare.torch.share, vmmshare.torch.serve,
    lambda tensor: vmmshare.torch.share_all({"w\ud800": tensor})])
def test_a_tensor_whose_values_are_not_in_its_memory_is_refused(Tensor, block, share, lazy):
    tensor = Tensor(block.view("complex64"))
    tensor.lazy = lazy
    with pytest.raises(vs.errors.InvalidArgument, match=rf"resolve_{lazy}\(\)"):
        share(tensor)


def test_a_lazy_negative_of_a_real_type_is_refused(Tensor, block):
    tensor = Tensor(block)  # As the imag of a conjugate is.
    tensor.lazy = "neg"
    with pytest.raises(vs.errors.InvalidArgument, match=r"resolve_neg\(\)"):
        vmmshare.torch.share(tensor)


@pytest.mark.parametrize("use", [vmmshare.torch.share, vmmshare.torch.serve])
def test_what_is_no_tensor_is_named(Tensor, use):
    with pytest.raises(TypeError, match="the tensor: expected a torch.Tensor, not a list"):
        use([1.0])


def test_empty_tensors_need_no_memory(Tensor, block, remote):
    tensors = {"a": Tensor(np.empty((0, 3), "float32")), "b": Tensor(block[:2])}
    opened = vs.torch.open_all(remote, vs.torch.share_all(tensors))
    assert opened["a"].shape == (0, 3) and opened["b"].array.tolist() == [0, 1]
    assert vs.torch.open_all(remote, vs.torch.share_all({})) == {}
    assert [*vs.torch.open_all(remote, bytearray(vs.torch.share_all(tensors)))] == ["a", "b"]


@pytest.mark.parametrize("device", [0, 1, None])
def test_an_empty_tensor_comes_back_where_it_was(Tensor, remote, device):
    empty = Tensor(np.empty((0, 3), "float32"))
    if device is not None:
        empty.device = types.SimpleNamespace(type="cuda", index=device)
    (_, array), = remote.open_all(vs.torch.share(empty))
    assert array.__dlpack_device__() == ((1, 0) if device is None else (2, device))
    assert array.shape == (0, 3) and array.readonly


def test_an_empty_tensor_of_a_device_that_is_not_here(Tensor, remote):
    empty = Tensor(np.empty(0, "int8"))
    empty.device = types.SimpleNamespace(type="cuda", index=1)
    data = bytearray(vs.torch.share(empty))
    data[24] ^= 1  # The mark of its device: docs/wire_format.md.
    (_, array), = remote.open_all(bytes(data))
    assert array.__dlpack_device__() == (2, 0)


def test_a_thousand_at_once_take_one_lease(Tensor, pool, block, remote):
    tensors = {str(i): Tensor(block[i:i + 3]) for i in range(1000)}
    data = vs.torch.share_all(tensors)
    assert len(data) < 16 + 56 + 1000 * (32 + 3)
    opened = vs.torch.open_all(remote, data)
    assert [t.array[0] for t in opened.values()] == block[:1000].tolist()
    assert len(pool.leases()) == 1
    last = opened.pop("500")
    del opened
    # The block stays with the last of them, and no longer.
    assert len(pool.leases()) == 1 and last.array[0] == block[500]
    del last
    assert pool.leases() == []


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_damaged_set_never_crashes(Tensor, pool, block, remote, at):
    tensors = {f"layer{i}": Tensor(block[i:i + 3]) for i in range(4)}
    data = bytearray(vs.torch.share_all(tensors))
    vs.torch.open_all(remote, bytes(data))  # Its memory has come: nothing waits below.
    for value in (0, 1, 0x7f, 0xff):
        damaged = data[:]
        damaged[at % len(data)] = value
        try:
            vs.torch.open_all(remote, bytes(damaged), timeout=0)
        except (vs.errors.InvalidArgument, vs.errors.FailedPrecondition,
                vs.errors.Unimplemented):
            pass
    assert pool.leases() == []


def test_without_torch(block, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        vs.torch.share(None)


def test_why_a_hook_failed(driver):
    alloc = ALLOC(_core._hook_address("torch_alloc"))
    assert alloc(4096, 1, LEGACY_STREAM) is None
    with pytest.raises(vs.errors.FailedPrecondition, match="no pool is set for device 1"):
        _core._raise_last_hook_error()
    _core._raise_last_hook_error()


def test_a_pool_of_another_device(pool):
    with pytest.raises(vs.errors.InvalidArgument, match="not of device 1"):
        _core._torch_set_pool(1, pool)


@pytest.fixture
def stream(cuda):
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    yield made
    assert cuda.cuStreamDestroy_v2(made) == 0


@pytest.mark.parametrize("is_set", [True, False])
def test_a_pool_goes_after_what_the_gpu_does_with_what_pytorch_freed(cuda, stream, is_set):
    """A free waits for all of the device, as cudaFree() does: a graph's replay may be on another
    stream than the one for which PyTorch allocated."""
    alloc, free = ALLOC(_core._hook_address("torch_alloc")), FREE(_core._hook_address("torch_free"))
    pool, other = vs.Pool(0), vs.Pool(0)
    with vs.FencePool() as fences, fences.new() as fence:
        _core._torch_set_pool(0, pool)
        address = alloc(4096, 0, None)
        assert address
        if not is_set:
            _core._torch_set_pool(0, None)
        pool.close()
        fence.wait(stream.value, 1)
        assert cuda.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_uint8(1),
                                    ctypes.c_size_t(4096), stream) == 0
        waits = threading.Thread(target=free, args=(address, 4096, 0, None), daemon=True)
        waits.start()
        waits.join(0.5)  # It does not end before the fence is signalled.
        assert waits.is_alive() and _core._is_known(address)
        fence.signal(1)
        waits.join(60)
        assert not waits.is_alive()
        assert _core._is_known(address) == is_set
    _core._torch_set_pool(0, other)
    assert not _core._is_known(address)
    _core._torch_set_pool(0, None)
    _core._raise_last_hook_error()
    other.close()


def test_what_pytorch_frees_is_waited_for_beside_a_capture(cuda, stream):
    alloc, free = ALLOC(_core._hook_address("torch_alloc")), FREE(_core._hook_address("torch_free"))
    graph = ctypes.c_void_p()
    with vs.Pool(0) as pool:
        _core._torch_set_pool(0, pool)
        address = alloc(4096, 0, stream)
        assert address
        for mode in range(3):
            assert cuda.cuStreamBeginCapture_v2(stream, mode) == 0
            free(address, 4096, 0, stream)
            assert pool.statistics()["live_blocks"] == 0
            assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
            assert cuda.cuGraphDestroy(graph) == 0
            address = alloc(4096, 0, stream)
        free(address, 4096, 0, stream)
        _core._torch_set_pool(0, None)
    _core._raise_last_hook_error()
