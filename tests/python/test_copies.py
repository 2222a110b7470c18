"""Tensors of a device that are copied into a set together."""

import contextlib
import ctypes
import sys
import types

import numpy as np
import pytest

import fake_torch
import vmmshare as vs
import vmmshare.weights
from test_sync import join

COUNT = 2500  # More than go into one launch.


class OnDevice(fake_torch.Tensor):
    """A tensor over one of vmmshare's arrays."""

    def __init__(self, array, device=0):
        super().__init__(np.empty(array.shape, fake_torch.numpy_dtype(array.dtype)))
        self.on, self.where = array, device

    def data_ptr(self):
        return self.on.ptr

    def get_device(self):
        return self.where


def bytes_at(cuda, address, count):
    read = (ctypes.c_uint8 * count)()
    assert cuda.cuMemcpyDtoH_v2(read, ctypes.c_uint64(address), ctypes.c_size_t(count)) == 0
    return bytes(read)


def fill(cuda, array, value):
    assert cuda.cuMemsetD8_v2(ctypes.c_uint64(array.ptr), ctypes.c_uint8(value),
                              ctypes.c_size_t(array.nbytes)) == 0


@pytest.fixture
def torch(monkeypatch, cuda):
    """As much of PyTorch as a publisher asks for; what it copies itself is in `.copied`."""
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    made = types.ModuleType("torch")
    made.Tensor, made.copied = OnDevice, []
    made.from_dlpack = lambda capsule: types.SimpleNamespace(device="cuda:0", shape=(3,))
    made.no_grad = contextlib.nullcontext
    made._foreach_copy_ = lambda to, given, non_blocking: made.copied.extend(given)
    made.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream.value),
        is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", made)
    yield made
    assert cuda.cuStreamDestroy_v2(stream) == 0


def test_many_arrays_of_a_device_are_put(keeper, cuda):
    with vs.Pool(0) as pool:
        arrays = {str(i): pool.empty(1 + i % 40, "uint8") for i in range(COUNT)}
        for i, array in enumerate(arrays.values()):
            fill(cuda, array, i % 251)
        vs.weights.put("copied", arrays, address=keeper.address)
    with vs.weights.open("copied", address=keeper.address) as weights:
        assert weights.verify() == COUNT
        for i, (name, array) in enumerate(weights.items()):
            assert bytes_at(cuda, array.ptr, array.nbytes) == bytes([i % 251]) * array.nbytes, name


@pytest.fixture
def publisher(cuda, torch):
    with vs.weights.publisher({str(i): (3, "int16") for i in range(COUNT)}) as made:
        yield made


@contextlib.contextmanager
def pool_of(cuda, torch):
    """A pool that goes when the copies on PyTorch's stream no longer read from it."""
    with vs.Pool(0) as pool:
        yield pool
        stream = ctypes.c_void_p(torch.cuda.current_stream(None).cuda_stream)
        assert cuda.cuStreamSynchronize(stream) == 0


def given(pool, value, cuda):
    made = {str(i): OnDevice(pool.empty(3, "int16")) for i in range(COUNT)}
    for tensor in made.values():
        fill(cuda, tensor.on, value)
    assert cuda.cuStreamSynchronize(None) == 0  # PyTorch's stream does not wait for this one.
    return made


def test_a_publisher_copies_what_lies_as_in_the_slot(cuda, torch, publisher):
    follower = join(cuda, publisher)
    with pool_of(cuda, torch) as pool:
        for value in range(1, 5):
            tensors = given(pool, value, cuda)
            assert publisher.copy(tensors, timeout=60) == (value, {})
            followed = ctypes.c_void_p()
            assert cuda.cuStreamCreate(ctypes.byref(followed), 1) == 0
            arrays = follower.latest(followed.value, timeout=60)
            assert cuda.cuStreamSynchronize(followed) == 0
            assert follower.number == value
            for name in ("0", "1", str(COUNT - 1)):
                assert bytes_at(cuda, arrays[name].ptr, 6) == bytes([value]) * 6
            follower.release(followed.value)
            assert cuda.cuStreamSynchronize(followed) == 0
            assert cuda.cuStreamDestroy_v2(followed) == 0
        assert torch.copied == []
    follower.close()


def test_what_lies_otherwise_pytorch_copies(cuda, torch, publisher):
    with pool_of(cuda, torch) as pool:
        tensors = given(pool, 1, cuda)
        others = {"3": OnDevice(tensors["3"].on, device=1), "5": OnDevice(tensors["5"].on, device=-1),
                  "7": OnDevice(pool.empty(3, "float16")), "9": OnDevice(tensors["9"].on)}
        others["9"].lazy = "neg"
        tensors.update(others)
        assert publisher.copy(tensors, timeout=60).number == 1
        assert torch.copied == list(others.values())


def test_another_shape_is_refused_and_nothing_published(cuda, torch, publisher):
    with pool_of(cuda, torch) as pool:
        tensors = given(pool, 1, cuda)
        right, tensors["8"] = tensors["8"], OnDevice(pool.empty((3, 1), "int16"))
        with pytest.raises(ValueError, match="tensor '8' is of shape .3, 1.; expected .3,."):
            publisher.copy(tensors, timeout=60)
        assert publisher.number == 0 and torch.copied == []
        with pytest.raises(KeyError):
            publisher.copy({}, timeout=60)
        tensors["8"] = right
        assert publisher.copy(tensors, timeout=60).number == 1
