"""Memory that is released and restored at the same addresses, in two processes."""

import os
import pathlib
import signal
import threading
import time
import types

import pytest

import vmmshare as vs
from conftest import PeerRaised

COUNT = 1 << 12


@pytest.fixture
def own(driver):
    with vs.restorable(nbytes=4 * COUNT, host_node=0) as made:
        yield made


def filled(array, value):
    numpy = pytest.importorskip("numpy")
    numpy.from_dlpack(array)[:] = value


def holds(array, value):
    numpy = pytest.importorskip("numpy")
    return bool((numpy.from_dlpack(array) == value).all())


def connected(peer, own):
    """Has the peer open it, with an array that it keeps; where that is."""
    peer("import numpy")
    peer(f"m = vs.connect_restorable({own.text!r}, writable=True)")
    peer(f"a = m.array({COUNT}, 'int32')")
    return peer("m.ptr")


def test_it_comes_back_at_the_same_addresses_in_both_processes(own, peer):
    array, address = own.array(COUNT, "int32"), own.ptr
    filled(array, 1)
    there = connected(peer, own)
    peer("numpy.from_dlpack(a)[:] = 2")
    peer("import threading; asleep = threading.Event()")
    peer("t = vs.on_recall(m, lambda addresses: (m.release(), asleep.set()))")
    for _ in range(3):  # One watch sees all of them.
        own.release(timeout=60)
        assert peer("asleep.wait(60)")
        assert own.released and peer("m.released")
        peer("asleep.clear()")
        own.restore()
        peer("m.restore(timeout=60)")
        assert (own.ptr, peer("m.ptr")) == (address, there)
        assert holds(array, 2)
        assert peer("bool((numpy.from_dlpack(a) == 2).all())")
    peer("a.close()")
    peer("m.close()")
    assert peer("t.join(60) or t.is_alive()") is False
    array.close()


def test_who_never_lets_go_is_named_and_nothing_changes(own, peer):
    array = own.array(COUNT, "int32")
    filled(array, 1)
    connected(peer, own)
    with pytest.raises(vs.errors.DeadlineExceeded, match=f"process {peer.process.pid}"):
        own.release(timeout=0.05)
    assert not own.released
    assert holds(array, 1)
    assert peer("bool((numpy.from_dlpack(a) == 1).all())")
    peer.kill()
    own.release(timeout=30)
    own.restore()
    assert holds(array, 1)


def test_it_is_filled_by_a_function_or_a_file(own, tmp_path):
    array = own.array(COUNT, "int32")
    own.release(keep=False)
    with pytest.raises(vs.errors.FailedPrecondition, match=r"keep=False.* in Python fill= or path="):
        own.restore()

    def fill(ptr, nbytes):
        asked.append((ptr, nbytes))
        filled(array, 3)

    asked = []
    own.restore(fill=fill)
    assert asked == [(own.ptr, own.nbytes)]  # And not all that is mapped.
    assert holds(array, 3)
    own.release(keep=False)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"head" + b"\x01\x00\x00\x00" * COUNT)
    with pytest.raises(vs.errors.DataLoss):
        own.restore(path=str(path), offset=8)
    own.restore(path=str(path), offset=4)
    assert holds(array, 1)


def test_a_file_that_cannot_have_the_contents_is_told(own, tmp_path):
    array, path, pipe = own.array(COUNT, "int32"), tmp_path / "weights.bin", tmp_path / "pipe"
    path.write_bytes(b"\x01\x00\x00\x00" * COUNT)
    os.mkfifo(pipe)
    own.release(keep=False)
    for offset in 2**63, 2**64 - 1:
        with pytest.raises(vs.errors.InvalidArgument, match=f"from offset {offset} on: no file"):
            own.restore(path=path, offset=offset)
    for no_file in pipe, tmp_path:
        with pytest.raises(vs.errors.FailedPrecondition, match=r"pread\("):
            own.restore(path=no_file)
    assert own.released
    own.restore(path=path)
    assert holds(array, 1)


