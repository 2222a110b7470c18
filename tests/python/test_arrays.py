"""Arrays of an own pool and of allocations."""

import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import vmmshare as vs
import vmmshare.testing

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
          "float16", "float32", "float64", "complex64", "complex128"]
SHAPES = [(), (1,), (7,), (2, 3), (4, 1, 5), (0,), (3, 0, 2), (1,) * 32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape[:4])) or "0d")
def test_numpy_sees_the_array(pool, dtype, shape):
    with pool.empty(shape, dtype) as array:
        view = np.from_dlpack(array)
        assert (view.shape, view.dtype.name) == (shape, dtype)
        assert (array.shape, array.dtype, array.nbytes) == (shape, dtype, view.nbytes)
        assert view.ctypes.data == array.ptr or view.size == 0
        assert view.flags.writeable and view.flags.c_contiguous
        del view


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpys_own_dtypes_are_understood(pool, dtype):
    for spelled in (np.dtype(dtype), getattr(np, "bool_" if dtype == "bool" else dtype)):
        assert pool.empty(2, spelled).dtype == dtype if dtype != "bool" else True


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
                                   "float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16"])
def test_types_that_numpy_lacks(pool, dtype):
    with pool.empty(8, dtype) as array:
        assert array.dtype == dtype
        assert array.nbytes == 8 * (2 if dtype == "bfloat16" else 1)
        with pytest.raises((RuntimeError, BufferError, TypeError)):
            np.from_dlpack(array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape[:4])) or "0d")
def test_numpy_takes_it_as_an_array(pool, dtype, shape):
    with pool.empty(shape, dtype) as array:
        view = np.asarray(array)
        assert (view.shape, view.dtype.name) == (shape, dtype)
        assert view.ctypes.data == array.ptr or view.size == 0
        view[...] = 1
        assert np.array_equal(array, np.ones(shape, dtype)) and np.sum(array) == view.size
        del view


def test_what_numpy_asks_for_when_it_takes_an_array(pool):
    with pool.empty((2, 3), "float32") as array:
        np.asarray(array)[...] = [[1, 2, 3], [4, 5, 6]]

        def is_a_copy(made):
            return made.tolist() == [[1, 2, 3], [4, 5, 6]] and made.ctypes.data != array.ptr

        assert np.asarray(array, "float32").ctypes.data == array.ptr
        assert array.__array__(copy=False).ctypes.data == array.ptr
        assert array.__array__(np.float32, copy=None).ctypes.data == array.ptr
        assert array.__array__(np.dtype("float32"), False).ctypes.data == array.ptr
        for made in (np.array(array), array.__array__(copy=True),
                     array.__array__("float32", copy=True)):
            assert made.dtype == np.float32 and is_a_copy(made)
        for made in (np.asarray(array, "int64"), np.array(array, "int64"),
                     array.__array__("int64", copy=True), array.__array__("int64")):
            assert made.dtype == np.int64 and is_a_copy(made)
        with pytest.raises(ValueError, match="float32 as int64 is a copy, which copy=False"):
            array.__array__("int64", copy=False)
        assert (np.ones((2, 3)) + array).tolist() == [[2, 3, 4], [5, 6, 7]]
        assert np.stack([array, array]).shape == (2, 2, 3)
        columns = array._cut(1, 1, 2)
        assert np.asarray(columns).tolist() == [[2, 3], [5, 6]]
        del columns, made
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        np.asarray(array)
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        with array:
            pass


def test_numpy_takes_anothers_array_as_it_is_mapped(pool, remote):
    own = pool.empty(4, "int32")
    np.asarray(own)[...] = 7
    with remote.open(own.ticket()) as theirs:
        view = np.asarray(theirs)
        assert view.tolist() == [7] * 4 and not view.flags.writeable
        copy = np.array(theirs)
        copy[0] = 1
        assert view[0] == 7
        del view
    own.close()


def test_what_numpy_cannot_look_at_says_what_can(driver):
    with vs.Allocation(1, nbytes=4096) as memory, memory.array(3, "float32") as array:
        for take in (np.asarray, np.array, np.sum, lambda a: a.__array__("float32")):
            with pytest.raises(TypeError, match=r"array of device 1: .*torch\.from_dlpack.*cupy\."
                                                r"from_dlpack.*copy it to the host"):
                take(array)
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        for dtype, bits in (("bfloat16", "uint16"), ("float8_e4m3fn", "uint8"),
                            ("float8_e5m2", "uint8")):
            array = memory.array(3, dtype)
            with pytest.raises(TypeError, match=f"NumPy has no dtype {dtype}: .*{bits}"):
                np.asarray(array)
            assert np.asarray(array.view(array.shape, bits)).dtype == bits


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (4, 2)], ids=str)
def test_how_large_it_is_says_what_numpys_says(pool, shape):
    with pool.empty(shape, "int16") as array:
        same = np.empty(shape, "int16")
        assert (array.ndim, array.size, array.nbytes) == (same.ndim, same.size, same.nbytes)
        assert array  # Whatever it has.
        if shape:
            assert len(array) == len(same)
        else:
            with pytest.raises(TypeError, match="no dimensions"):
                len(array)


