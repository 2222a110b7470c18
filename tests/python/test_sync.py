"""Weights written step by step, and those that follow: never a mixture of two updates."""

import contextlib
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

import numpy as np
import pytest

import fake_torch
import vmmshare as vs
import vmmshare.weights
from forks import in_a_child
from threads import on_a_thread

LIKE = {"embed": ((64, 32), "float32"), "norm": (16, "float16"), "bias": ((3, 1, 5), "int64")}


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.fixture
def streams(cuda):
    """On one stream a publisher and its follower would wait for each other."""
    made = [ctypes.c_void_p() for _ in range(3)]
    for stream in made:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    yield [stream.value for stream in made]
    for stream in made:
        assert cuda.cuStreamDestroy_v2(stream) == 0


@pytest.fixture
def publisher(cuda):
    with vs.weights.publisher(LIKE, host_node=0, fingerprint="sha256:1") as made:
        yield made


def join(cuda, publisher, name="", **more):
    """A follower in this process."""
    ours, theirs = pair()
    opened = on_a_thread(cuda, lambda: vs.weights.follow(theirs, **more))
    publisher.add(ours, name, timeout=60)
    return opened()


def write(cuda, publisher, stream, value):
    draft = publisher.acquire(stream, timeout=60)
    draft.wait(timeout=60)  # The CPU writes when it is free.
    for array in draft.values():
        np.from_dlpack(array)[...] = value
    return publisher.publish(stream, timeout=60)


def values(weights):
    return {value for array in weights.values() for value in np.from_dlpack(array).ravel().tolist()}


def see(follower, stream):
    """(number, the values in all of its tensors)."""
    weights = follower.latest(stream, timeout=60)
    follower.wait(timeout=60)
    return follower.number, values(weights)


def test_a_copy_without_torch_says_what_it_needs(publisher, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="needs torch: pip install torch. Arrays of NumPy"):
        publisher.copy({})


# --- drafts -------------------------------------------------------------------------------


def test_a_draft_is_filled_in_place_and_put(keeper):
    embed = np.arange(12.0).reshape(3, 4)
    like = {"embed": embed, "tied": embed, "rows": embed[1:], "columns": embed.copy()[:, ::2],
            "said": ((2, 2), "bfloat16"), "count": (5, np.int32), "empty": ((0, 3), "float32"),
            "fortran": np.asfortranarray(embed)}
    with vs.weights.draft(like, host_node=0, fingerprint="sha256:7") as draft:
        assert list(draft) == draft.own + ["tied", "rows"] and set(draft) == set(like)
        np.from_dlpack(draft["embed"])[...] = 2 * embed
        np.from_dlpack(draft["columns"])[...] = -1.0
        np.from_dlpack(draft["count"])[...] = range(5)
        np.from_dlpack(draft["fortran"])[...] = 3 * embed
        with pytest.raises(vs.errors.NotFound):
            vs.weights.open("drafted", address=keeper.address)  # Nobody has it yet.
        assert draft.put("drafted", address=keeper.address) == 1
        with pytest.raises(vs.errors.FailedPrecondition):
            draft.put("drafted", address=keeper.address)
    with vs.weights.open("drafted", fingerprint="sha256:7", address=keeper.address) as weights:
        table = {row["name"]: row for row in weights.tensors()}
        assert {name: row["alias_of"] for name, row in table.items() if row["alias_of"]} == {
            "tied": "embed", "rows": "embed"}
        assert table["fortran"]["strides"] == (1, 3) and table["columns"]["strides"] == (2, 1)  # Dense.
        seen = {name: np.from_dlpack(weights[name]) for name in ("embed", "tied", "rows", "columns",
                                                                 "count", "fortran")}
        assert np.array_equal(seen["embed"], 2 * embed) and np.array_equal(seen["tied"], 2 * embed)
        assert np.array_equal(seen["rows"], 2 * embed[1:]) and (seen["columns"] == -1).all()
        assert seen["count"].tolist() == [0, 1, 2, 3, 4]
        assert np.array_equal(seen["fortran"], 3 * embed)
        assert weights.verify() >= 5


def test_a_draft_of_a_module_without_memory(keeper, monkeypatch):
    for name, module in fake_torch.modules(fake_torch.HostTensor).items():
        monkeypatch.setitem(sys.modules, name, module)
    storage, other = (types.SimpleNamespace(_cdata=number) for number in (77, 78))
    like = {"embed": fake_torch.MetaTensor((4, 6), "float32", storage),
            "head": fake_torch.MetaTensor((4, 6), "float32", storage),
            "rows": fake_torch.MetaTensor((2, 6), "float32", storage, offset=12),
            "norm": fake_torch.MetaTensor((6,), "float16", other)}
    with vs.weights.draft(like, host_node=0) as draft:
        tensors = draft.torch()
        tensors["embed"].copy_(fake_torch.HostTensor(np.arange(24, dtype="float32").reshape(4, 6)))
        tensors["norm"].copy_(fake_torch.HostTensor(np.ones(6, "float16")))
        assert draft.own == ["embed", "norm"]
        draft.put("meta", address=keeper.address)
    with vs.weights.open("meta", address=keeper.address) as weights:
        assert np.from_dlpack(weights["rows"]).tolist() == [list(range(12, 18)), list(range(18, 24))]
        assert np.from_dlpack(weights["head"])[3, 5] == 23


def test_what_has_no_memory_is_not_put(keeper, monkeypatch):
    for name, module in fake_torch.modules(fake_torch.HostTensor).items():
        monkeypatch.setitem(sys.modules, name, module)
    storage = types.SimpleNamespace(_cdata=77)
    for view in (fake_torch.MetaTensor((4,), "float32", storage),
                 fake_torch.MetaTensor((2,), "float32", storage, offset=2)):
        tensors = {"there": fake_torch.HostTensor(np.ones(3, "float32")), "view": view}
        with pytest.raises(ValueError, match="tensor 'view' is on the device meta,"):
            vs.weights.put("meta", tensors, address=keeper.address, host_node=0)
    assert vs.weights.list(address=keeper.address) == []


def test_what_no_draft_is_made_of(driver):
    for like in ({}, [("a", (1, "int8"))], None):
        with pytest.raises(TypeError):
            vs.weights.draft(like)
    with pytest.raises(TypeError, match="^tensor 'a': dtype no type is not known.* as uint8"):
        vs.weights.draft({"a": (1, "no type")}, host_node=0)
    with pytest.raises(ValueError, match="^tensor 'b': a length or stride is above 63 bits"):
        vs.weights.draft({"a": (1, "int8"), "b": (2**70, "int8")}, host_node=0)
    with pytest.raises((ValueError, vs.errors.VmmshareError)):
        vs.weights.draft({"a": ((2**40, 2**40), "int8")}, host_node=0)
    with pytest.raises(vs.errors.ResourceExhausted):
        vs.weights.draft({"a": (2**43, "int8")})