@pytest.mark.parametrize("name", ["weights.bin", "caf\udce9"], ids=ascii)
@pytest.mark.parametrize("spelled", [pathlib.Path, os.fsencode, str], ids=["Path", "bytes", "str"])
def test_a_file_is_named_as_python_names_files(own, tmp_path, name, spelled):
    array, path = own.array(COUNT, "int32"), str(tmp_path / name)
    with open(path, "wb") as file:
        file.write(b"head" + b"\x01\x00\x00\x00" * COUNT)
    own.release(keep=False)
    own.restore(path=spelled(path), offset=4)
    assert holds(array, 1)


def test_what_is_no_path_to_restore_from_is_named(own):
    own.release(keep=False)
    for path, error, says in ((5, TypeError, "path: expected a path .*os.PathLike, not a int"),
                              (b"a\0b", vs.errors.InvalidArgument, "NUL"),
                              (pathlib.Path("a\0b"), vs.errors.InvalidArgument, "NUL")):
        with pytest.raises(error, match=says):
            own.restore(path=path)
    for more in ({}, {"fill": lambda ptr, nbytes: pytest.fail("it was called")}):
        with pytest.raises(ValueError, match="offset is 5, .*no file was given: pass path="):
            own.restore(offset=5, **more)
    assert own.released


def test_where_the_contents_do_not_matter_nothing_is_written(own):
    array = own.array(COUNT, "int32")
    own.release(keep=False)
    own.restore(fill=lambda ptr, nbytes: None)
    filled(array, 1)
    assert holds(array, 1)


def refuses(take):
    with pytest.raises(vs.errors.FailedPrecondition, match=r"is released: .* Call restore\(\)"):
        take()


def test_an_array_is_not_taken_while_nothing_is_there(own):
    """NumPy was given the addresses, and reading them ended the process."""
    numpy = pytest.importorskip("numpy")
    array = own.array(COUNT, "int32")
    filled(array, 1)
    before, view = numpy.asarray(array), array.view(4, "int32", 16)
    with vs.connect_restorable(own.text) as theirs:
        opened = theirs.array(COUNT, "int32")
        theirs.release()
        refuses(lambda: numpy.asarray(opened))
        own.release()
        for one in array, view, own.array(4, "int32"):
            for take in (numpy.asarray, numpy.from_dlpack, numpy.sum, lambda one: one.__array__(),
                         lambda one: one.__dlpack__(), lambda one: one._dlpack_unflagged(None)):
                refuses(lambda: take(one))
        assert array.ptr == own.ptr and array.shape == (COUNT,)
        own.restore()
        theirs.restore()
        assert holds(opened, 1)
    assert holds(array, 1) and (before == 1).all() and numpy.asarray(view).tolist() == [1] * 4


def test_an_array_of_a_device_is_not_taken_while_nothing_is_there(driver):
    with vs.restorable(nbytes=1 << 20) as made:
        array = made.array(4, "int32")
        takes = (lambda: array.__dlpack__(), lambda: array.__dlpack__(stream=-1),
                 lambda: array._use_on(1), lambda: array.__cuda_array_interface__)
        made.release()
        for take in takes:
            refuses(take)
        made.restore()
        for take in takes:
            take()


def test_an_array_is_not_put_while_nothing_is_there(own, keeper):
    array = own.array(COUNT, "int32")
    filled(array, 1)
    own.release()
    refuses(lambda: vs.weights.put("a", {"a": array}, address=keeper.address, host_node=0))
    own.restore()
    assert vs.weights.put("a", {"a": array}, address=keeper.address, host_node=0) == 1


def test_what_fill_raises_is_raised_and_it_stays_released(own):
    array = own.array(COUNT, "int32")
    filled(array, 1)
    own.release()

    def fails(ptr, nbytes):
        filled(array, 9)
        raise LookupError("no weights")

    with pytest.raises(LookupError, match="no weights"):
        own.restore(fill=fails)
    assert own.released
    own.restore()
    assert holds(array, 1)


