"""Tickets that were damaged, are of something else, or lie."""

import gc
import random
import struct
import types

import numpy as np
import pytest

import vmmshare as vs

HEAD = 72


def changed(ticket, at, form, *values):
    data = bytearray(ticket)
    struct.pack_into(form, data, at, *values)
    return bytes(data)


@pytest.fixture
def ticket(pool):
    with pool.empty((4, 8), "int32") as array:
        yield array.ticket()


def test_a_ticket_opens_the_array(remote, ticket):
    with remote.open(ticket) as array:
        assert (array.shape, array.dtype, array.strides) == ((4, 8), "int32", (32, 4))


def test_the_same_array_has_the_same_ticket(pool):
    with pool.empty(3, "int8") as array:
        assert array.ticket() == array.ticket()


@pytest.mark.parametrize("length", [0, 1, 55, 56, 71, 72, 80, 103])
def test_cut_tickets(remote, ticket, length):
    with pytest.raises(vs.errors.InvalidArgument):
        remote.open(ticket[:length])


@pytest.mark.parametrize("at, form, values", [
    (0, "<I", (0,)), (0, "<B", (0,)), (4, "<B", (0,)), (4, "<B", (99,)), (5, "<B", (33,)),
    (5, "<B", (3,)), (5, "<B", (1,)), (6, "<H", (1,)), (8, "<Q", (1,)), (8, "<Q", (4,)),
    (8, "<Q", (2 ** 64 - 4,)), (HEAD, "<q", (-1,)), (HEAD, "<q", (5,)),
    (HEAD, "<q", (2 ** 62,)), (HEAD + 8, "<q", (-8,)), (HEAD + 8, "<q", (9,)),
    (HEAD + 8, "<q", (2 ** 62,)), (HEAD + 16, "<q", (9,)), (HEAD + 24, "<q", (2,)),
    (HEAD + 24, "<q", (-1,)), (4, "<B", (9,)), (4, "<B", (14,))])
def test_tickets_that_leave_the_block_or_make_no_sense(pool, remote, ticket, at, form, values):
    with pytest.raises(vs.errors.InvalidArgument) as raised:
        remote.open(changed(ticket, at, form, *values))
    assert raised.value.code == "INVALID_ARGUMENT" and raised.value.remedy
    assert pool.leases() == []  # Nothing of it stayed imported.


@pytest.mark.parametrize("at, version", [(3, 2), (3, 0), (3, 255), (19, 2)])
def test_tickets_of_another_version(remote, ticket, at, version):
    # The array's own, and the block's within it.
    with pytest.raises(vs.errors.VmmshareError, match="version"):
        remote.open(changed(ticket, at, "<B", version))


def test_what_lies_within_is_taken(remote, ticket):
    # Broadcast, transposed, a part: all within the block.
    broadcast = changed(ticket, HEAD + 8, "<q", 0)
    assert remote.open(broadcast).strides == (0, 4)
    transposed = changed(ticket, HEAD, "<qqqq", 8, 1, 4, 8)
    assert np.from_dlpack(remote.open(transposed)).shape == (8, 4)
    empty = changed(ticket, HEAD, "<qq", 0, 8)
    assert remote.open(empty).shape == (0, 8)


def test_a_ticket_with_something_behind_it(remote, ticket):
    with pytest.raises(vs.errors.InvalidArgument, match="follow"):
        remote.open(ticket + b"\0")


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_never_crash(pool, remote, ticket, seed):
    chance = random.Random(seed)
    remote.open(ticket).close()  # Its memory has come; nothing is waited for below.
    for _ in range(100):
        data = bytearray(ticket)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            with remote.open(bytes(data), timeout=0) as array:
                if hasattr(np, array.dtype):  # It has no float8, say.
                    view = np.from_dlpack(array)
                    view.sum()
                    del view
        except (vs.errors.InvalidArgument, vs.errors.FailedPrecondition,
                vs.errors.Unimplemented):
            pass
    assert pool.leases() == []


@pytest.mark.parametrize("ticket", [None, "text", 5, [1, 2]])
def test_what_is_no_bytes(remote, ticket):
    with pytest.raises(TypeError):
        remote.open(ticket)


@pytest.mark.parametrize("kind", [bytearray, memoryview,
                                  lambda ticket: memoryview(ticket[::-1])[::-1]],
                         ids=["bytearray", "memoryview", "memoryview with gaps"])