def test_a_closed_draft_is_not_an_empty_one(keeper):
    draft = vs.weights.draft(LIKE, host_node=0)
    draft.put("closed", address=keeper.address)
    weights = vs.weights.open("closed", address=keeper.address)
    assert len(weights) == len(draft) == 3
    for one in (draft, weights):
        one.close()
        one.close()
        for use in (len, list, dict, lambda one: one["norm"], lambda one: "norm" in one):
            with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
                use(one)
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        draft.put("again", address=keeper.address)
    assert "closed" in repr(weights)


# --- updates ------------------------------------------------------------------------------


def test_followers_see_whole_updates_and_never_one_that_is_older(cuda, streams, publisher):
    """Two followers look as fast as they can, at another pace each."""
    ours, *theirs = streams
    followers = [join(cuda, publisher, f"engine {i}") for i in range(2)]
    seen = [[], []]

    def look(place):
        follower, stream = followers[place], theirs[place]
        for i in range(100_000):
            seen[place].append(see(follower, stream))
            if follower.finished:
                break
            for _ in range(place):  # The second one uses what it has for longer.
                values(follower.sets[follower.slot])
        follower.release(stream)
        follower.close()

    joins = [on_a_thread(cuda, lambda place=place: look(place)) for place in range(2)]
    for number in range(1, 151):
        update = write(cuda, publisher, ours, number)
        assert update == (number, {})
    publisher.finish(timeout=60)
    for done in joins:
        done()
    for of_one in seen:
        assert all(got == {number} for number, got in of_one)
        numbers = [number for number, _ in of_one]
        assert numbers == sorted(numbers) and numbers[-1] == 150


def test_whoever_comes_later_has_the_newest_at_once(cuda, streams, publisher):
    ours, theirs, _ = streams
    write(cuda, publisher, ours, 5)
    write(cuda, publisher, ours, 6)
    late = join(cuda, publisher)
    assert see(late, theirs) == (2, {6})
    assert late.slot == 0 and late.sets[0].fingerprint == "sha256:1"
    assert not np.from_dlpack(late.latest()["embed"]).flags.writeable
    write(cuda, publisher, ours, 7)
    assert see(late, theirs) == (3, {7}) and late.slot == 1
    assert see(late, theirs) == (3, {7})  # There is no newer one.
    late.close()


def test_whoever_comes_while_it_is_written_has_it_when_it_is_complete(cuda, streams, publisher):
    """The update is handed over, and the stream that writes it has not come so far."""
    ours, theirs, other = streams
    fences = vs.FencePool()
    gate = fences.new()
    draft = publisher.acquire(ours)
    for array in draft.values():
        np.from_dlpack(array)[...] = 9
    gate.wait(ours, 1)
    publisher.publish(ours)
    near, far = pair()
    opened = on_a_thread(cuda, lambda: vs.weights.follow(far))
    publisher.add(near, "late", stream=other, timeout=60)
    late = opened()
    late.latest(theirs, timeout=60)
    with pytest.raises(vs.errors.DeadlineExceeded):
        late.wait(timeout=0.2)
    gate.signal(1)
    assert see(late, theirs) == (1, {9})
    late.close()


def test_whoever_comes_later_is_not_held_up_by_the_stream_of_an_update_before(cuda, streams, gate,
                                                                              publisher):
    """The first update's stream comes to its end behind that of the second one, but for an order
    between them."""
    late, soon, theirs = streams
    publisher.acquire(late, timeout=60)
    gate.wait(late, 1)
    publisher.publish(late, timeout=60)
    publisher.acquire(soon, timeout=60)
    publisher.publish(soon, timeout=60)
    with vs.FencePool() as fences, fences.new() as done:
        done.signal(soon, 1)
        with pytest.raises(vs.errors.DeadlineExceeded):
            done.wait(1, timeout=0.2)
        gate.signal(1)
        done.wait(1, timeout=60)
        assert cuda.cuStreamSynchronize(ctypes.c_void_p(late)) == 0
    assert publisher._written.value == publisher.number == 2
    follower = join(cuda, publisher)
    follower.latest(theirs, timeout=60)
    follower.wait(timeout=60)
    assert follower.number == 2
    follower.close()


def is_idle(cuda, stream):
    result = cuda.cuStreamQuery(ctypes.c_void_p(stream))
    assert result in (0, 600), result  # Done, and not ready.
    return result == 0


def test_a_follower_that_goes_to_another_stream_sees_the_update_there(cuda, streams, gate, publisher):
    """The update is handed over, and the stream that writes it has not come so far."""
    ours, theirs, other = streams
    follower = join(cuda, publisher)
    draft = publisher.acquire(ours)
    for array in draft.values():
        np.from_dlpack(array)[...] = 9
    gate.wait(ours, 1)
    publisher.publish(ours)
    follower.latest(theirs)
    follower.latest(other)  # There is no newer one.
    idle = is_idle(cuda, theirs), is_idle(cuda, other)
    gate.signal(1)
    assert idle == (False, False)
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(other)) == 0
    assert see(follower, other) == (1, {9})
    follower.close()


def test_a_follower_may_go_on_when_its_stream_is_gone(cuda, streams, publisher):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    write(cuda, publisher, ours, 4)
    gone = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(gone), 1) == 0
    assert see(follower, gone.value) == (1, {4})
    assert cuda.cuStreamSynchronize(gone) == 0
    assert cuda.cuStreamDestroy_v2(gone) == 0
    assert see(follower, theirs) == (1, {4})
    follower.close()


def test_a_slot_that_is_acquired_again_on_another_stream_is_waited_for_there(cuda, streams, publisher):
    ours, other, theirs = streams
    follower = join(cuda, publisher)
    write(cuda, publisher, ours, 1)
    assert see(follower, theirs) == (1, {1})
    write(cuda, publisher, ours, 2)
    assert publisher.acquire(ours) is publisher.acquire(other) is publisher._slots[follower.slot]
    assert not is_idle(cuda, ours) and not is_idle(cuda, other)
    assert see(follower, theirs) == (2, {2})
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(other)) == 0
    follower.close()


def test_names_that_are_not_given_are_all_different(cuda, streams, publisher):
    ours, theirs, other = streams
    first, second = join(cuda, publisher), join(cuda, publisher)
    write(cuda, publisher, ours, 1)
    first.close()
    lost = {}
    for value in range(2, 8):
        lost |= write(cuda, publisher, ours, value).lost
        see(second, theirs)
    assert list(lost) == ["follower 1"]
    third = join(cuda, publisher)
    assert publisher.followers == ["follower 2", "follower 3"]
    assert see(third, other) == (7, {7})
    second.release(theirs)
    second.close()  # Without a word before the end.
    with pytest.raises(vs.errors.DeadlineExceeded, match="follower 3"):
        publisher.finish(timeout=0.3)
    while not third.finished:
        third.latest(other)
    third.release(other)
    publisher.finish(timeout=60)
    third.close()