def test_a_repr_says_what_it_is(driver):
    with vs.Pool(host_node=0) as pool, vs.Pool(device=0) as other:
        assert (repr(pool), repr(other)) == ("<vmmshare.Pool, host>", "<vmmshare.Pool, device 0>")
    assert repr(pool) == "<vmmshare.Pool, closed>"
    with vs.Allocation(nbytes=100, host_node=0) as memory, vs.serve(memory) as share:
        assert repr(memory) == f"<vmmshare.Allocation, 100 bytes at {memory.ptr:#x}>"
        with vs.connect(str(share)) as theirs:
            assert repr(theirs).endswith(f" at {theirs.ptr:#x}, read-only>")
    assert repr(memory) == "<vmmshare.Allocation, closed>"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_who_pickles_an_array_is_told_of_its_ticket(pool, how):
    with pool.empty(3, "uint8") as array:
        with pytest.raises(TypeError, match=r"array\.ticket\(\).*RemotePool\.open\(\)"):
            how(array)


def test_a_cache_may_hold_it_weakly(pool, remote):
    """By a weak reference, which keeps no memory."""
    own = pool.empty(3, "int8")
    made = {"own": own, "theirs": remote.open(own.ticket()), "pool": vs.Pool(host_node=0),
            "memory": vs.Allocation(nbytes=100, host_node=0), "fences": vs.FencePool()}
    made["share"] = vs.serve(made["memory"])
    cache = weakref.WeakValueDictionary({**made, "remote": remote})
    assert cache["theirs"] is made["theirs"] and len(cache) == 7
    assert pool.statistics()["live_blocks"] == 1
    del own
    made.clear()
    assert list(cache) == ["remote"]
    assert pool.statistics()["live_blocks"] == 0


class Named:
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize("dtype", [
    "float12", "object", "", ">f4", "<", "f", "<<f4", "float", "half", 3, None, "U8", "\ud800",
    Named("\ud800"), np.dtype(">f4"), np.dtype(">c16")], ids=ascii)
def test_other_types_are_refused(pool, dtype):
    with pytest.raises(TypeError, match="is not known"):
        pool.empty(3, dtype)


@pytest.mark.parametrize("spelled", ["<f4", "f4", "=f4", "|f4"])
def test_a_type_may_be_spelled_as_numpy_does(pool, spelled):
    with pool.empty(3, spelled) as array:
        assert array.dtype == np.dtype(spelled).name == "float32"


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex128"])
def test_numpys_own_spelling_of_a_type_is_understood(pool, name):
    for spelled in np.dtype(name).str, np.dtype(name).str[1:]:
        with pool.empty(3, spelled) as array:
            assert array.dtype == name


@pytest.mark.parametrize("shape", [-1, (2, -3), (1 << 62, 4), (1 << 40, 1 << 40), (1,) * 33,
                                   (2 ** 63,)])
def test_shapes_that_make_no_sense(pool, shape):
    with pytest.raises(ValueError):
        pool.empty(shape, "float64")


@pytest.mark.parametrize("shape", ["abc", "12", b"3", bytearray(b"3"), {2, 3}, {2: 3}, (1.5,), ("a",),
                                   np.array([1.5]), np.array([[2, 3]]), iter([2]), object()])
def test_shapes_that_are_none(pool, shape):
    with pytest.raises(TypeError):
        pool.empty(shape, "int8")


def test_a_length_may_be_of_numpy(pool):
    for shape in (np.int64(3), (np.uint8(3),)):
        with pool.empty(shape, "int8") as array:
            assert array.shape == (3,)
    for shape in (np.array([2, 3]), [np.int64(2), 3], range(2, 4)):
        with pool.empty(shape, "int8") as array:
            assert array.shape == (2, 3)


@pytest.mark.parametrize("use", [
    lambda: vs.Pool(1.5), lambda: vs.Pool(b"x"),
    lambda: vs.Pool(host_node="a"), lambda: vs.share_all({"x": 3})])