def test_a_call_within_fill_is_refused(own):
    """It waited for the end of fill, which waited for it."""
    def fill(ptr, nbytes):
        assert own.released and own.ptr == ptr
        for call in (own.release, own.restore, lambda: own.restore(fill=fill)):
            with pytest.raises(vs.errors.FailedPrecondition, match="being filled"):
                call()
        other = threading.Thread(target=refused)
        other.start()
        other.join()
        filled(array, 7)

    def refused():
        with pytest.raises(vs.errors.FailedPrecondition, match="being filled"):
            own.release()
        done.append(True)

    array, done = own.array(COUNT, "int32"), []
    own.release()
    own.restore(fill=fill)
    assert holds(array, 7) and done == [True] and not own.released
    own.release()  # As before.
    own.restore()
    assert holds(array, 7)


@pytest.mark.parametrize("timeout", [60, None, 1e300])
def test_a_restore_that_waits_for_the_owner_holds_up_no_other_call(own, timeout):
    with vs.connect_restorable(own.text) as theirs:
        theirs.release()
        own.release()
        restorer = threading.Thread(target=theirs.restore, kwargs={"timeout": timeout})
        restorer.start()
        start, told = time.monotonic(), ""
        while "being released or restored" not in told:  # Has it begun?
            assert time.monotonic() - start < 30, told
            with pytest.raises(vs.errors.FailedPrecondition) as refused:
                theirs.recalled_in
            told = str(refused.value)
        with pytest.raises(vs.errors.DeadlineExceeded, match="another release or restore"):
            theirs.release(timeout=0.1)
        with pytest.raises(vs.errors.DeadlineExceeded, match="another release or restore"):
            theirs.restore(timeout=0.1)
        assert restorer.is_alive() and time.monotonic() - start < 30
        own.restore()
        restorer.join()
        assert not theirs.released and theirs.recalled_in is None


def test_who_connects_for_ever_waits_until_it_is_restored(own):
    own.release()
    wakes = threading.Timer(0.5, own.restore)
    wakes.start()
    with vs.connect_restorable(own.text, timeout=None) as theirs:
        wakes.join()
        assert not theirs.released
    own.release()
    with pytest.raises(vs.errors.ResourceExhausted, match="Wait longer, or have the owner restore"):
        vs.connect_restorable(own.text, timeout=5)
    own.restore()


@pytest.mark.parametrize("timeout", [60, None])
def test_ctrl_c_ends_a_restore_by_a_function_that_waits_its_turn(own, timeout):
    def restore():
        timer.start()
        own.restore(fill=lambda ptr, nbytes: called.append(ptr), timeout=timeout)

    called = []
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with vs.connect_restorable(own.text) as theirs:
        releaser = threading.Thread(target=own.release, kwargs={"timeout": 120})
        releaser.start()
        try:
            start = time.monotonic()
            while theirs.recalled_in is None:  # Has it begun?
                assert time.monotonic() - start < 30
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                restore()
            assert time.monotonic() - start < 30
        finally:
            theirs.release()
            releaser.join()
    assert called == [] and own.released
    own.restore(fill=lambda ptr, nbytes: called.append(ptr), timeout=timeout)
    assert called == [own.ptr] and not own.released