@pytest.mark.parametrize("slots", [2, 3])
def test_latest_is_what_was_handed_over_by_one_that_is_as_far_ahead_as_it_may_be(cuda, streams, slots):
    ours, theirs, _ = streams
    with vs.weights.publisher(LIKE, host_node=0, slots=slots) as publisher:
        follower = join(cuda, publisher)
        for number in range(1, 2 * slots + 1):
            publisher.acquire(ours, timeout=60)
            assert publisher.publish(ours, timeout=60) == (number, {})
        with pytest.raises(vs.errors.DeadlineExceeded):
            publisher.acquire(ours, timeout=0.05)  # So that is how far.
        follower.latest(theirs, timeout=60)
        assert follower.number == 2 * slots
        follower.close()


def test_latest_returns_though_the_publisher_has_always_sent_one_more():
    class Endless:
        sent = 0

        def _take(self, stream, timeout, into):
            self.sent += 1
            assert self.sent < 1000, "it goes on for ever"
            into.append((0, 0, self.sent, self.sent))

        def _buffer_of(self, item, stream):
            return types.SimpleNamespace(tag=item[2], number=item[3])

        def release(self, buffer, stream):
            pass

        def close(self):
            pass

    marks = types.SimpleNamespace(behind=lambda stream: contextlib.nullcontext(), put=lambda stream: None,
                                  order=lambda before, after: None, passed=lambda timeout: True,
                                  close=lambda: None)
    sets = [types.SimpleNamespace(close=lambda: None) for _ in range(2)]
    follower = vs.weights.Follower(Endless(), sets, marks)
    for calls in range(1, 4):
        assert follower.latest() is sets[follower.slot]
        assert follower.number <= 4 * calls
    follower.close()


def test_names_that_are_not_given_are_none_that_were(cuda, publisher):
    followers = [join(cuda, publisher, name) for name in ("follower 2", "", "")]
    assert publisher.followers == ["follower 2", "follower 3", "follower 4"]
    for follower in followers:
        follower.close()


def test_one_that_does_not_look_is_named_and_nothing_is_lost(cuda, streams, publisher):
    ours, theirs, _ = streams
    slow = join(cuda, publisher, "slow")
    quick = join(cuda, publisher, "quick")
    write(cuda, publisher, ours, 1)
    assert see(slow, theirs) == (1, {1})
    for number in range(2, 10):  # Until streams would have to wait too long for it.
        quick.latest(streams[2])
        assert quick.number == number - 1
        try:
            publisher.acquire(ours, timeout=0.2)
        except vs.errors.DeadlineExceeded as why:
            assert "'slow'" in str(why)
            break
        publisher.publish(ours)
    else:
        pytest.fail("nobody was waited for")
    assert number > 3  # Streams waited first.
    assert slow.latest(theirs) is not None  # Looks again: what was published meanwhile.
    reached = write(cuda, publisher, ours, 50)
    assert reached == (number, {})
    assert see(quick, streams[2]) == (number, {50})
    assert see(slow, theirs) == (number, {50})
    slow.close()
    quick.close()


def peer_follows(peer, publisher, name, folder):
    path = f"{folder}/{name}"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(path)
        listener.listen()
        peer("import ctypes, socket, vmmshare.testing, vmmshare.weights")
        peer("cuda = ctypes.CDLL(vmmshare.testing.host_driver()); context = ctypes.c_void_p()")
        peer("cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)")
        peer("cuda.cuCtxSetCurrent(context)")
        peer("s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)")
        peer(f"s.connect({path!r})")
        ours, _ = listener.accept()
    adding = threading.Thread(target=lambda: publisher.add(ours, name, timeout=60))
    adding.start()
    peer("f = vs.weights.follow(s, timeout=60)")
    adding.join()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield made


def test_one_that_is_killed_is_named_and_the_others_go_on(cuda, streams, publisher, peer, folder):
    ours, theirs, _ = streams
    peer_follows(peer, publisher, "engine", folder)
    stays = join(cuda, publisher, "stays")
    write(cuda, publisher, ours, 1)
    assert peer("f.latest()['norm'].shape, f.number") == ((16,), 1)
    assert see(stays, theirs) == (1, {1})
    peer.kill()
    lost = {}
    for value in range(2, 8):
        number, gone = write(cuda, publisher, ours, value)
        lost.update(gone)
        assert see(stays, theirs) == (number, {value}) and number == value
    assert list(lost) == ["engine"] and isinstance(lost["engine"], vs.errors.Unavailable)
    assert publisher.followers == ["stays"]
    stays.close()


def test_a_publisher_keeps_nothing_of_followers_that_have_ended(cuda, streams, publisher):
    """Engines come and go as long as a trainer lives."""
    ours, theirs, _ = streams

    def held():
        until = time.monotonic() + 30
        while "vmmshare-ring" in [one.name for one in threading.enumerate()]:
            assert time.monotonic() < until
            time.sleep(0.01)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def come_and_go():
        follower = join(cuda, publisher)
        number, _ = write(cuda, publisher, ours, 1)
        assert see(follower, theirs)[0] == number
        follower.close()
        for _ in range(3):
            if write(cuda, publisher, ours, 1).lost:
                return
        pytest.fail("nobody was missed")

    come_and_go()  # The first makes what all have.
    before = held()
    for _ in range(3):
        come_and_go()
    assert held() == before and publisher.followers == []


def test_after_the_publisher_was_killed_what_is_mapped_stays(cuda, streams, peer, folder):
    peer("import ctypes, socket, vmmshare.testing, vmmshare.weights")
    peer("cuda = ctypes.CDLL(vmmshare.testing.host_driver()); context = ctypes.c_void_p()")
    peer("cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)")
    peer("cuda.cuCtxSetCurrent(context)")
    peer(f"p = vs.weights.publisher({LIKE!r}, host_node=0)")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(f"{folder}/l")
        listener.listen()
        peer("s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)")
        peer(f"s.connect('{folder}/l')")
        ours, _ = listener.accept()
    opened = on_a_thread(cuda, lambda: vs.weights.follow(ours, timeout=60))
    peer("p.add(s, timeout=60)")
    follower = opened()
    peer("d = p.acquire()")
    peer("[np.from_dlpack(a).fill(4) for a in d.values()]")
    assert peer("p.publish().number") == 1
    assert see(follower, streams[1]) == (1, {4})
    peer.kill()
    with pytest.raises(vs.errors.Unavailable):
        for _ in range(1000):
            follower.latest(streams[1])
            with contextlib.suppress(vs.errors.DeadlineExceeded):
                follower._ring.acquire(streams[1], timeout=0.05)  # Until its end is seen.
    assert values(follower.sets[follower.slot]) == {4}
    follower.close()