def test_arguments_of_another_type(driver, use):
    with pytest.raises(TypeError):
        use()


def test_what_does_not_fit(driver):
    with vs.Pool(host_node=0, cap=4 << 20, first_segment=2 << 20) as pool:
        with pytest.raises(vs.errors.ResourceExhausted) as raised:
            pool.empty(8 << 20, "int8")
        assert isinstance(raised.value, MemoryError) and raised.value.remedy


def test_the_block_goes_with_the_last_view(pool):
    array = pool.empty(5, "int32")
    view = np.from_dlpack(array)
    other = np.from_dlpack(array)
    array.close()
    assert array.closed
    assert pool.statistics()["live_blocks"] == 1
    view[:] = 7
    del view
    assert pool.statistics()["live_blocks"] == 1
    assert other.sum() == 35
    del other
    assert pool.statistics()["live_blocks"] == 0


def test_the_pool_may_go_first(driver):
    pool = vs.Pool(host_node=0)
    view = np.from_dlpack(pool.empty(1000, "uint8"))
    pool.close()
    del pool
    gc.collect()
    view[:] = 3
    assert view.sum() == 3000


def test_garbage_in_a_cycle_is_collected(pool):
    class Node:
        pass

    node = Node()
    node.array, node.self = pool.empty(3, "int8"), node
    del node
    gc.collect()
    assert pool.statistics()["live_blocks"] == 0


@pytest.mark.parametrize("use", [
    lambda a: a.ticket(), lambda a: a.ptr, lambda a: a.__dlpack__(),
    lambda a: a.__dlpack_device__(), lambda a: a.view(1, "int8"), lambda a: a.readonly])
def test_a_closed_array_says_so(pool, use):
    array = pool.empty(3, "int8")
    array.close()
    array.close()
    with pytest.raises(vs.errors.FailedPrecondition, match="was closed"):
        use(array)
    assert "closed" in repr(array)


def test_views(pool):
    array = pool.empty(16, "uint8")
    np.from_dlpack(array)[:] = range(16)
    part = array.view((2, 2), "uint16", offset=4)
    array.close()
    assert np.from_dlpack(part).tolist() == [[0x0504, 0x0706], [0x0908, 0x0b0a]]
    assert part.strides == (4, 2)


def test_a_view_begins_where_its_array_does(pool, remote):
    """Also where that is not the beginning of its memory."""
    with pool.empty(64, "float32") as block:
        np.from_dlpack(block)[:] = range(64)
        with remote.open(vs.ticket(np.from_dlpack(block)[32:36])) as theirs:
            with theirs.view(4, "float32") as same, theirs.view(2, "float32", 8) as end:
                assert same.ptr == theirs.ptr and end.ptr == theirs.ptr + 8
                assert np.from_dlpack(same).tolist() == [32, 33, 34, 35]
                with end.view(1, "float32", offset=4) as last:  # A view of a view.
                    assert np.from_dlpack(last).tolist() == [35]
    with vs.Allocation(nbytes=1000, host_node=0) as memory:
        part = memory.array(4, "uint8", offset=64)
        assert part.view(4, "uint8").ptr == part.ptr == memory.array(1, "uint8").ptr + 64


@pytest.mark.parametrize("shape, dtype, offset, says", [
    (17, "uint8", 0, "17 bytes from 0 on, and the array has 16"),
    (4, "float32", 4, "16 bytes from 4 on, and the array has 16"),
    (0, "uint8", 17, "0 bytes from 17 on, and the array has 16"),
    (1, "uint8", 2 ** 64 - 1, "1 bytes from 18446744073709551615 on, and the array has 16"),
    (1, "uint8", -1, "offset is -1"), (1, "uint8", 1 << 70, "offset is 1180591620717411303424"),
    (1, "float64", 4, "4 bytes into the array are 68 into its memory, .* multiple .* 8")])
def test_views_outside_the_array(driver, shape, dtype, offset, says):
    """The memory has more on either side of it."""
    with vs.Allocation(nbytes=1000, host_node=0) as memory:
        array = memory.array(4, "float32", offset=64)
        with pytest.raises(ValueError, match=says) as raised:
            array.view(shape, dtype, offset)
        assert str(raised.value).startswith(("no such view: ", "offset is "))


