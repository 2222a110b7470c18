"""Rings of buffers, and symmetric memory."""

import contextlib
import ctypes
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

import vmmshare as vs
import vmmshare.job
import vmmshare.testing
from forks import in_a_child
from threads import on_a_thread


@contextlib.contextmanager
def both_ends(cuda):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = vs.RingHome(host_node=0)
    join = on_a_thread(cuda, lambda: vs.open_ring(theirs))
    writer = home.open(ours, buffers=3, nbytes=4096)
    reader = join()
    home.close()
    yield writer, reader
    if not writer.closed:
        writer.abort()  # Whatever a test has left.
    reader.close()
    writer.close()


@pytest.fixture
def ends(cuda):
    """Both ends of a ring of three buffers of 4096 bytes on the host."""
    with both_ends(cuda) as made:
        yield made


@pytest.fixture
def streams(cuda):
    """One for each end: on one stream both would wait for each other."""
    made = [ctypes.c_void_p() for _ in range(2)]
    for stream in made:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    yield [stream.value for stream in made]
    for stream in made:
        assert cuda.cuStreamDestroy_v2(stream) == 0


def test_items_come_in_order_and_no_more_after_the_last(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams

    def consume():
        got = []
        for buffer in reader.items(theirs):
            view = np.from_dlpack(buffer.array(buffer.nbytes // 4, "int32"))
            got.append((buffer.number, buffer.tag, view.tolist()))
            assert not view.flags.writeable
        reader.finish()
        return got

    join = on_a_thread(cuda, consume)
    for i in range(1, 21):
        buffer = writer.acquire(ours, timeout=60)
        buffer.wait(timeout=60)  # For the host, which writes when it is free.
        np.from_dlpack(buffer.array(i, "int32"))[:] = i
        buffer.nbytes, buffer.tag = 4 * i, 100 + i
        writer.publish(buffer, ours)
    writer.finish(timeout=60)
    assert join() == [(i, 100 + i, [i] * i) for i in range(1, 21)]


def test_an_iterator_that_outlives_its_ring_gives_nothing_back(cuda, streams, ends, monkeypatch):
    """What close() gave back already; nothing can be raised where it is dropped."""
    writer, reader = ends
    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    writer.publish(writer.acquire(streams[0]), streams[0])
    kept, dropped = reader.items(streams[1], timeout=60), reader.items(streams[1], timeout=60)
    next(kept)
    writer.publish(writer.acquire(streams[0]), streams[0])
    next(dropped)
    reader.close()
    del dropped
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        next(kept)
    assert not unraised


def test_a_thread_without_a_context_has_the_default_stream_of_the_rings_device(driver):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened = []
    thread = threading.Thread(target=lambda: opened.append(vs.open_ring(theirs)))
    thread.start()
    with vs.RingHome(host_node=0).open(ours, buffers=2, nbytes=8) as writer:
        thread.join(60)
        with opened[0] as reader:
            for number in range(1, 6):  # The order in which both may be on one stream.
                buffer = writer.acquire()
                buffer.wait()
                np.from_dlpack(buffer.array(1, "int64"))[0] = number
                writer.publish(buffer)
                buffer = reader.acquire()
                buffer.wait()
                with buffer.array(1, "int64") as array:
                    assert int(np.from_dlpack(array)[0]) == number
                reader.release(buffer)
            writer.finish()
            reader.finish()


def publish_two_behind(gate, writer, stream):
    for number in 1, 2:
        buffer = writer.acquire(stream)
        np.from_dlpack(buffer.array(1, "int32"))[:] = number
        if number == 1:
            gate.wait(stream, 1)  # As a kernel that writes it.
        writer.publish(buffer, stream)


def test_an_item_whose_contents_are_late_is_the_next_one_again(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    with vs.FencePool() as fences, fences.new() as gate:
        publish_two_behind(gate, writer, ours)
        for _ in range(2):
            with pytest.raises(vs.errors.DeadlineExceeded):
                next(reader.items(theirs, timeout=0.2))
        gate.signal(1)
        items = reader.items(theirs, timeout=10 ** 400)  # As None.
        for number in 1, 2:
            buffer = next(items)
            assert (buffer.number, int(np.from_dlpack(buffer.array(1, "int32"))[0])) == (number,) * 2
        items.close()
        for stream in streams:
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


@pytest.mark.parametrize("again", ["items", "acquire"])
def test_an_item_that_was_waited_for_as_ctrl_c_came_is_the_next_one_again(streams, ends, again):
    writer, reader = ends
    ours, theirs = streams
    with vs.FencePool() as fences, fences.new() as gate:
        publish_two_behind(gate, writer, ours)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            next(reader.items(theirs, timeout=60))
        timer.join()
        gate.signal(1)
        for number in 1, 2:
            if again == "items":
                items = reader.items(theirs, timeout=60)
                buffer = next(items)
            else:
                buffer = reader.acquire(theirs, timeout=60)
                buffer.wait(timeout=60)
            assert (buffer.number, int(np.from_dlpack(buffer.array(1, "int32"))[0])) == (number,) * 2
            items.close() if again == "items" else reader.release(buffer, theirs)


def test_the_timeout_of_an_item_is_that_of_its_contents_too(cuda, streams, ends, monkeypatch):
    writer, reader = ends
    ours, theirs = streams

    def late(*what, **how):
        time.sleep(0.5)
        return acquire(*what, **how)

    acquire = reader.acquire
    monkeypatch.setattr(reader, "acquire", late)
    waited = []
    monkeypatch.setattr(vs.RingBuffer, "wait", lambda self, timeout: waited.append(timeout))
    writer.publish(writer.acquire(ours), ours)
    next(reader.items(theirs, timeout=20))
    assert 0 < waited[0] <= 19.5


def test_each_threads_own_stream_is_refused(streams, ends):
    writer, _ = ends
    with pytest.raises(ValueError, match="per-thread"):
        writer.acquire(2)
    buffer = writer.acquire(streams[0])
    with pytest.raises(ValueError, match="per-thread"):
        writer.publish(buffer, 2)
    writer.publish(buffer, streams[0])


def connection_to(peer):
    """Our end of a connection; the peer has the other as `s`, and a context."""
    folder = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
    path = f"{folder}/s"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    peer("import ctypes, socket, vmmshare.testing")
    peer("cuda = ctypes.CDLL(vmmshare.testing.host_driver()); context = ctypes.c_void_p()")
    peer("cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)")
    peer("cuda.cuCtxSetCurrent(context)")
    peer("s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)")
    peer(f"s.connect({path!r})")
    ours, _ = listener.accept()
    listener.close()
    shutil.rmtree(folder)
    return ours


def test_between_processes(cuda, peer):
    connection = connection_to(peer)
    home = vs.RingHome(host_node=0)
    opened = on_a_thread(cuda, lambda: home.open(connection, nbytes=64, timeout=60))
    peer("reader = vs.open_ring(s, timeout=60)")
    writer = opened()
    for i in range(5):
        buffer = writer.acquire()
        np.from_dlpack(buffer.array(1, "int64"))[:] = i * i
        writer.publish(buffer)
    peer("items = reader.items(timeout=60)")
    for i in range(5):
        assert peer("int(np.from_dlpack(next(items).array(1, 'int64'))[0])") == i * i
    peer.kill()
    with pytest.raises(vs.errors.Unavailable):
        for _ in range(20):
            writer.publish(writer.acquire(timeout=20), timeout=20)
    writer.close()


def test_what_is_refused(cuda, ends):
    writer, reader = ends
    with pytest.raises(vs.errors.DeadlineExceeded) as why:
        reader.acquire(timeout=0)
    assert why.value.__context__ is None  # No other exception led to it.
    with pytest.raises(vs.errors.DeadlineExceeded,
                       match="^not within the timeout of 0.2 s: no .* before the deadline"):
        reader.acquire(timeout=0.2)
    buffer = writer.acquire()
    with pytest.raises(ValueError):
        buffer.array(4097, "uint8")
    part = buffer.array(16, "uint8", 64)
    assert part.view(4, "float32").ptr == part.ptr == buffer.array(1, "uint8").ptr + 64
    with pytest.raises(ValueError, match="5 bytes from 12 on, and the array has 16"):
        part.view(5, "uint8", 12)
    part.close()
    buffer.wait()
    writer.publish(buffer)
    with pytest.raises(vs.errors.FailedPrecondition):
        writer.publish(buffer)
    with pytest.raises(vs.errors.FailedPrecondition, match="item 1, which was published"):
        buffer.wait()
    buffer = writer.acquire()
    for number in -1, 1 << 64:
        buffer.tag = number
        with pytest.raises(ValueError, match=rf"tag is {number}; expected 0 to 2\*\*64 - 1"):
            writer.publish(buffer)
    buffer.tag = "a"
    with pytest.raises(TypeError, match="tag: expected an int, not a str"):
        writer.publish(buffer)
    buffer.tag, buffer.nbytes = 0, -1
    with pytest.raises(ValueError, match="nbytes is -1; expected 0 to"):
        writer.publish(buffer)
    buffer.nbytes = 5000
    with pytest.raises(vs.errors.InvalidArgument):
        writer.publish(buffer)
    got = reader.acquire()
    reader.release(got)
    with pytest.raises(vs.errors.FailedPrecondition):
        reader.release(got)


def test_who_holds_all_buffers_is_told_to_release_one_and_loses_no_item(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    for _ in range(4):
        writer.publish(writer.acquire(ours, timeout=60), ours)
    held = [reader.acquire(theirs, timeout=60) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(vs.errors.FailedPrecondition, match="item 1 is acquired and not rel"):
            reader.acquire(theirs, timeout=60)
    reader.release(held[0], theirs)
    held[0] = reader.acquire(theirs, timeout=60)
    assert held[0].number == 4
    for buffer in held:
        reader.release(buffer, theirs)
    writer.finish(timeout=60)
    reader.finish()


def test_an_abort_ends_both(cuda, ends):
    writer, reader = ends
    writer.abort()
    with pytest.raises(vs.errors.Aborted, match=r"abort\(\)\. Open another ring"):
        writer.acquire(timeout=20)
    writer.close()
    with pytest.raises((vs.errors.Aborted, vs.errors.Unavailable)):
        reader.acquire(timeout=20)
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        writer.acquire()


@pytest.fixture
def used(cuda, streams, ends):
    """The writer's fourth buffer, which is the first one's memory, while the reader's stream uses
    that; an array of it there, and the gate that the stream waits for."""
    writer, reader = ends
    ours, theirs = streams
    for number in 1, 2, 3:
        buffer = writer.acquire(ours, timeout=60)
        buffer.wait(timeout=60)
        np.from_dlpack(buffer.array(1, "int32"))[:] = number
        writer.publish(buffer, ours, timeout=60)
    read = reader.acquire(theirs, timeout=60)
    array = read.array(1, "int32")
    with vs.FencePool() as fences, fences.new() as gate:
        gate.wait(theirs, 1)  # As a kernel that reads it.
        reader.release(read, theirs)
        buffer = writer.acquire(ours, timeout=60)  # In the order of the stream.
        assert buffer.number == 4
        yield buffer, array, gate
        if gate.value == 0:
            gate.signal(1)
        for stream in streams:
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    array.close()


def test_a_host_that_writes_waits_until_the_buffer_is_free(ends, streams, used):
    buffer, read, gate = used
    with pytest.raises(vs.errors.DeadlineExceeded, match="item 4 was not free within 0.2 s"):
        buffer.wait(timeout=0.2)
    assert int(np.from_dlpack(read)[0]) == 1
    gate.signal(1)
    buffer.wait(timeout=60)
    np.from_dlpack(buffer.array(1, "int32"))[:] = 4
    ends[0].publish(buffer, streams[0], timeout=60)


def test_who_asks_again_whether_the_buffer_is_free_puts_no_more_on_the_stream(used):
    """A driver whose queue is full blocks, whatever the timeout."""
    buffer, _, gate = used
    (_, before), = buffer._free._marks._last.values()
    for _ in range(100):
        with pytest.raises(vs.errors.DeadlineExceeded):
            buffer.wait(timeout=0)
    (_, after), = buffer._free._marks._last.values()
    assert after == before + 1
    gate.signal(1)
    buffer.wait(timeout=60)


def test_a_wait_for_a_free_buffer_puts_nothing_into_a_graph(cuda, streams, used):
    buffer, _, gate = used
    graph = ctypes.c_void_p()
    assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(streams[0]), 2) == 0
    with pytest.raises(vs.errors.FailedPrecondition, match="is being captured into a graph"):
        buffer.wait()
    assert cuda.cuStreamEndCapture(ctypes.c_void_p(streams[0]), ctypes.byref(graph)) == 0
    assert cuda.cuGraphDestroy(graph) == 0
    gate.signal(1)
    buffer.wait(timeout=60)


def test_a_ring_that_is_closed_while_a_host_waits_unmaps_nothing_that_the_gpu_writes(cuda, streams):
    def wait(buffers):
        while True:
            try:
                for buffer in buffers:
                    buffer._mark = None  # As if it were the first time.
                    buffer.wait(timeout=60)
            except vs.errors.VmmshareError as error:
                return error

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(60):
            with both_ends(cuda) as (writer, _):
                buffers = [writer.acquire(stream, timeout=60) for stream in streams]
                join = on_a_thread(cuda, lambda buffers=buffers: wait(buffers))
                time.sleep(0.0003 * (turn % 7))
                writer.close()
                assert type(join()) is vs.errors.FailedPrecondition
            for stream in streams:
                assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
    finally:
        sys.setswitchinterval(interval)


def test_a_writer_that_is_dropped_leaves_no_fence_that_the_gpu_will_write(ends, used):
    """The pool of its fences would go under the signal."""
    buffer, _, gate = used
    with pytest.raises(vs.errors.DeadlineExceeded):
        buffer.wait(timeout=0)
    kept = len(vs._marks._kept)
    ends[0]._free.let_go(0)  # As when its buffers and it are dropped.
    assert len(vs._marks._kept) == kept + 1
    gate.signal(1)
    buffer.wait(timeout=60)


def test_a_child_waits_for_no_turn_that_a_thread_had_at_the_fork(ends, used):
    writer, (buffer, _, _) = ends[0], used
    with pytest.raises(vs.errors.DeadlineExceeded):
        buffer.wait(timeout=0)
    buffer._mark = None  # As if it were the first time.

    def leave():
        with pytest.raises(ValueError, match="of the child"), writer:
            raise ValueError("of the child")

    def wait():
        with pytest.raises(vs.errors.FailedPrecondition, match="forked child"):
            buffer.wait()

    def drop():
        writer._free.__del__()

    with writer._free._turn:  # As a thread that puts a mark has it.
        for work in leave, wait, drop:
            assert in_a_child(work) == 0


def test_ctrl_c_ends_a_wait_for_a_free_buffer(used):
    buffer, _, _ = used
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        buffer.wait(timeout=None)
    timer.join()


def test_a_wait_for_a_free_buffer_ends_with_the_ring(ends, used):
    buffer, _, _ = used
    with pytest.raises(vs.errors.DeadlineExceeded):
        buffer.wait(timeout=0)
    ends[0].abort()  # Which lets the stream go.
    buffer.wait(timeout=60)
    ends[0].close()
    with pytest.raises(vs.errors.FailedPrecondition, match="closed"):
        buffer.wait()


def test_a_host_fills_one_item_after_the_other_for_another_process(cuda, streams, peer):
    """Item i holds i for as long as it is held, though the writer is asked for the next ones."""
    connection = connection_to(peer)
    opened = on_a_thread(cuda, lambda: vs.open_ring(connection, timeout=60))
    peer("writer = vs.RingHome(host_node=0).open(s, buffers=2, nbytes=64, timeout=60)")
    peer("def put(i): b = writer.acquire(timeout=60); b.wait(timeout=60); "
         "np.from_dlpack(b.array(1, 'int64'))[:] = i; writer.publish(b, timeout=60)")
    items, asked, seen = 8, [threading.Event() for _ in range(8)], []

    def consume():
        with opened() as reader:
            for buffer in reader.items(streams[0], timeout=60):
                view = np.from_dlpack(buffer.array(1, "int64"))
                began = int(view[0])
                # The next one of the same memory is asked for.
                asked[min(began + 2, items - 1)].wait(60)
                time.sleep(0.02)  # By which it may come too early.
                seen.append((began, int(view[0])))
                del view
            reader.finish(timeout=60)
        return True

    join = on_a_thread(cuda, consume)
    for i in range(items):
        asked[i].set()
        peer(f"put({i})")
    peer("writer.finish(timeout=60)")
    assert join() and seen == [(i, i) for i in range(items)]
    peer("writer.close()")


class PressedAsItCame:
    """In the place of an end's ring: acquire() is interrupted, once, when it has done its work."""

    def __init__(self, ring):
        self._ring = ring

    def __getattr__(self, name):
        return getattr(self._ring, name)

    def acquire(self, *given):
        self._ring.acquire(*given)
        raise KeyboardInterrupt


@pytest.mark.parametrize("again", [0, 1])  # On the same stream, and on another one.
def test_a_buffer_that_came_as_ctrl_c_was_pressed_comes_again(cuda, streams, ends, monkeypatch, again):
    writer, reader = ends

    def acquire(end, on):
        with monkeypatch.context() as patch:
            patch.setattr(end, "_ring", PressedAsItCame(end._ring))
            with pytest.raises(KeyboardInterrupt):
                end.acquire(streams[on], timeout=60)
        return end.acquire(streams[(on + again) % 2], timeout=60)

    for number in range(1, 9):
        buffer = acquire(writer, 0)
        assert buffer.number == number
        buffer.wait(timeout=60)
        np.from_dlpack(buffer.array(1, "int32"))[:] = number
        writer.publish(buffer, streams[again], timeout=60)
        read = acquire(reader, 1)
        assert read.number == number
        read.wait(timeout=60)
        with read.array(1, "int32") as array:
            assert int(np.from_dlpack(array)[0]) == number
        reader.release(read, streams[(1 + again) % 2])


def test_an_unclaimed_buffer_is_not_lost_at_any_step_of_the_next_acquire(streams, ends, monkeypatch):
    writer, reader = ends
    writer.publish(writer.acquire(streams[0]), streams[0])
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_ring", PressedAsItCame(reader._ring))
        with pytest.raises(KeyboardInterrupt):
            reader.acquire(streams[1], timeout=60)
    left = 0

    def step(frame, event, _):  # Python hears Ctrl-C as a call returns, there to where it was made.
        nonlocal left
        caller = frame if event == "c_return" else frame.f_back if event == "return" else None
        if caller is not None and caller.f_code.co_filename == vmmshare._ring.__file__:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    for steps in range(1, 100):
        left = steps
        sys.setprofile(step)
        try:
            buffer = reader.acquire(streams[1], timeout=0.05)
        except KeyboardInterrupt:
            continue
        finally:
            sys.setprofile(None)
        break
    assert buffer.number == 1 and steps > 1
    reader.release(buffer, streams[1])


def test_items_that_several_threads_waited_for_come_again_in_order(cuda, streams, ends, monkeypatch):
    writer, reader = ends
    for _ in range(2):
        writer.publish(writer.acquire(streams[0]), streams[0])
    second_waits, first_is_back = threading.Event(), threading.Event()

    def late(buffer, timeout):
        if buffer.number == 1:
            assert second_waits.wait(60)
        else:
            second_waits.set()
            assert first_is_back.wait(60)
        raise vs.errors.DeadlineExceeded("late")

    with monkeypatch.context() as patch:
        patch.setattr(vmmshare._ring.RingBuffer, "wait", late)

        def wait_for_one():
            with pytest.raises(vs.errors.DeadlineExceeded):
                next(reader.items(streams[1], timeout=60))
            first_is_back.set()

        joins = [on_a_thread(cuda, wait_for_one) for _ in range(2)]
        for join in joins:
            join()
    for number in 1, 2:
        buffer = reader.acquire(streams[1], timeout=60)
        assert buffer.number == number
        reader.release(buffer, streams[1])


def test_a_socket_that_is_none(driver):
    home = vs.RingHome(host_node=0)
    stream = socket.socketpair()[0]
    with pytest.raises(vs.errors.VmmshareError):
        home.open(stream, nbytes=64, timeout=1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises(vs.errors.DeadlineExceeded):
        home.open(ours, nbytes=64, timeout=0.05)
    theirs.close()


def test_buffers_of_another_gpu_are_of_the_device_that_reads_them(cuda):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(other), 1) == 0
    join = on_a_thread(cuda, lambda: vs.open_ring(theirs, device=1))
    with vs.RingHome(0).open(ours, buffers=1, nbytes=4096) as writer, join() as reader:
        writer.publish(writer.acquire())
        assert cuda.cuCtxSetCurrent(other) == 0  # The reader's streams are of device 1.
        theirs = reader.acquire()
        assert theirs.array(1, "uint8").__dlpack_device__() == (2, 1)
        reader.release(theirs)
        assert cuda.cuCtxSetCurrent(cuda.context) == 0
        assert writer.acquire().array(1, "uint8").__dlpack_device__() == (2, 0)
    assert cuda.cuDevicePrimaryCtxRelease_v2(1) == 0


@pytest.mark.parametrize("open_it", [
    lambda end: vs.open_ring(end, device=99), lambda end: vs.open_ring(end, device="x"),
    lambda end: vs.open_ring(end, timeout=float("nan")),
    lambda end: vs.RingHome(host_node=0).open(end, nbytes=64, buffers="x"),
    lambda end: vs.RingHome(host_node=0).open(end, nbytes=64, buffers=-1),
    lambda end: vs.RingHome(host_node=0).open(end, nbytes="x"),
    lambda end: vs.RingHome(host_node=0).open(end, nbytes=-1)])
def test_the_socket_of_a_ring_that_is_not_made_is_closed(driver, open_it):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises((vs.errors.NotFound, ValueError, TypeError)):
        open_it(theirs)
    ours.settimeout(20)
    assert ours.recv(1) == b""
    ours.close()


@pytest.mark.parametrize("how, error, says", [
    ({"buffers": -1, "nbytes": 64}, ValueError, r"buffers is -1; expected 0 to 2\*\*32 - 1"),
    ({"buffers": 1 << 40, "nbytes": 64}, ValueError, r"buffers is 1099511627776; expected 0 to"),
    ({"buffers": "x", "nbytes": 64}, TypeError, "buffers: expected an int, not a str"),
    ({"buffers": 65, "nbytes": 64}, vs.errors.InvalidArgument, "a ring of 65 buffers"),
    ({"nbytes": 1.5}, TypeError, "nbytes: expected an int, not a float")])
def test_a_ring_that_cannot_be_names_what_is_wrong(driver, how, error, says):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises(error, match=says), theirs:
        vs.RingHome(host_node=0).open(ours, **how)


@pytest.mark.parametrize("open_it", [
    vs.open_ring, lambda number: vs.RingHome(host_node=0).open(number, nbytes=64, buffers=1)])
def test_a_number_that_is_no_descriptor_is_an_error(driver, open_it):
    with pytest.raises(vs.errors.InvalidArgument, match="descriptor 1000 is not open"):
        open_it(1000)


def until_the_turn_is_anothers(call):
    """call(timeout=0), again and again, until it says that another thread's call goes on."""
    end = time.monotonic() + 30
    while True:
        assert time.monotonic() < end
        with pytest.raises(vs.errors.DeadlineExceeded) as why:
            call(timeout=0)
        if "another thread's call" in str(why.value):
            return


def test_an_end_that_another_thread_uses_is_waited_for_by_the_timeout(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    began = threading.Event()

    def acquire():
        began.set()
        buffer = reader.acquire(theirs, timeout=40)
        reader.release(buffer, theirs)
        return buffer.number

    join = on_a_thread(cuda, acquire)
    assert began.wait(20)
    until_the_turn_is_anothers(reader.acquire)
    start = time.monotonic()
    with pytest.raises(vs.errors.DeadlineExceeded):
        reader.acquire(timeout=0.05)
    assert time.monotonic() - start < 20
    writer.publish(writer.acquire(ours), ours)  # The other thread need not wait on.
    assert join() == 1


def test_a_buffer_is_released_while_another_thread_waits_for_the_next(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams

    def fill():
        for _ in range(4):
            buffer = writer.acquire(ours, timeout=60)
            # The host writes when it is free: the fourth not before the first is released.
            assert cuda.cuStreamSynchronize(ctypes.c_void_p(ours)) == 0
            writer.publish(buffer, ours)
        return True

    filled = on_a_thread(cuda, fill)
    held = [reader.acquire(theirs, timeout=60) for _ in range(3)]
    ahead = on_a_thread(cuda, lambda: reader.acquire(theirs, timeout=20).number)
    until_the_turn_is_anothers(reader.acquire)
    assert on_a_thread(cuda, lambda: reader.release(held[0], theirs) or True)()
    assert (ahead(), filled()) == (4, True)


@pytest.fixture
def more_streams(cuda):
    made = [ctypes.c_void_p() for _ in range(5)]
    for stream in made:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    yield [stream.value for stream in made]
    for stream in made:
        assert cuda.cuStreamDestroy_v2(stream) == 0


def test_threads_with_a_stream_each_write_and_read_all_items(cuda, more_streams, ends):
    writer, reader = ends
    *ours, ahead, back = more_streams
    items, acquired = 40, queue.Queue()

    def next_buffer(end, stream):
        until = time.monotonic() + 50
        while True:
            try:
                return end.acquire(stream, timeout=50)
            except vs.errors.FailedPrecondition:  # Another thread has it since the lap before.
                assert time.monotonic() < until
                time.sleep(0.001)

    def write(thread):
        for i in range(items):
            buffer = next_buffer(writer, ours[thread])
            buffer.wait(timeout=50)
            buffer.tag = thread * items + i
            np.from_dlpack(buffer.array(1, "int64"))[0] = buffer.tag
            writer.publish(buffer, ours[thread], timeout=50)
        return True

    def acquire():
        for _ in range(len(ours) * items):
            acquired.put(next_buffer(reader, ahead))
        return True

    threads = [on_a_thread(cuda, lambda thread=thread: write(thread)) for thread in range(len(ours))]
    threads.append(on_a_thread(cuda, acquire))
    tags = []
    for _ in range(len(ours) * items):
        buffer = acquired.get(timeout=50)
        buffer.wait(timeout=50)
        assert int(np.from_dlpack(buffer.array(1, "int64"))[0]) == buffer.tag
        tags.append(buffer.tag)
        reader.release(buffer, back)
    assert all(join() for join in threads)
    assert sorted(tags) == list(range(len(ours) * items))
    writer.finish(timeout=50)


def test_a_writer_a_lap_ahead_of_another_thread_is_told_at_once(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    first = writer.acquire(ours)  # Another thread's, which is slow.
    for _ in range(2):
        writer.publish(writer.acquire(ours), ours)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(vs.errors.FailedPrecondition,
                           match="item 1 was acquired and is not published; item 4 has the same"):
            writer.acquire(ours, timeout=60)
    assert time.monotonic() - start < 20
    writer.publish(first, ours)
    for _ in range(3):
        reader.release(reader.acquire(theirs), theirs)
    buffer = writer.acquire(ours)
    assert buffer.number == 4
    writer.publish(buffer, ours)
    reader.release(reader.acquire(theirs), theirs)
    writer.finish(timeout=60)


def test_a_signals_handler_aborts_while_threads_wait(cuda, ends):
    _, reader = ends
    join = on_a_thread(cuda, lambda: pytest.raises(vs.errors.Aborted, reader.acquire, timeout=50))
    until_the_turn_is_anothers(reader.acquire)

    def abort(*_):
        reader.abort()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, abort)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            reader.acquire(timeout=None)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert join()


def test_contents_are_awaited_in_turns_with_the_calls_of_other_threads(cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    with vs.FencePool() as fences, fences.new() as gate:
        buffer = writer.acquire(ours)
        gate.wait(ours, 1)  # As a kernel that fills it.
        writer.publish(buffer, ours)
        buffer = reader.acquire(theirs)
        join = on_a_thread(cuda, lambda: pytest.raises(vs.errors.Aborted, reader.acquire,
                                                       timeout=50))
        until_the_turn_is_anothers(buffer.wait)
        with pytest.raises(vs.errors.DeadlineExceeded):
            buffer.wait(timeout=0.05)
        gate.signal(1)
        buffer.wait(timeout=50)
        reader.abort()
        assert join()


def test_all_threads_of_an_end_learn_that_the_other_was_killed(cuda, streams, peer):
    connection = connection_to(peer)
    opened = on_a_thread(cuda, lambda: vs.open_ring(connection, timeout=60))
    peer("writer = vs.RingHome(host_node=0).open(s, nbytes=64, timeout=60)")
    reader = opened()
    # Its contents never come.
    peer("gate = vs.FencePool().new(); buffer = writer.acquire(); gate.wait(0, 1)")
    peer("writer.publish(buffer)")
    buffer = reader.acquire(streams[0], timeout=60)
    gone = (vs.errors.Unavailable, vs.errors.Aborted)
    joins = [on_a_thread(cuda, lambda call=call: pytest.raises(gone, call, timeout=50))
             for call in (reader.acquire, reader.acquire, buffer.wait, buffer.wait)]
    peer.kill()
    assert all(join() for join in joins)
    reader.close()


def test_the_last_array_of_a_closed_ring_holds_up_no_thread(cuda, streams, ends):
    writer, _ = ends
    with vs.FencePool() as fences, fences.new() as fence:
        fence.wait(streams[0], 1)  # As a kernel.
        buffer = writer.acquire(streams[0])
        array = buffer.array(1, "uint8")
        writer.publish(buffer, streams[0])
        writer.close()
        start = time.monotonic()
        array.close()
        assert time.monotonic() - start < 5
        fence.signal(1)
        assert cuda.cuStreamSynchronize(ctypes.c_void_p(streams[0])) == 0


@pytest.mark.parametrize("held", [True, False])
def test_a_reader_that_closes_tells_its_writer_though_an_array_lives(cuda, streams, ends, held):
    writer, reader = ends
    ours, theirs = streams
    for number in 1, 2:
        buffer = writer.acquire(ours)
        np.from_dlpack(buffer.array(1, "int32"))[:] = number
        writer.publish(buffer, ours)
    with reader:
        buffer = reader.acquire(theirs)
        array = buffer.array(1, "int32")
        if not held:
            reader.release(buffer, theirs)
    start = time.monotonic()
    with pytest.raises((vs.errors.Unavailable, vs.errors.Aborted)) as why:
        writer.finish(timeout=50)
    if isinstance(why.value, vs.errors.Aborted):
        assert "close() of a reader that has a buffer" in str(why.value)
        assert why.value.remedy == "Open another ring"
    assert time.monotonic() - start < 25
    assert int(np.from_dlpack(array)[0]) == 1


def test_a_ring_whose_reader_closes_after_giving_all_back_is_finished_though_an_array_lives(
        cuda, streams, ends):
    writer, reader = ends
    ours, theirs = streams
    writer.publish(writer.acquire(ours), ours)
    with reader:
        buffer = reader.acquire(theirs)
        array = buffer.array(1, "int32")
        reader.release(buffer, theirs)
    writer.finish(timeout=50)
    array.close()


def test_closing_ends_a_readers_wait_on_another_thread(cuda, ends):
    _, reader = ends
    join = on_a_thread(cuda, lambda: pytest.raises(vs.errors.Aborted, reader.acquire, timeout=50))
    until_the_turn_is_anothers(reader.acquire)
    reader.close()
    assert join()


def test_ctrl_c_ends_closing(cuda, streams, ends):
    writer, _ = ends
    with vs.FencePool() as fences, fences.new() as fence:
        fence.wait(streams[0], 1)  # As a kernel.
        writer.publish(writer.acquire(streams[0]), streams[0])
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            writer.close()
        assert writer.closed and time.monotonic() - start < 5
        timer.join()
        fence.signal(1)
        assert cuda.cuStreamSynchronize(ctypes.c_void_p(streams[0])) == 0


class Threads:
    """A job whose ranks are threads."""

    def __init__(self, size):
        self.size, self.barrier, self.own = size, threading.Barrier(size), [None] * size

    def exchange(self, rank):
        def all_gather(own):
            self.own[rank] = dict(own)
            self.barrier.wait(60)
            gathered = list(self.own)
            self.barrier.wait(60)
            return gathered
        return vmmshare.job.AllGather(rank, self.size, all_gather)


def test_every_rank_sees_the_memory_of_all(cuda):
    job = Threads(3)
    ranks = [on_a_thread(cuda, lambda rank=rank: vs.SymmetricMemory(0, 1 << 20, job.exchange(rank)))
             for rank in range(3)]
    ranks = [join() for join in ranks]
    for rank, memory in enumerate(ranks):
        assert (memory.rank, memory.size, memory.nbytes) == (rank, 3, 1 << 20)
        value = ctypes.c_uint8(rank + 1)
        assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(memory.ptr(rank) + 77), ctypes.byref(value),
                                    ctypes.c_size_t(1)) == 0
    for memory in ranks:
        for rank in range(3):
            value = ctypes.c_uint8()
            where = memory.array(rank, 1 << 18, "float32").ptr + 77
            assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), ctypes.c_uint64(where),
                                        ctypes.c_size_t(1)) == 0
            assert value.value == rank + 1
        with pytest.raises(IndexError):
            memory.ptr(3)
        with pytest.raises(ValueError):
            memory.array(0, (1 << 20) + 1, "uint8")
    for memory in ranks:
        memory.close()
        with pytest.raises(vs.errors.FailedPrecondition):
            memory.ptr(0)


def test_the_parts_of_other_gpus_are_of_the_device_that_has_access(cuda):
    job = Threads(2)
    ranks = [on_a_thread(cuda, lambda rank=rank: vs.SymmetricMemory(rank, 4096, job.exchange(rank)))
             for rank in range(2)]
    for rank, memory in enumerate(join() for join in ranks):
        for part in range(2):
            assert memory.array(part, 4096, "int8").__dlpack_device__() == (2, rank)


def test_sizes_that_differ_are_named(cuda):
    job = Threads(2)

    def make(rank):
        with pytest.raises(vs.errors.InvalidArgument):
            vs.SymmetricMemory(0, (1 + rank) << 20, job.exchange(rank))
        return True

    joins = [on_a_thread(cuda, lambda rank=rank: make(rank)) for rank in range(2)]
    assert [join() for join in joins] == [True, True]


@pytest.mark.parametrize("nbytes", [256 * (2**32 - 1) + 1, 1 << 40, 1 << 55])
def test_symmetric_memory_of_more_than_offsets_reach_is_refused(cuda, nbytes):
    def gather(own):
        raise AssertionError("nobody is to be asked")

    with pytest.raises(vs.errors.InvalidArgument, match="expected at most 1099511627520"):
        vs.SymmetricMemory(0, nbytes, vmmshare.job.AllGather(0, 1, gather))


@pytest.mark.parametrize("broken", ["put", "fence", "rank"])
def test_what_an_exchange_raises_is_raised(cuda, broken):
    exchange = vmmshare.job.AllGather(0, 1, lambda own: [own])

    def fail(*_):
        raise ZeroDivisionError("mine")

    setattr(exchange, broken, 5 if broken == "rank" else fail)
    with pytest.raises(vs.errors.InvalidArgument if broken == "rank" else ZeroDivisionError):
        vs.SymmetricMemory(0, 1 << 20, exchange)


def test_an_exchange_is_given_no_more_seconds_than_threads_can_wait(cuda):
    exchange, given = vmmshare.job.AllGather(0, 1, lambda own: [dict(own)]), []
    fence = exchange.fence

    def note(timeout):
        given.append(timeout)
        fence(timeout)

    exchange.fence = note
    with vs.SymmetricMemory(0, 4096, exchange, timeout=None) as memory:
        made = len(given)
        memory.check_agreed(exchange, timeout=None)
    assert 0 < made < len(given)
    assert all(0 <= timeout <= threading.TIMEOUT_MAX for timeout in given)


def test_a_job_of_mpi4py(cuda):
    class Communicator:
        Get_rank, Get_size = (lambda self: 0), (lambda self: 1)

        def allgather(self, own):
            return [dict(own)]

    with vs.SymmetricMemory(0, 4096, vmmshare.job.mpi(Communicator())) as memory:
        assert memory.ptr(0) == memory.array(0, 1, "int8").ptr