def test_the_end(cuda, streams, publisher):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    idle = join(cuda, publisher)
    with pytest.raises(vs.errors.DeadlineExceeded):
        idle.latest(streams[2], timeout=0)
    for call in (idle.wait, idle.torch):
        with pytest.raises(vs.errors.FailedPrecondition, match="latest"):
            call()
    write(cuda, publisher, ours, 3)
    done = on_a_thread(cuda, lambda: publisher.finish(timeout=60))
    while not follower.finished:
        assert see(follower, theirs) == (1, {3})
    follower.release(theirs)
    assert follower.number == 0
    while not idle.finished:
        assert see(idle, streams[2]) == (1, {3})
    idle.release(streams[2])
    done()
    with pytest.raises(vs.errors.OutOfRange, match="its last update was given back"):
        idle.latest(streams[2])


def test_an_end_before_the_first_update(cuda, streams, publisher):
    follower = join(cuda, publisher)
    done = on_a_thread(cuda, lambda: publisher.finish(timeout=60))
    with pytest.raises(vs.errors.OutOfRange, match="before its first update"):
        follower.latest(streams[1], timeout=60)
    follower.close()
    done()


def test_all_are_told_of_the_end_before_one_is_waited_for(cuda, streams, publisher):
    """As of a process that lets go of the first when the second has finished."""
    ours, *theirs = streams
    followers = [join(cuda, publisher) for _ in range(2)]
    write(cuda, publisher, ours, 3)
    for follower, stream in zip(followers, theirs):
        assert see(follower, stream) == (1, {3})

    def let_go():
        end = time.monotonic() + 20
        for follower, stream in reversed([*zip(followers, theirs)]):
            while not follower.finished and time.monotonic() < end:
                follower.latest(stream)
                time.sleep(0.01)
            follower.release(stream)
        return time.monotonic() < end

    done = on_a_thread(cuda, let_go)
    try:
        publisher.finish(timeout=10)
    finally:
        assert done()
    for follower in followers:
        follower.close()


@pytest.mark.parametrize("how", ["acquired", "not by all"])
def test_an_update_that_was_acquired_is_left_out_at_the_end(cuda, streams, publisher, how):
    """As by a trainer that is told to end while it writes, or while it waits for an engine."""
    ours, theirs, others = streams
    quick, slow = join(cuda, publisher, "quick"), join(cuda, publisher, "slow")
    number = write(cuda, publisher, ours, 1).number
    assert see(quick, theirs) == (1, {1}) and see(slow, others) == (1, {1})
    if how == "acquired":
        slot = publisher.acquire(ours, timeout=60)
        slot.wait(timeout=60)
        np.from_dlpack(slot["bias"])[...] = 99
    else:
        with pytest.raises(vs.errors.DeadlineExceeded, match="'slow'"):
            while True:
                publisher.acquire(ours, timeout=0.2)
                number = publisher.publish(ours).number
                assert quick.latest(theirs) is not None
        assert slow.latest(others) is not None  # What is published waits for it.
    done = on_a_thread(cuda, lambda: publisher.finish(timeout=20))
    until = time.monotonic() + 20
    for follower, stream in ((quick, theirs), (slow, others)):
        while not follower.finished:
            assert see(follower, stream)[0] == number and time.monotonic() < until
        assert how != "acquired" or values(follower.sets[follower.slot]) == {1}
        follower.release(stream)
    assert done() == {}
    with pytest.raises(vs.errors.FailedPrecondition, match="not acquired"):
        publisher.publish(ours)
    quick.close()
    slow.close()


def test_of_a_first_update_that_was_acquired_the_end_says_so(cuda, streams, publisher):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    publisher.acquire(ours)
    with pytest.raises(vs.errors.FailedPrecondition, match="update 1 .* not published"):
        publisher.finish(timeout=60)
    publisher.publish(ours)
    done = on_a_thread(cuda, lambda: publisher.finish(timeout=60))
    while not follower.finished:
        follower.latest(theirs, timeout=60)
    follower.release(theirs)
    assert done() == {}
    follower.close()


def test_what_a_publisher_refuses(cuda, streams, publisher):
    ours, *_ = streams
    with pytest.raises(vs.errors.FailedPrecondition, match="acquire"):
        publisher.publish(ours)
    one = join(cuda, publisher, "one")
    with pytest.raises(vs.errors.FailedPrecondition, match="'one'"):
        publisher.add(pair()[0], "one")
    publisher.acquire(ours)
    with pytest.raises(vs.errors.FailedPrecondition, match="acquired"):
        publisher.add(pair()[0], "two")
    publisher.publish(ours)
    near, _far = pair()
    with pytest.raises(vs.errors.DeadlineExceeded):
        publisher.add(near, "nobody", timeout=0.1)
    assert near.fileno() == -1  # The other end is told.
    near, far = pair()
    far.close()
    with pytest.raises(vs.errors.Unavailable):
        publisher.add(near, "gone", timeout=10)
    assert publisher.followers == ["one"]
    with pytest.raises(TypeError):
        publisher.add("a text")
    for slots in (1, 9):
        with pytest.raises(vs.errors.InvalidArgument, match="slots"):
            vs.weights.publisher(LIKE, slots=slots, host_node=0)
    one.close()


@pytest.mark.parametrize("said", [
    b"", b"{", b"[]", b"null", b'{"version": 0, "slots": ["a", "b"]}', b'{"version": 1}',
    b'{"version": "2", "slots": ["a", "b"]}',
    b'{"version": 1, "slots": ["a"]}', b'{"version": 1, "slots": "ab"}',
    b'{"version": 1, "slots": [1, 2]}', b'{"version": 1, "slots": ["a", "b"]}', b"[" * 16000,
    b"\xff\xfe", json.dumps({"version": 1, "slots": ["a"] * 9}).encode(),
    json.dumps({"version": 1, "slots": ["\ud800"] * 2}).encode()])
def test_what_a_follower_refuses(cuda, said):
    ours, theirs = pair()
    if said:
        ours.send(said)
    else:
        ours.close()
    with pytest.raises((vs.errors.InvalidArgument, vs.errors.Unavailable)):
        vs.weights.follow(theirs, timeout=10)
    assert theirs.fileno() == -1  # The other end is told.


def test_a_publisher_of_a_newer_release_is_refused_as_such(cuda):
    ours, theirs = pair()
    ours.send(b'{"version": 2, "slots": ["a", "b"]}')
    with pytest.raises(vs.errors.Unimplemented, match="version 2; this vmmshare has 1"):
        vs.weights.follow(theirs, timeout=10)
    assert theirs.fileno() == -1  # The other end is told.


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_follower_may_wait_for_ever(cuda, timeout):
    ours, theirs = pair()
    ours.close()
    with pytest.raises(vs.errors.Unavailable):
        vs.weights.follow(theirs, timeout=timeout)