def test_a_view_of_an_array_with_gaps_is_of_what_it_spans(driver):
    with vs.Allocation(nbytes=1000, host_node=0) as memory:
        array = memory._strided((2, 3), (8, 1), "uint8", 64)  # 3 bytes, 5 others, and 3.
        assert array.view(11, "uint8").ptr == array.ptr
        with pytest.raises(ValueError, match="12 bytes from 0 on, and the array has 11"):
            array.view(12, "uint8")
        none = memory._strided((0, 3), (8, 1), "uint8", 64)
        assert none.view(0, "uint8").shape == (0,)
        with pytest.raises(ValueError, match="1 bytes from 0 on, and the array has 0"):
            none.view(1, "uint8")


@pytest.mark.parametrize("shape, dtype, offset", [
    (17, "uint8", 0), (1, "uint8", 16), (4, "uint32", 4), (1, "uint16", 1), (3, "float64", 0),
    ((1 << 62, 4), "float64", 0), (-1, "uint8", 0), (1, "uint8", 2 ** 64 - 1)])
def test_views_outside_the_block(pool, shape, dtype, offset):
    with pool.empty(16, "uint8") as array:
        with pytest.raises(ValueError):
            array.view(shape, dtype, offset)


def test_a_stride_of_one_element_may_be_any(driver):
    with vs.Allocation(nbytes=16, host_node=0) as memory:
        array = memory._strided((1, 2), (1 << 61, 1), "uint64", 0)
        assert array.strides == (1 << 64, 8)


def test_allocations(driver):
    with vs.Allocation(nbytes=1000, host_node=0) as memory:
        assert memory.nbytes == 1000 and not memory.readonly
        whole = np.from_dlpack(memory.array(1000, "uint8"))
        whole[:] = 5
        part = memory.array((10, 10), "int32", offset=100)
        assert np.from_dlpack(part)[3, 4] == 0x05050505
        with pytest.raises(ValueError):
            memory.array(1001, "uint8")
    with pytest.raises(vs.errors.FailedPrecondition):
        memory.array(1, "uint8")
    assert whole.sum() == 5000


@pytest.mark.parametrize("nbytes", [0, 1 << 62])
def test_allocations_that_cannot_be(driver, nbytes):
    with pytest.raises(vs.errors.VmmshareError):
        vs.Allocation(nbytes=nbytes, host_node=0)


def test_the_block_around_an_address(pool):
    array, other = pool.empty(1000, "uint8"), pool.empty(1000, "uint8")
    for offset in (0, 1, 999):
        assert pool.find(array.ptr + offset) == (array.ptr, 1000)
    for wrong in (array.ptr + 1000, array.ptr - 1, 0, 2 ** 64 - 1):
        with pytest.raises(vs.errors.NotFound, match="no live block"):
            pool.find(wrong)
    where = other.ptr
    other.close()
    with pytest.raises(vs.errors.NotFound):
        pool.find(where)
    array.close()


def test_statistics_and_trim(pool):
    # What was freed on the default stream is asked about in the current context.
    cuda, context = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    array = pool.empty(1 << 20, "uint8")
    now = pool.statistics()
    assert now["live_blocks"] == 1 and now["requested"] == 1 << 20
    array.close()
    assert pool.trim() == now["reserved"]
    assert pool.statistics()["reserved"] == 0
    assert cuda.cuCtxSetCurrent(None) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0


def test_devices(driver):
    first, second = vs.devices()
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert first.uuid.startswith("GPU-") and first.uuid != second.uuid
    assert first.can_access(second)
    for device in (1, second, second.uuid):
        with vs.Pool(device, host_node=0) as pool:
            np.from_dlpack(pool.empty(1, "int8"))
        with vs.Pool(device) as pool, pool.empty(4, "float32") as array:
            assert array.__dlpack_device__() == (2, 1)
    with pytest.raises(vs.errors.NotFound):
        vs.Pool(7)
    for none in ("GPU-none", "GPU-\ud800"):
        with pytest.raises(vs.errors.NotFound, match="GPU-"):
            vs.Pool(none)


def test_listing_devices_makes_no_context():
    done = subprocess.run([sys.executable, "-c", """
import ctypes, vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
driver = ctypes.CDLL(vmmshare.testing.host_driver())

def contexts():
    active, flags, current = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
    count = 0
    for device in range(2):
        assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags),
                                                 ctypes.byref(active)) == 0
        count += active.value
    assert driver.cuCtxGetCurrent(ctypes.byref(current)) == 0
    return count + (current.value is not None)

made = [contexts() for device in vs.devices() if device.name and device.uuid]
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 1) == 0
print(made, contexts())
"""], env={**os.environ, "VMMSHARE_HOST_FAIL": "cuCtxCreate:1+:UNKNOWN"},
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 0] 1\n", done.stderr