def test_what_is_like_bytes(remote, ticket, kind):
    """As a socket's recv_into() and ZeroMQ have them."""
    assert remote.open(kind(ticket)).shape == remote.open(ticket).shape
    data = vs.share_all({})
    assert remote.open_all(kind(data)) == []
    with vs.FencePool() as fences, vs.serve(fences) as share, fences.new() as fence:
        with vs.connect_fences(str(share)) as theirs, theirs.open(kind(fence.ticket())) as opened:
            fence.signal(3)
            opened.wait(3)


def test_a_stale_ticket(pool, remote):
    array = pool.empty(3, "int8")
    ticket = array.ticket()
    array.close()
    with pytest.raises(vs.errors.FailedPrecondition):
        remote.open(ticket)


def test_a_ticket_of_another_pool(driver, remote):
    with vs.Pool(host_node=0) as other, other.empty(3, "int8") as array:
        with pytest.raises(vs.errors.InvalidArgument):
            remote.open(array.ticket())


def test_only_what_is_ones_own_has_a_ticket(pool, remote, ticket):
    with remote.open(ticket) as theirs:
        with pytest.raises(vs.errors.FailedPrecondition, match="own pool"):
            theirs.ticket()
    with vs.Allocation(nbytes=10, host_node=0) as memory:
        with pytest.raises(vs.errors.FailedPrecondition):
            memory.array(10, "int8").ticket()


def test_a_view_has_a_ticket_of_its_own(pool, remote):
    with pool.empty(16, "uint8") as array:
        np.from_dlpack(array)[:] = range(16)
        part = array.view((2, 3), "uint8", offset=5)
        assert np.from_dlpack(remote.open(part.ticket())).tolist() == [[5, 6, 7], [8, 9, 10]]
        part.close()


def test_many_at_once(pool, remote):
    arrays = {f"layer.{i}": pool.empty((i % 5, 3), "float32") for i in range(200)}
    for i, array in enumerate(arrays.values()):
        np.from_dlpack(array)[:] = i
    data = vs.share_all(arrays)
    opened = remote.open_all(data)
    assert [name for name, _ in opened] == list(arrays)
    assert all((np.from_dlpack(a) == i).all() for i, (_, a) in enumerate(opened))
    for length in (0, 3, 7, 8, 9, 12, 50, len(data) - 1):
        with pytest.raises(vs.errors.InvalidArgument):
            remote.open_all(data[:length])
    with pytest.raises(vs.errors.InvalidArgument, match="follow"):
        remote.open_all(data + b"x")
    assert remote.open_all(vs.share_all({})) == []
    assert len(vs.share_all(types.MappingProxyType(arrays))) == len(data)
    with pytest.raises(TypeError, match="the arrays: expected a dict, or another mapping, .* list"):
        vs.share_all([*arrays.items()])
    del opened, array
    for array in arrays.values():
        array.close()


@pytest.mark.parametrize("text", ["", "vmmshare:2:", "vmmshare-pool:2:AAAA", "x" * 5000,
                                  "vmmshare-pool:9:AAAA", "\0"])
def test_texts_that_are_none(driver, text):
    with pytest.raises(vs.errors.VmmshareError) as raised:
        vs.connect(text, timeout=1)
    assert raised.value.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED")


def test_what_is_served_no_more(pool):
    share = vs.serve(pool)
    text = str(share)
    again = vs.serve(pool)
    assert str(again) != text
    share.close()
    with pytest.raises(vs.errors.NotFound) as raised:
        vs.connect(text, timeout=5)
    assert isinstance(raised.value, LookupError)
    with pytest.raises(vs.errors.FailedPrecondition):
        str(share)


@pytest.mark.parametrize("what", [None, 5, "text", object()])
def test_what_cannot_be_served(driver, what):
    with pytest.raises(TypeError):
        vs.serve(what)


class Described:
    """What Numba's and RMM's arrays are to others: a dictionary."""

    def __init__(self, array, **changes):
        self.__cuda_array_interface__ = {**array.__array_interface__, **changes}


class Plain:
    """An array of a library from before DLPack 1.0."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Negative(Plain):
    """As a lazy negative of PyTorch's: DLPack tells of its memory, which has other values."""

    def is_neg(self):
        return True


def numbers_in(pool):
    array = np.from_dlpack(pool.empty((6, 8), "int32"))
    array[...] = np.arange(48).reshape(6, 8)
    return array


@pytest.mark.parametrize("made", [lambda array: array, Plain, Described])
@pytest.mark.parametrize("part", [
    np.s_[:], np.s_[2:5, ::2], np.s_[1], np.s_[3, 4, ...]])