def test_another_model_and_a_publisher_that_says_nothing(cuda, publisher):
    ours, theirs = pair()
    with pytest.raises(vs.errors.DeadlineExceeded):
        vs.weights.follow(theirs, timeout=0.05)
    ours, theirs = pair()
    refused = on_a_thread(cuda, lambda: pytest.raises(
        vs.errors.FailedPrecondition, vs.weights.follow, theirs, fingerprint="sha256:2"))
    with pytest.raises(vs.errors.VmmshareError):
        publisher.add(ours, timeout=60)
    refused()
    assert publisher.followers == []


def test_a_copy_of_pytorchs_tensors(cuda, streams, monkeypatch):
    modules = fake_torch.modules(fake_torch.HostTensor)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

    def copy(to, given, non_blocking):
        assert not non_blocking  # Nothing on a stream would write there.
        for one, other in zip(to, given):
            one.copy_(other)

    def current_stream(device):
        if device != 0:
            raise ValueError(f"Expected a cuda device, but got: {device}")  # As PyTorch.
        return types.SimpleNamespace(cuda_stream=streams[0])

    torch = modules["torch"]
    torch.cuda.current_stream = current_stream
    torch.no_grad, torch._foreach_copy_ = contextlib.nullcontext, copy
    embed = fake_torch.HostTensor(np.zeros((3, 4), "float32"))
    model = {"embed": embed, "tied": embed,
             "norm": fake_torch.HostTensor(np.zeros(7, "float32"))}
    with vs.weights.publisher(model, host_node=0) as publisher:
        follower = join(cuda, publisher)
        for value in range(1, 6):
            for tensor in model.values():
                tensor.array[...] = value
            assert publisher.copy(model).number == value
            assert see(follower, streams[1]) == (value, {value})
            assert follower.torch() is follower.torch()
            assert (follower.torch()["tied"].array == value).all()
        with pytest.raises(KeyError):
            publisher.copy({"embed": embed})
        with pytest.raises(ValueError, match="'norm'"):
            publisher.copy({**model, "norm": embed})
        assert follower.latest(streams[1], timeout=60) is not None
        number = publisher.number
        while publisher.number < number + 2:  # The slot after these is the one that is read.
            try:
                publisher.copy(model, timeout=0.2)
            except vs.errors.DeadlineExceeded as why:
                assert "has not let go of the slot within 0.2 s" in str(why)
                break
        assert publisher.number == number + 1
        follower.release(streams[1])
        publisher.copy(model, timeout=60)
        for stream in streams[:2]:
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
        follower.close()


def test_a_copy_from_memory_of_the_host_has_read_it_when_it_returns(cuda, streams, gate, monkeypatch):
    modules = fake_torch.modules(fake_torch.HostTensor)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    torch, said = modules["torch"], []
    torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=streams[0])
    torch.no_grad = contextlib.nullcontext
    torch._foreach_copy_ = lambda to, given, non_blocking: said.append(non_blocking)
    on_host = fake_torch.HostTensor(np.zeros((3, 4), "float32"))
    on_device = fake_torch.HostTensor(np.zeros((3, 4), "float64"))  # Of another type: PyTorch copies it.
    on_device.device = types.SimpleNamespace(type="cuda", index=0)
    with vs.weights.publisher({"w": ((3, 4), "float32")}) as publisher:
        publisher._tensors = {place: {"w": on_host} for place in range(2)}  # NumPy has none of a device.
        publisher.copy({"w": on_host})
        publisher.copy({"w": on_device})
        assert said == [False, True]
        gate.wait(streams[0], 1)
        with pytest.raises(vs.errors.DeadlineExceeded, match="has not let go of the slot"):
            publisher.copy({"w": on_host}, timeout=0.2)
        assert len(said) == 2
        gate.signal(1)
        assert publisher.copy({"w": on_host}, timeout=60).number == 3


def test_a_host_that_writes_waits_until_the_slot_is_free(cuda, streams, gate, publisher):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    write(cuda, publisher, ours, 1)
    assert see(follower, theirs) == (1, {1})
    first = follower.sets[1]
    write(cuda, publisher, ours, 2)
    gate.wait(theirs, 1)  # As a kernel that reads the first one.
    follower.latest(theirs, timeout=60)  # Gives that back, after the kernel.
    draft = publisher.acquire(ours, timeout=60)  # In the order of the stream.
    with pytest.raises(vs.errors.DeadlineExceeded, match="the slot was not free within 0.2 s"):
        draft.wait(timeout=0.2)
    assert values(first) == {1}
    gate.signal(1)
    draft.wait(timeout=60)
    for array in draft.values():
        np.from_dlpack(array)[...] = 3
    publisher.publish(ours, timeout=60)
    with pytest.raises(vs.errors.FailedPrecondition, match="draft that is not acquired"):
        draft.wait()
    assert see(follower, theirs) == (3, {3})
    follower.close()
    with vs.weights.draft(LIKE, host_node=0) as other:
        with pytest.raises(vs.errors.FailedPrecondition, match="draft that is not acquired"):
            other.wait()


# --- closing under the GPU's work -----------------------------------------------------------


@pytest.fixture
def gate(cuda, streams):
    """`gate.wait(stream, 1)` holds a stream up until `gate.signal(1)`."""
    with vs.FencePool() as fences, fences.new() as fence:
        yield fence
        with contextlib.suppress(vs.errors.FailedPrecondition):
            fence.signal(1)
        for stream in streams:
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


@pytest.fixture
def copied(driver):
    with vs.Allocation(nbytes=4096) as memory:
        yield memory


def work(cuda, gate, stream, array, to):
    """Puts work on the stream that reads the array when the gate opens."""
    gate.wait(stream, 1)
    assert cuda.cuMemcpyDtoDAsync_v2(
        ctypes.c_uint64(to.ptr), ctypes.c_uint64(array.ptr), ctypes.c_size_t(8),
        ctypes.c_void_p(stream)) == 0


def passes(cuda, gate, stream):
    """Whether the stream's work is done well when the gate opens. Memory that was unmapped under it
    would end the context."""
    gc.collect()
    gate.signal(1)
    return cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


@pytest.mark.parametrize("how", ["published", "acquired", "acquired, with a follower", "dropped",
                                 "dropped when acquired"])
def test_a_publisher_that_is_closed_under_work_keeps_its_memory(cuda, streams, gate, copied, how):
    publisher = vs.weights.publisher(LIKE)
    follower = join(cuda, publisher) if "follower" in how else None
    work(cuda, gate, streams[0], publisher.acquire(streams[0])["embed"], copied)
    if "acquired" not in how:
        publisher.publish(streams[0])
    if "dropped" not in how:
        publisher.close(timeout=0.1)
        publisher.close()  # Nothing.
    else:
        publisher._marks.give_up()  # As it is after 10 s.
    del publisher
    assert passes(cuda, gate, streams[0])
    if follower is not None:
        follower.close()


