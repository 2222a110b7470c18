"""Fences in device memory: of ranks of a job, and of two processes."""

import ctypes
import types

import pytest

import vmmshare as vs
import vmmshare.job
from test_job import Store, fence as meet, read, run


@pytest.fixture
def stream(cuda):
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    yield made.value
    assert cuda.cuStreamDestroy_v2(made) == 0


def settle(cuda, stream):
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


def over(memory, rank, count=8):
    """The fences that lie at the beginning of a rank's memory."""
    return vs.FenceArray(memory.array(rank, count * vs.FENCE_BYTES, "uint8"))


def test_ranks_take_turns_without_a_host_between_them(cuda, stream):
    """One rank's stream fills the other's memory, whose stream waits for it."""
    store = Store()
    exchanges = [vmmshare.job.store(store, rank, 2) for rank in range(2)]
    parts = run(cuda, lambda rank: vs.SymmetricMemory(0, 1 << 20, exchanges[rank]), 2)
    for memory in parts:
        over(memory, memory.rank).clear()
    meet(exchanges)
    filled, taken = over(parts[0], 1)[0], over(parts[0], 0)[0]
    is_filled, is_taken = over(parts[1], 1)[0], over(parts[1], 0)[0]
    there, mine = parts[0].ptr(1) + 65536, parts[1].ptr(1) + 65536
    for number in range(1, 20):
        taken.wait(stream, number - 1)
        assert cuda.cuMemsetD8Async(ctypes.c_uint64(there), ctypes.c_uint8(number),
                                    ctypes.c_size_t(1), ctypes.c_void_p(stream)) == 0
        filled.signal(stream, number)
        is_filled.wait(number)
        assert read(cuda, mine) == number
        is_taken.signal(number)
    assert filled.value == is_filled.value == 19
    settle(cuda, stream)


def test_an_array_keeps_the_fence_that_it_waits_for(cuda):
    """The fence, and so the memory that it lies in."""
    with vs.Pool(0) as memory, vs.Pool(0) as pool, vs.serve(pool) as share:
        with vs.connect(str(share)) as remote, pool.empty(3, "int8") as own:
            fences = vs.FenceArray(memory.empty(vs.FENCE_BYTES, "uint8"))
            fences.clear()
            one = fences[0]
            theirs = remote.open(own.ticket(), fence=one, value=1)
            one.signal(1)
            del fences, one
            assert memory.statistics()["live_blocks"] == 1
            theirs.__dlpack__(stream=1, max_version=(1, 0))
            theirs.close()
            del theirs
            assert memory.statistics()["live_blocks"] == 0


def test_each_index_is_one_fence(cuda, stream):
    with vs.Pool(0) as pool:
        fences = vs.FenceArray(pool.empty((4, vs.FENCE_BYTES), "uint8"))
        fences.clear()
        assert len(fences) == 4
        fences[1].signal(7)
        fences[-1].signal(stream, 9)
        settle(cuda, stream)
        assert [fence.value for fence in fences] == [0, 7, 0, 9]
        for index in (4, -5):
            with pytest.raises(IndexError, match="no fence"):
                fences[index]
        with pytest.raises(vs.errors.FailedPrecondition, match="no tickets.*index"):
            fences[0].ticket()
        with pytest.raises(vs.errors.FailedPrecondition):
            fences[1].signal(7)
        with pytest.raises(vs.errors.DeadlineExceeded):
            fences[0].wait(1, timeout=0.05)
        fences.clear()
        assert fences[2].value == 0


def test_a_fence_keeps_its_memory(cuda):
    with vs.Pool(0) as pool:
        fences = vs.FenceArray(pool.empty(vs.FENCE_BYTES, "uint8"))
        fences.clear()
        one = fences[0]
        fences.close()
        with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
            len(fences)
        del fences
        one.signal(3)
        assert one.value == 3
        assert pool.statistics()["live_blocks"] == 1
        one.close()
        del one
        assert pool.statistics()["live_blocks"] == 0


@pytest.mark.parametrize("count", [0, 1, vs.FENCE_BYTES - 1, vs.FENCE_BYTES + 1])
def test_bytes_that_make_no_fences_are_refused(cuda, count):
    with vs.Pool(0) as pool:
        with pytest.raises((vs.errors.InvalidArgument, ValueError), match="256|0 bytes|none"):
            vs.FenceArray(pool.empty(count, "uint8"))