def test_a_recall_is_seen_after_a_release_of_ones_own(own, monkeypatch):
    looks, asleep = [], threading.Event()

    def let_go(addresses):
        theirs.release()
        asleep.set()

    def sleep(seconds):
        looks.append(seconds)
        time.sleep(0.001)

    def let_it_look(watcher):
        seen = len(looks)
        while watcher.is_alive() and len(looks) < seen + 3:
            time.sleep(0.001)
        assert watcher.is_alive()

    monkeypatch.setattr(vs._recall, "time", types.SimpleNamespace(sleep=sleep))
    with vs.connect_restorable(own.text) as theirs:
        theirs.release()
        watcher = vs.on_recall(theirs, let_go)  # Or before it.
        let_it_look(watcher)
        theirs.restore()
        let_it_look(watcher)
        theirs.release()
        let_it_look(watcher)
        theirs.restore()
        for _ in range(2):
            own.release(timeout=60)
            assert asleep.wait(60) and own.released and theirs.released
            asleep.clear()
            let_it_look(watcher)
            own.restore()
            theirs.restore(timeout=60)
    watcher.join()  # For it was closed.
    with pytest.raises(vs.errors.FailedPrecondition):
        vs.on_recall(own, print)  # It is of no other process,
    own.release()
    with pytest.raises(vs.errors.FailedPrecondition):
        vs.on_recall(own, print)  # also while it is released.
    with pytest.raises(vs.errors.FailedPrecondition):
        vs.on_recall(theirs, print)  # It was closed.
    own.restore()
    with vs.connect_restorable(own.text) as theirs:
        theirs.release()
        watcher = vs.on_recall(theirs, print)
        let_it_look(watcher)
    watcher.join()  # For it was closed.


def test_a_callback_that_waits_until_the_owner_is_awake_is_called_for_each_sleep(own):
    warm, calls = threading.Semaphore(0), []

    def sleep_until_it_is_back(addresses):
        calls.append(addresses)
        theirs.release()
        theirs.restore(timeout=60)
        assert warm.acquire(timeout=60)  # The owner asks again meanwhile.

    with vs.connect_restorable(own.text) as theirs:
        watcher = vs.on_recall(theirs, sleep_until_it_is_back)
        own.release(timeout=60)
        for _ in range(3):
            own.restore()
            while theirs.released:
                time.sleep(0.001)
            asks = threading.Thread(target=lambda: own.release(timeout=60))
            asks.start()
            while theirs.recalled_in is None:
                time.sleep(0.001)
            warm.release()
            asks.join()
            assert own.released
        assert calls == [[theirs.ptr]] * 4
        own.restore()
        warm.release()
    watcher.join(60)
    assert not watcher.is_alive()


def test_who_does_not_let_go_is_asked_once_and_a_watch_ends_with_the_owner(own, peer):
    peer("own = vs.restorable(nbytes=4096, host_node=0)")
    theirs, asked = vs.connect_restorable(peer("own.text")), []
    watcher = vs.on_recall(theirs, asked.append)
    with pytest.raises(PeerRaised, match="DeadlineExceeded"):
        peer("own.release(timeout=1)")
    start = time.monotonic()
    while not asked:  # It stays asked for.
        assert time.monotonic() - start < 60
        time.sleep(0.01)
    assert asked == [[theirs.ptr]] and watcher.is_alive()
    peer.kill()
    watcher.join(60)
    assert asked == [[theirs.ptr]] and not watcher.is_alive()
    theirs.close()


def test_out_of_turn(own):
    with pytest.raises(vs.errors.FailedPrecondition):
        own.restore()
    with pytest.raises(vs.errors.FailedPrecondition):
        own.recalled_in  # Own memory is no lease.
    with vs.connect_restorable(own.text) as theirs:
        assert theirs.readonly and theirs.recalled_in is None
        theirs.release()
        with pytest.raises(vs.errors.FailedPrecondition):
            theirs.recalled_in
        own.release()
        with pytest.raises(vs.errors.ResourceExhausted, match="released"):
            theirs.restore(timeout=0.5)
        own.restore()
        theirs.restore()
    assert own.nbytes == 4 * COUNT
    with pytest.raises(TypeError):
        vs.connect_restorable(7)
    for call in (vs.connect, vs.connect_restorable):
        with pytest.raises(vs.errors.InvalidArgument, match="is no text of a share"):
            call("vmmshare:\ud800")


def test_memory_of_a_device_is_what_it_makes_by_itself(driver):
    with vs.restorable(nbytes=1 << 20) as made:
        at = made.ptr
        made.release()
        made.restore()
        assert made.ptr == at and not made.released