def test_a_publisher_waits_for_its_work_and_keeps_nothing(cuda, streams, gate, copied):
    kept = len(vs._marks._kept)
    publisher = vs.weights.publisher(LIKE)
    work(cuda, gate, streams[0], publisher.acquire(streams[0])["embed"], copied)
    publisher.publish(streams[0])
    closing = on_a_thread(cuda, publisher.close)
    gate.signal(1)
    closing()
    assert len(vs._marks._kept) == kept


def test_streams_that_come_and_go_leave_no_marks(cuda):
    marks = vs._marks.Marks(0)
    for _ in range(300):
        stream = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        marks.put(stream.value)
        assert cuda.cuStreamSynchronize(stream) == 0
        assert cuda.cuStreamDestroy_v2(stream) == 0
    assert len(marks._last) <= 65 and marks.passed(10)
    marks.close()


@pytest.mark.parametrize("after", [1, 2])  # Itself, and another stream.
def test_a_stream_that_has_the_value_of_another_one_does_not_pass_its_marks(streams, gate, after):
    marks = vs._marks.Marks(0)
    gate.wait(streams[0], 1)
    first = marks.mark(streams[0])
    # As if that were destroyed, and the next had its value: this driver gives none again.
    marks._last[streams[1]] = marks._last.pop(streams[0])
    marks.mark(streams[1]).wait(60, "the second")
    with pytest.raises(vs.errors.DeadlineExceeded, match="the first was not free within 0.1 s"):
        first.wait(0.1, "the first")
    assert not marks.passed(0)
    marks.order(streams[1], streams[after])  # Behind the marks of both.
    third = marks.mark(streams[after])
    with pytest.raises(vs.errors.DeadlineExceeded):
        third.wait(0.1, "the third")
    gate.signal(1)
    first.wait(60, "the first")
    third.wait(60, "the third")
    assert marks.passed(60)
    marks.close()


def test_marks_on_a_stream_that_stands_still_are_kept_until_they_are_passed(streams, gate):
    marks = vs._marks.Marks(0)
    gate.wait(streams[0], 1)
    for _ in range(100):
        marks.put(streams[0])
    assert not marks.passed(0) and len(marks._before) == 99
    gate.signal(1)
    assert marks.passed(60)
    marks.put(streams[0])
    assert not marks._before and marks.passed(60)
    marks.close()


def test_who_looks_again_and_again_does_not_fill_a_stream_that_stands_still(streams, gate):
    marks = vs._marks.Marks(0)
    gate.wait(streams[0], 1)
    marks.put(streams[0])
    waits = []

    class Counted:
        def __init__(self, fence):
            self.fence, self.value = fence, 0

        def wait(self, *what):
            waits.append(what)

    fence, number = marks._last[streams[0]]
    marks._last[streams[0]] = Counted(fence), number
    for _ in range(2000):
        marks.order(streams[0], streams[0])
    assert 0 < len(waits) <= 100
    marks._last[streams[0]] = fence, number
    gate.signal(1)
    assert marks.passed(60)
    marks.order(streams[0], streams[0])
    assert not marks._again
    marks.close()


@pytest.mark.parametrize("how", ["in use", "in use on another stream", "dropped",
                                 "after the publisher"])
def test_a_follower_that_is_closed_under_work_keeps_its_memory(cuda, streams, gate, copied, how):
    publisher = vs.weights.publisher(LIKE)
    follower = join(cuda, publisher)
    publisher.acquire(streams[0])
    publisher.publish(streams[0])
    weights = follower.latest(streams[1])
    follower.wait()
    if how == "after the publisher":
        publisher._followers["follower 1"].ring.abort()
        publisher.close()
    used = streams[1]
    if how == "in use on another stream":
        used = streams[2]
        weights = follower.latest(used)
    work(cuda, gate, used, weights["embed"], copied)
    if how == "after the publisher":
        with pytest.raises(vs.errors.Aborted):
            follower.release(streams[1])
    if how != "dropped":
        follower.close(timeout=0.1)
    del follower, weights
    assert passes(cuda, gate, used)
    publisher.close()


def test_a_follower_waits_for_its_work_and_keeps_nothing(cuda, streams, gate, copied):
    kept = len(vs._marks._kept)
    with vs.weights.publisher(LIKE) as publisher:
        follower = join(cuda, publisher)
        publisher.acquire(streams[0])
        publisher.publish(streams[0])
        work(cuda, gate, streams[1], follower.latest(streams[1])["embed"], copied)
        closing = on_a_thread(cuda, follower.close)
        gate.signal(1)
        closing()
    assert len(vs._marks._kept) == kept


@contextlib.contextmanager
def capture(cuda, stream):
    """Captures it meanwhile, and launches the graph then: it has nothing that anybody waits for."""
    graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 2) == 0
    try:
        yield
    finally:
        assert cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
    assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)) == 0
    assert cuda.cuGraphLaunch(ready, ctypes.c_void_p(stream)) == 0
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    assert cuda.cuGraphExecDestroy(ready) == 0 and cuda.cuGraphDestroy(graph) == 0


def is_refused(stream):
    return pytest.raises(vs.errors.FailedPrecondition,
                         match=f"stream {stream:#x} is being captured into a graph")


def test_nothing_of_a_publisher_or_a_follower_is_put_into_a_graph(cuda, streams):
    ours, theirs, captured = streams
    kept = len(vs._marks._kept)
    publisher = vs.weights.publisher(LIKE, host_node=0)
    with capture(cuda, captured), is_refused(captured):
        publisher.acquire(captured)  # Of whom nobody follows.
    follower = join(cuda, publisher)
    write(cuda, publisher, ours, 1)
    assert see(follower, theirs) == (1, {1})
    with capture(cuda, captured):
        near, far = pair()
        with is_refused(captured):
            publisher.add(near, "late", stream=captured)
        near.close()
        far.close()
        with is_refused(captured):
            publisher.acquire(captured)
        draft = publisher.acquire(ours)
        with is_refused(captured):
            publisher.publish(captured)
        for call in follower.latest, follower.release:
            with is_refused(captured):
                call(captured)
        assert follower.number == 1
    draft.wait(timeout=60)
    for array in draft.values():
        np.from_dlpack(array)[...] = 2
    assert publisher.publish(ours).number == 2
    late = join(cuda, publisher)
    for one in late, follower:
        assert see(one, theirs) == (2, {2})
        one.release(theirs)
    assert captured not in publisher._marks._last and captured not in follower._marks._last
    for one in late, follower, publisher:
        one.close(timeout=60)
    assert len(vs._marks._kept) == kept


def test_no_copy_is_captured(cuda, streams, monkeypatch):
    for name, module in fake_torch.modules(fake_torch.HostTensor).items():
        monkeypatch.setitem(sys.modules, name, module)
    captured = streams[0]
    monkeypatch.setattr(sys.modules["torch"].cuda, "current_stream",
                        lambda _: types.SimpleNamespace(cuda_stream=captured), raising=False)
    with vs.weights.publisher({"w": (4, "float32")}, host_node=0) as publisher:
        given = {"w": fake_torch.HostTensor(np.ones(4, "float32"))}
        with capture(cuda, captured), is_refused(captured):
            publisher.copy(given)
        assert publisher.number == 0 and not publisher._marks._last