def test_memory_that_is_not_the_devices_to_write_is_refused(cuda):
    with vs.Pool(host_node=0) as pool, vs.Pool(0) as other:
        with pytest.raises(ValueError, match="FencePool"):
            vs.FenceArray(pool.empty(vs.FENCE_BYTES, "uint8"))
        whole = other.empty((2, 2 * vs.FENCE_BYTES), "uint8")
        share = vs.serve(other)
        half = types.SimpleNamespace(__cuda_array_interface__={
            "shape": (2, vs.FENCE_BYTES), "strides": (2 * vs.FENCE_BYTES, 1), "typestr": "|u1",
            "data": (whole.ptr, False), "version": 3})
        gaps = vs.connect(str(share), writable=True).open(vs.ticket(half))
        with pytest.raises(ValueError, match="gaps"):
            vs.FenceArray(gaps)
        readonly = vs.connect(str(share)).open(whole.ticket())
        with pytest.raises(ValueError, match="writable=True"):
            vs.FenceArray(readonly)


def test_another_process_signals(cuda, stream, peer):
    with vs.Pool(0) as pool:
        share = vs.serve(pool)
        memory = pool.empty(2 * vs.FENCE_BYTES, "uint8")
        fences = vs.FenceArray(memory)
        fences.clear()
        peer(f"theirs = vs.connect({str(share)!r}, writable=True)")
        peer(f"fences = vs.FenceArray(theirs.open({memory.ticket()!r}))")
        peer("fences[0].signal(5)")
        fences[0].wait(5)
        fences[1].signal(stream, 6)
        peer("fences[1].wait(6)")
        assert peer("fences[1].value") == 6
        # Whoever was killed signals no more, and the others let go of it.
        peer.kill()
        with pytest.raises(vs.errors.DeadlineExceeded):
            fences[0].wait(6, timeout=0.05)
        fences[0].wait(stream, 6)
        fences[0].abandon()
        settle(cuda, stream)
        with pytest.raises(vs.errors.Aborted):
            fences[0].value


@pytest.mark.parametrize("kernels", [False, True])
def test_streams_meet(cuda, kernels):
    """Three streams, each with a fence of each other one; what came before is there for all."""
    with vs.Pool(0) as pool:
        count = 3
        fences = vs.FenceArray(pool.empty((count * count, vs.FENCE_BYTES), "uint8"),
                               kernels=kernels)
        fences.clear()
        words = pool.empty(count, "uint8")
        streams = []
        for _ in range(count):
            made = ctypes.c_void_p()
            assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
            streams.append(made.value)
        for number in range(1, 10):
            for me, stream in enumerate(streams):
                others = [other for other in range(count) if other != me]
                assert cuda.cuMemsetD8Async(ctypes.c_uint64(words.ptr + me),
                                            ctypes.c_uint8(number), ctypes.c_size_t(1),
                                            ctypes.c_void_p(stream)) == 0
                vs.meet([fences[other * count + me] for other in others],
                        [fences[me * count + other] for other in others], stream, number)
            settle(cuda, streams[0])
            assert [read(cuda, words.ptr + i) for i in range(count)] == [number] * count
        assert fences[1].value == 9  # What a signal is refused by is what was seen.
        with pytest.raises(vs.errors.FailedPrecondition, match="cannot go from"):
            vs.meet([fences[1]], [fences[2]], streams[0], 9)
        with pytest.raises(TypeError):
            vs.meet([fences[1]], [words], streams[0], 11)
        for stream in streams:
            if kernels:
                fences[0].add(stream)
                fences[0].add(stream, 2)
            else:
                with pytest.raises(vs.errors.FailedPrecondition, match="kernels=True"):
                    fences[0].add(stream)
        if kernels:
            fences[0].wait(9)
        for stream in streams:
            settle(cuda, stream)
            assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def test_fences_of_a_generator_meet(cuda, stream):
    """Nobody but the call has them, and the fences made next would lie in their place."""
    with vs.Pool(0) as pool:
        fences = vs.FenceArray(pool.empty((8, vs.FENCE_BYTES), "uint8"))
        fences.clear()
        for number in range(1, 10):
            vs.meet((fences[i] for i in range(8)), (fences[i] for i in range(8)), stream, number)
            settle(cuda, stream)
            assert [fence.value for fence in fences] == [number] * 8
        with pytest.raises(TypeError):
            vs.meet((one for one in [fences[0], 7]), (), stream, 10)
        assert fences[0].value == 9