def test_what_another_library_has_in_a_pool_has_a_ticket(pool, remote, made, part):
    theirs = numbers_in(pool)[part]
    opened = np.from_dlpack(remote.open(vs.ticket(made(theirs))))
    assert (opened.dtype, opened.shape) == (theirs.dtype, theirs.shape)
    assert opened.ctypes.data != theirs.ctypes.data
    np.testing.assert_array_equal(opened, theirs)


def test_of_a_length_of_one_no_stride_matters(pool, remote):
    one = numbers_in(pool)[3:4]
    opened = np.from_dlpack(remote.open(vs.ticket(Described(one, strides=(-32, 4)))))
    np.testing.assert_array_equal(opened, one)


def test_an_interface_that_says_that_there_is_no_mask(pool, remote):
    numbers = numbers_in(pool)
    opened = np.from_dlpack(remote.open(vs.ticket(Described(numbers, mask=None))))
    np.testing.assert_array_equal(opened, numbers)


def test_an_array_has_its_own_ticket(pool):
    with pool.empty((2, 3), "float16") as array:
        assert vs.ticket(array) == array.ticket()


def test_arrays_of_all_kinds_in_one_set(pool, remote):
    numbers = numbers_in(pool)
    ours = pool.empty(4, "uint8")
    data = vs.share_all({"ours": ours, "numpy": numbers[1:, 3], "described": Described(numbers),
                         "empty": np.empty((0, 3), "float64")})
    opened = dict(remote.open_all(data))
    assert opened["ours"].shape == (4,) and opened["empty"].shape == (0, 3)
    np.testing.assert_array_equal(np.from_dlpack(opened["numpy"]), numbers[1:, 3])
    np.testing.assert_array_equal(np.from_dlpack(opened["described"]), numbers)


class Clears:
    """An array that takes all out of a dict when it is asked, so that they have gone."""

    def __init__(self, arrays, numbers):
        self.arrays, self.numbers = arrays, numbers

    def __dlpack_device__(self):
        self.arrays.clear()
        gc.collect()
        return self.numbers.__dlpack_device__()

    def __dlpack__(self, **how):
        return self.numbers.__dlpack__(**how)


def test_a_dict_that_changes_while_it_is_shared(pool, remote):
    numbers, arrays = numbers_in(pool), {}
    arrays.update({str(number): Clears(arrays, numbers[number]) for number in range(3)})
    opened = dict(remote.open_all(vs.share_all(arrays)))
    assert list(opened) == ["0", "1", "2"] and arrays == {}
    for number in range(3):
        np.testing.assert_array_equal(np.from_dlpack(opened[str(number)]), numbers[number])


@pytest.mark.parametrize("wrong, error, words", [
    (lambda n: n[::-1], ValueError, "strides are below 0"),
    (Negative, ValueError, "resolve_neg"),
    (lambda n: np.ma.masked_equal(n, 3), ValueError, "masked.*fill it"),
    (lambda n: np.ma.masked_equal(n, 3)[::-1], ValueError, "masked.*fill it"),
    (lambda n: Described(n, mask=Described(n)), ValueError, "masked.*fill it"),
    (lambda n: np.arange(4), vs.errors.NotFound, "no block of a pool"),
    (lambda n: Described(n, data=(1 << 40, False)), vs.errors.NotFound, "no block of a pool"),
    (lambda n: Described(n, typestr=">i4"), TypeError, ">i4"),
    (lambda n: Described(n, typestr="<M8"), TypeError, "<M8"),
    (lambda n: Described(n, strides=(32, 3)), ValueError, "multiples"),
    (lambda n: Described(n, strides=(32,)), ValueError, "dimensions"),
    (lambda n: Described(n, shape=(1 << 62, 8)), ValueError, "overflow"),
    (lambda n: Described(n, shape=(1,) * 33, strides=None), ValueError, "32"),
    (lambda n: np.empty((0, 2), "int8"), ValueError, "no elements"),
    (lambda n: n[2:2], ValueError, "no elements"),
    (lambda n: n.tolist(), TypeError, "not a list"),
    (lambda n: None, TypeError, "not a NoneType"),
    (lambda n: memoryview(b"abc"), TypeError, "not a memoryview")])
def test_what_has_no_ticket(pool, wrong, error, words):
    with pytest.raises(error, match=words):
        vs.ticket(wrong(numbers_in(pool)))


def test_an_array_that_leaves_its_block_is_refused_where_it_is_opened(pool, remote):
    numbers = numbers_in(pool)
    ticket = vs.ticket(Described(numbers, shape=(1 << 20,), strides=None))
    with pytest.raises(vs.errors.InvalidArgument, match="bytes"):
        remote.open(ticket)