def test_no_mark_is_put_into_a_graph(cuda, streams, publisher):
    """A slot, or memory, that such a stream uses since before the capture is never known to be
    free."""
    captured = streams[0]
    marks = vs._marks.Marks(0)
    draft = publisher.acquire(captured)
    with capture(cuda, captured):
        with is_refused(captured):
            draft.wait()
        assert marks.passed(0)
        marks.put(captured)
        assert not marks.passed(0) and not marks._last
    draft.wait(timeout=60)
    marks.close()


# --- Ctrl-C -----------------------------------------------------------------------------------


class Pressed:
    """In the place of an object: a call of it is interrupted, once, when it has done its work, or
    before that."""

    def __init__(self, real, name, done=True):
        self._real, self._name, self._done = real, name, done

    def __getattr__(self, name):
        call = getattr(self._real, name)
        if name != self._name:
            return call

        def interrupted(*given, **more):
            self._name = None
            if self._done:
                call(*given, **more)
            raise KeyboardInterrupt
        return interrupted


def press(monkeypatch, owner, attribute, call, done=True):
    """Interrupts a call of what is there, once."""
    monkeypatch.setattr(owner, attribute, Pressed(getattr(owner, attribute), call, done))


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("where", ["signal", "first", "second", "mark"])
def test_an_interrupted_publish_is_done_by_the_next_one(cuda, streams, publisher, monkeypatch, where,
                                                        done):
    ours, theirs, other = streams
    followers = [join(cuda, publisher) for _ in range(2)]
    write(cuda, publisher, ours, 1)
    assert [see(one, on) for one, on in zip(followers, (theirs, other))] == [(1, {1})] * 2
    draft = publisher.acquire(ours, timeout=60)
    draft.wait(timeout=60)
    for array in draft.values():
        np.from_dlpack(array)[...] = 2
    rings = [one.ring for one in publisher._followers.values()]
    with monkeypatch.context() as patch:
        if where == "mark":
            patch.setattr(publisher._marks, "put", Pressed(publisher._marks, "put", done).put)
        else:
            press(patch, *{"signal": (publisher, "_written", "signal"),
                           "first": (rings[0], "_ring", "hand_over"),
                           "second": (rings[1], "_ring", "hand_over")}[where], done)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(ours, timeout=60)
    followers[0].latest(theirs, timeout=60)  # It may have it, and use it.
    with pytest.raises(vs.errors.FailedPrecondition, match="handed over the update 2 in part"):
        publisher.acquire(ours, timeout=60)
    near, far = pair()
    with pytest.raises(vs.errors.FailedPrecondition, match="while an update is acquired"):
        publisher.add(near, "third")
    near.close()
    far.close()
    assert publisher.publish(ours, timeout=60) == (2, {})
    for value in range(2, 7):
        for one, on in zip(followers, (theirs, other)):
            assert see(one, on) == (value, {value})
        assert write(cuda, publisher, ours, value + 1) == (value + 1, {})
    third = join(cuda, publisher)
    assert see(third, other) == (7, {7})
    for one in *followers, third:
        one.close()


def test_a_copy_after_an_interrupted_one_overwrites_nothing_that_is_read(cuda, streams, monkeypatch):
    modules = fake_torch.modules(fake_torch.HostTensor)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    ours, theirs, other = streams
    torch = modules["torch"]
    torch.cuda.current_stream = lambda _: types.SimpleNamespace(cuda_stream=ours)
    torch.no_grad = contextlib.nullcontext
    torch._foreach_copy_ = lambda to, given, non_blocking: [
        one.copy_(from_) for one, from_ in zip(to, given)]

    def of(value):
        return {"w": fake_torch.HostTensor(np.full(8, value, "float32"))}

    with vs.weights.publisher(of(0), host_node=0) as publisher:
        followers = [join(cuda, publisher) for _ in range(2)]
        publisher.copy(of(1), timeout=60)
        assert [see(one, on) for one, on in zip(followers, (theirs, other))] == [(1, {1})] * 2
        followers[1].release(other)
        with monkeypatch.context() as patch:
            press(patch, publisher._followers["follower 2"].ring, "_ring", "hand_over", done=False)
            with pytest.raises(KeyboardInterrupt):
                publisher.copy(of(2), timeout=60)
        assert see(followers[0], theirs) == (2, {2})
        assert publisher.copy(of(3), timeout=60) == (3, {})
        assert values(followers[0].sets[0]) == {2}
        for one, on in zip(followers, (theirs, other)):
            assert see(one, on) == (3, {3})
            one.close()


@pytest.mark.parametrize("again", [0, 2])  # On the same stream, and on another one.
def test_a_slot_that_came_as_ctrl_c_was_pressed_comes_again(cuda, streams, publisher, monkeypatch,
                                                            again):
    ours, theirs = streams[0], streams[1]
    followers = [join(cuda, publisher) for _ in range(2)]
    for value in 1, 2, 3:
        with monkeypatch.context() as patch:
            press(patch, publisher._followers["follower 1"].ring, "_ring", "acquire")
            with pytest.raises(KeyboardInterrupt):
                publisher.acquire(ours, timeout=60)
        assert write(cuda, publisher, streams[again], value) == (value, {})
        for one in followers:
            assert see(one, theirs) == (value, {value})
    for one in followers:
        one.close()


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("call", ["acquire", "hand_over"])
def test_an_update_that_came_as_ctrl_c_was_pressed_comes_again(cuda, streams, publisher, monkeypatch,
                                                               again, call):
    ours, theirs = streams[0], streams[1]
    followers = [join(cuda, publisher) for _ in range(2)]
    write(cuda, publisher, ours, 1)
    for one in followers:
        assert see(one, theirs) == (1, {1})
    for value in range(2, 7):
        assert write(cuda, publisher, ours, value) == (value, {})
        with monkeypatch.context() as patch:
            press(patch, followers[0]._ring, "_ring", call)
            with pytest.raises(KeyboardInterrupt):
                followers[0].latest(theirs, timeout=60)
        for one in followers:
            assert see(one, streams[again]) == (value, {value})
    for one in followers:
        one.close()


def test_an_update_that_came_as_ctrl_c_was_pressed_is_complete_on_another_stream(
        cuda, streams, gate, publisher, monkeypatch):
    ours, theirs, other = streams
    follower = join(cuda, publisher)
    publisher.acquire(ours, timeout=60)
    gate.wait(ours, 1)
    publisher.publish(ours, timeout=60)
    with monkeypatch.context() as patch:
        press(patch, follower._ring, "_ring", "acquire")
        with pytest.raises(KeyboardInterrupt):
            follower.latest(theirs, timeout=60)
    follower.latest(other, timeout=60)
    assert follower.number == 1 and not is_idle(cuda, other)
    gate.signal(1)
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(other)) == 0
    follower.close()


def test_an_interrupted_release_is_done_by_the_next_one(cuda, streams, publisher, monkeypatch):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    for value in range(1, 6):
        assert write(cuda, publisher, ours, value) == (value, {})
        assert see(follower, theirs) == (value, {value})
        with monkeypatch.context() as patch:
            press(patch, follower._ring, "_ring", "hand_over")
            with pytest.raises(KeyboardInterrupt):
                follower.release(theirs)
        follower.release(theirs)
        assert follower.number == 0
    follower.close()


@pytest.mark.parametrize("where", ["before", "done", "mark"])
def test_an_update_whose_release_was_interrupted_is_in_use_no_more(cuda, streams, publisher,
                                                                   monkeypatch, where):
    """The publisher may write there: latest() waits for the next one."""
    ours, theirs, other = streams
    follower = join(cuda, publisher)
    for value in range(1, 6):
        assert write(cuda, publisher, ours, value) == (value, {})
        assert see(follower, theirs) == (value, {value})
        with monkeypatch.context() as patch:
            if where == "mark":
                patch.setattr(follower._marks, "put", Pressed(follower._marks, "put").put)
            else:
                press(patch, follower._ring, "_ring", "hand_over", where == "done")
            with pytest.raises(KeyboardInterrupt):
                follower.release(theirs)
        with pytest.raises(vs.errors.DeadlineExceeded):
            follower.latest(other, timeout=0.05)
        assert follower.number == 0
    publisher.finish(timeout=60)
    with pytest.raises(vs.errors.OutOfRange, match="was given back"):
        follower.latest(theirs, timeout=60)
    follower.close()


@pytest.mark.parametrize("done", [True, False])
def test_a_mark_that_ctrl_c_interrupts_holds_up_no_other(streams, done):
    """Nobody knows whether it was put, so nothing is unmapped; those who ask for another have it."""
    marks = vs._marks.Marks(0)
    marks.mark(streams[0]).wait(60, "the first")
    fence, number = marks._last[streams[0]]
    marks._last[streams[0]] = Pressed(fence, "signal", done), number
    with pytest.raises(KeyboardInterrupt):
        marks.mark(streams[0])
    for _ in range(3):
        marks.mark(streams[0]).wait(60, "another one")
    assert not marks.passed(0)
    marks.close()  # Its stream has come to its end.


def test_a_child_waits_for_no_slot_and_closes_nothing(cuda, streams, publisher):
    """Whatever a thread of the parent's was about at the fork."""
    follower = join(cuda, publisher)
    write(cuda, publisher, streams[0], 1)
    assert see(follower, streams[1]) == (1, {1})
    slot = publisher.acquire(streams[0])

    def work():
        pytest.fail("a child asked after its parent's work")

    def leave(one):
        for step in "put", "passed", "close":
            setattr(vs._marks.Marks, step, lambda *_: work())
        with pytest.raises(ValueError, match="of the child"), one:
            raise ValueError("of the child")
        one.__del__()
        assert len(vs._marks._kept) == kept

    def wait():
        with pytest.raises(vs.errors.FailedPrecondition, match="forked child"):
            slot.wait()

    kept = len(vs._marks._kept)
    with publisher._marks._turn, follower._marks._turn:  # As a thread that puts a mark has it.
        assert in_a_child(wait) == 0
        for one in publisher, follower:
            assert in_a_child(lambda: leave(one)) == 0
    slot.wait(timeout=60)  # The parent goes on.
    publisher.publish(streams[0])
    follower.latest(streams[1], timeout=60)
    follower.wait(timeout=60)
    assert follower.number == 2
    follower.close()


# --- what was closed --------------------------------------------------------------------------


def free_memory(cuda):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def test_what_is_closed_gives_its_memory_back_though_it_is_referred_to(cuda, streams):
    like = {"w": (64 << 20, "uint8")}
    # Of the driver's own, what it needs for the first.
    vs.weights.publisher(like).close()
    before = free_memory(cuda)
    draft = vs.weights.draft(like)
    assert len(draft) == 1 and free_memory(cuda) <= before - (64 << 20)
    draft.close()
    assert free_memory(cuda) == before
    publisher = vs.weights.publisher(like)
    follower = join(cuda, publisher)
    publisher.acquire(streams[0])
    publisher.publish(streams[0])
    follower.latest(streams[1])
    follower.wait()
    follower.release(streams[1])
    assert free_memory(cuda) <= before - (128 << 20)
    sets = follower.sets
    follower.close()
    publisher.close()
    assert before - free_memory(cuda) < 64 << 20  # Fences stay while somebody has them.
    for closed in draft, *sets:
        with pytest.raises(vs.errors.FailedPrecondition):
            closed["w"]
        with pytest.raises(vs.errors.FailedPrecondition):
            list(closed)


def test_a_publisher_that_was_closed_says_so(cuda, streams):
    closed = vs.weights.publisher(LIKE, host_node=0)
    closed.close()
    for _ in range(2):
        with pytest.raises(vs.errors.FailedPrecondition, match="publisher was closed"):
            closed.acquire(streams[0])
        near, far = pair()
        with pytest.raises(vs.errors.FailedPrecondition, match="publisher was closed"):
            closed.add(near, "late")
        near.close()
        far.close()


def test_a_release_that_failed_gave_nothing_back(cuda, streams, publisher):
    ours, theirs, _ = streams
    follower = join(cuda, publisher)
    write(cuda, publisher, ours, 1)
    assert see(follower, theirs) == (1, {1})
    with pytest.raises((ValueError, vs.errors.VmmshareError)):
        follower.release(5)  # No stream.
    assert follower.number == 1
    follower.release(theirs)
    assert follower.number == 0
    follower.close()


FORKS = """
import ctypes, os, socket, sys, threading
import vmmshare as vs, vmmshare.testing, vmmshare.weights
vmmshare.testing.use_host_driver()
cuda, context = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
publisher = vs.weights.publisher({"w": (8, "uint8")})
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
followers = []
def follow():
    cuda.cuCtxSetCurrent(context)
    followers.append(vs.weights.follow(theirs))
thread = threading.Thread(target=follow)
thread.start()
publisher.add(ours, timeout=60)
thread.join()
publisher.acquire()
publisher.publish()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
publisher.acquire()
publisher.publish()
print("went on", flush=True)
os._exit(0)
"""


def test_a_forked_child_that_exits_says_nothing_of_its_parents_publisher():
    # From 3.12 on Python warns of a fork beside threads, which is what this is about.
    done = subprocess.run([sys.executable, "-B", "-W", "ignore::DeprecationWarning", "-c", FORKS],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")
