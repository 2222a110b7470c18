"""Memory that another library made, found by a name: mapped, and as a descriptor."""

import ctypes
import errno
import fcntl
import inspect
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

import conftest
import vmmshare as vs
import vmmshare._broker_entries
import vmmshare.broker


@pytest.fixture
def folder(driver):
    """Of sockets of this test's own."""
    made = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
    yield made
    shutil.rmtree(made)


@pytest.fixture
def foreign(cuda):
    """4 MiB that a library made, and an array of 4096 bytes inside, which it knows by address."""
    with vs.Allocation(nbytes=4 << 20, host_node=0) as memory:
        array = np.from_dlpack(memory.array(4096, "uint8", offset=(2 << 20) + 64))
        array[:] = np.arange(4096) % 251
        yield array
        del array


@pytest.fixture
def peer(driver):
    with contexts() as other:
        yield other


class contexts:
    """A Peer that knows the broker, started with other words or another environment."""

    def __init__(self, *words, **environment):
        self.words, self.environment = words, environment

    def __enter__(self):
        self.peer = conftest.Peer(self.words, {**os.environ, **self.environment})
        self.peer("import vmmshare.broker, gc")
        return self.peer

    def __exit__(self, *_):
        if self.peer.process.returncode is None:
            self.peer.close()


def publish(name, array, folder, **more):
    return vs.broker.publish(name, vs.adopt(array.ctypes.data, array.nbytes), directory=folder,
                             **more)


def test_a_pointer_is_found_by_its_name(foreign, folder, peer):
    with publish("kv/0", foreign, folder) as published:
        assert vs.broker.list(directory=folder) == [{"name": "kv/0", "nbytes": 4096}]
        peer(f"theirs = vs.broker.fetch('kv/0', directory={folder!r})")
        peer("array = np.from_dlpack(theirs.array((16, 256), 'uint8'))")
        assert peer("array.tobytes()") == foreign.tobytes()
        assert peer("theirs.nbytes, array.flags.writeable") == (4096, False)
        foreign[7] = 255
        assert peer("int(array[0, 7])") == 255
        assert peer("theirs.array(1, 'uint8', 4095).ptr - theirs.ptr") == 4095
        for bad in ("theirs.array(4097, 'uint8')", "theirs.array(1, 'uint8', 4096)",
                    "theirs.array(1, 'uint8', -1)"):
            with pytest.raises(conftest.PeerRaised, match="ValueError"):
                peer(bad)
        lease, = published.leases()
        assert lease["process"] == peer.process.pid and lease["state"] == "held"
        peer("writer = vs.broker.fetch('kv/0', writable=True, directory=%r)" % folder)
        peer("np.from_dlpack(writer.array(1, 'uint8'))[:] = 77")
        assert foreign[0] == 77
        peer("writer.close(); del array; theirs.close()")
        published.wait_returned()
    with pytest.raises(vs.errors.NotFound, match="nobody has published 'kv/0'"):
        vs.broker.fetch("kv/0", directory=folder)
    assert vs.broker.list(directory=folder) == []


@pytest.mark.parametrize("spelled", [pathlib.Path, os.fsencode], ids=["Path", "bytes"])
def test_the_folder_is_named_as_python_names_folders(foreign, folder, spelled):
    with publish("kv/0", foreign, spelled(folder)):
        assert vs.broker.list(directory=folder) == [{"name": "kv/0", "nbytes": 4096}]
        assert vs.broker.list(directory=spelled(folder)) == vs.broker.list(directory=folder)
        with vs.broker.fetch_handles("kv/0", directory=spelled(folder)) as handles:
            assert handles.nbytes == 4096


@pytest.mark.parametrize("umask", [0, 0o177, 0o777])
def test_the_folder_is_its_users_whatever_the_umask(foreign, folder, umask):
    before = os.umask(umask)
    try:
        published = publish("kv/0", foreign, folder)
    finally:
        os.umask(before)
    with published:
        made = os.stat(vmmshare._broker_entries.folder_of(folder))
        assert stat.S_IMODE(made.st_mode) == 0o700


def test_what_is_no_folder_is_refused(foreign):
    for directory, error, says in ((5, TypeError, "os.PathLike"), (b"a\0b", ValueError, "NUL"),
                                   (pathlib.Path("a\0b"), vs.errors.InvalidArgument, "NUL")):
        for use in (lambda: publish("kv/0", foreign, directory),
                    lambda: vs.broker.fetch("kv/0", directory=directory),
                    lambda: vs.broker.list(directory=directory)):
            with pytest.raises(error, match=says):
                use()


def test_a_descriptor_is_had_by_the_name(foreign, folder, peer):
    """As LMCache's wrapper wants it: it imports and maps it by calls of its own."""
    peer("import raw_import; raw_import.use_device(0)")
    key = bytes(range(16))
    with publish(key, foreign, folder) as published:
        peer(f"handles = vs.broker.fetch_handles({key!r}, directory={folder!r})")
        assert peer("handles.chunks, handles.nbytes, handles.recalled_in") == (1, 4096, None)
        peer("descriptor, size = handles.take()")
        with pytest.raises(conftest.PeerRaised, match="FailedPrecondition.*was taken"):
            peer("handles.take()")
        with pytest.raises(conftest.PeerRaised, match="OutOfRange"):
            peer("handles.take(1)")
        assert peer("raw_import.bytes_behind(descriptor, size, handles.offset, 4096)"
                    ) == foreign.tobytes()
        # Asked for, and given back when the other software let go.
        assert [one["state"] for one in published.leases()] == ["held"]
        published.recall(60)
        with pytest.raises(vs.errors.DeadlineExceeded):
            published.wait_returned(0.01)
        assert 0 < peer("handles.recalled_in") <= 60
        peer("handles.close()")
        published.wait_returned()


def test_the_holder_dies(foreign, folder, peer):
    with publish("kv", foreign, folder) as published:
        peer(f"handles = vs.broker.fetch_handles('kv', directory={folder!r})")
        peer(f"theirs = vs.broker.fetch('kv', directory={folder!r})")
        assert len(published.leases()) == 2
        peer.kill()
        published.wait_returned()


def owner(peer, folder, name="kv", byte=3):
    peer("whole = vs.Allocation(nbytes=4 << 20, host_node=0)")
    peer(f"np.from_dlpack(whole.array(4 << 20, 'uint8'))[:] = {byte}")
    peer(f"published = vs.broker.publish({name!r}, whole, directory={folder!r})")


def test_the_owner_dies_and_its_name_is_free(foreign, folder, peer):
    owner(peer, folder)
    with pytest.raises(vs.errors.AlreadyExists, match="'kv' is published already"):
        publish("kv", foreign, folder)
    theirs = vs.broker.fetch("kv", directory=folder)
    array = np.from_dlpack(theirs.array(100, "uint8"))
    peer.kill()
    with pytest.raises(vs.errors.NotFound, match="'kv' was published, and its owner has ended"):
        vs.broker.fetch("kv", directory=folder)
    with pytest.raises(vs.errors.NotFound, match="its owner has ended"):
        vs.broker.fetch_handles("kv", directory=folder)
    assert array.tolist() == [3] * 100  # What is mapped stays.
    with pytest.raises(vs.errors.Unavailable):
        assert theirs.recalled_in is None
    with publish("kv", foreign, folder):
        with vs.broker.fetch("kv", directory=folder) as again:
            assert np.array_equal(np.from_dlpack(again.array(4096, "uint8")), foreign)


def test_an_owner_that_is_stopped_has_its_name(foreign, folder, peer):
    owner(peer, folder)
    peer.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)
    with pytest.raises(vs.errors.AlreadyExists):
        publish("kv", foreign, folder)
    with pytest.raises(vs.errors.DeadlineExceeded):
        vs.broker.fetch("kv", directory=folder, timeout=0.05)
    peer.process.send_signal(signal.SIGCONT)


def test_a_forked_child_does_not_keep_the_name(foreign, folder, peer):
    owner(peer, folder)
    peer("import os, signal")
    peer("begin, end = os.pipe()")
    peer("child = os.fork() or (os.write(end, b'x'), signal.pause())")
    peer("os.read(begin, 1)")
    child = peer("child")
    try:
        peer.kill()
        with publish("kv", foreign, folder):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


# In the peer: a thread that forks while another one is in meet().
FORKER = """
import fcntl, os, signal, threading
inside, forked = threading.Event(), threading.Event()
begin, end = os.pipe()

def fork():
    global child
    inside.wait(60)
    child = os.fork() or (os.write(end, b'x'), signal.pause())
    forked.set()

def meet():
    inside.set()
    forked.wait(1)  # No longer: the fork may wait for who is in here.

forker = threading.Thread(target=fork)
forker.start()
"""


@pytest.mark.parametrize("when", ["publishes", "closes"])
def test_a_child_forked_while_a_thread_publishes_or_closes_does_not_keep_the_name(
        foreign, folder, peer, when):
    peer(f"exec({FORKER!r})")
    if when == "publishes":
        peer("flock = fcntl.flock")
        peer("fcntl.flock = lambda *given: (flock(*given), meet())")
        owner(peer, folder)
    else:
        owner(peer, folder)
        peer("os.unlink = lambda path: meet()")  # As of one that is killed before it.
        peer("published.close()")
    peer("forker.join()")
    child = peer("child")
    try:
        peer("os.read(begin, 1)")
        peer.kill()
        with publish("kv", foreign, folder):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_collected_while_another_thread_forks_is_closed_after_that(foreign, folder):
    holds, ends = threading.Event(), threading.Event()

    def hold():
        with vmmshare._broker_entries.no_fork():
            holds.set()
            ends.wait(60)

    published = publish("kv", foreign, folder)
    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(60)
    del published  # Without a wait for the other thread.
    assert [one["name"] for one in vs.broker.list(directory=folder)] == ["kv"]
    ends.set()
    holder.join()
    assert vs.broker.list(directory=folder) == []


def test_an_entry_that_somebody_removed(foreign, folder):
    first = publish("kv", foreign, folder)
    path, = pathlib.Path(folder, f"broker-{os.geteuid()}").iterdir()
    path.unlink()
    with publish("kv", foreign, folder):
        first.close()  # It is another's by now.
        vs.broker.fetch("kv", directory=folder).close()
        path.unlink()


def test_an_owner_whose_sockets_folder_was_removed_publishes_anew(foreign, folder, peer):
    publish("kv", foreign, folder).close()
    shutil.rmtree(folder)
    os.mkdir(folder, 0o700)
    with publish("kv", foreign, folder):
        assert peer(f"vs.broker.fetch('kv', directory={folder!r}).nbytes") == 4096


def test_a_close_that_the_system_refuses_serves_it_no_more_and_lets_go_of_the_name(foreign, folder):
    published = publish("kv", foreign, folder)
    entries = pathlib.Path(folder, f"broker-{os.geteuid()}")
    text = json.loads((entries / "id-kv").read_bytes())["text"]
    vs.connect(text).close()
    away = entries.rename(entries.with_name("away"))
    entries.touch()
    with pytest.raises(NotADirectoryError):
        published.close()
    with pytest.raises(vs.errors.NotFound):
        vs.connect(text)
    with open(away / "id-kv") as entry:
        fcntl.flock(entry, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Nobody has it.
    published.close()  # As of what is closed.


def interrupted(call, after):
    """Has an interrupt come in it when so many functions have returned, as Ctrl-C comes then;
    returns what it returned, None if it was interrupted."""
    left = after

    def count(frame, event, _):
        nonlocal left
        if event == "c_return" or event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt  # Once: nobody is called after that.

    sys.setprofile(count)
    try:
        return call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)


def test_an_interrupt_in_publish_or_close_loses_no_name(foreign, folder):
    was_interrupted = []
    memory = vs.adopt(foreign.ctypes.data, foreign.nbytes)
    for after in itertools.count():
        done = interrupted(lambda: vs.broker.publish("kv", memory, directory=folder), after)
        if done is not None:
            break
        vs.broker.publish("kv", memory, directory=folder).close()
        was_interrupted.append("publish")
    for after in itertools.count():
        if interrupted(lambda: done.close() or "closed", after):
            break
        done.close()
        done = vs.broker.publish("kv", memory, directory=folder)
        was_interrupted.append("close")
    assert len(was_interrupted) > 20 and set(was_interrupted) == {"publish", "close"}
    assert vs.broker.list(directory=folder) == []


def test_a_close_that_was_interrupted_serves_it_no_more_when_it_is_called_again(
        foreign, folder, monkeypatch):
    def interrupt(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    published = publish("kv", foreign, folder)
    entry = pathlib.Path(folder, f"broker-{os.geteuid()}", "id-kv")
    text = json.loads(entry.read_bytes())["text"]
    monkeypatch.setattr(vmmshare._broker_entries.Entry, "withdraw", interrupt)
    with pytest.raises(KeyboardInterrupt):
        published.close()
    published.close()
    assert not entry.exists()
    with pytest.raises(vs.errors.NotFound):
        vs.connect(text)


def test_what_cannot_be_published_for_want_of_room_is_not_served(foreign, folder, monkeypatch):
    with publish("kv", foreign, folder):
        shares, dumps = [], json.dumps

        def no_room(what):
            shares.append(what["text"])
            raise OSError(errno.ENOSPC, dumps(what))

        monkeypatch.setattr(json, "dumps", no_room)
        try:
            publish("kv2", foreign, folder)
        except OSError:
            with pytest.raises(vs.errors.NotFound):  # While it is handled, too.
                vs.connect(shares[0])
        assert shares and not pathlib.Path(folder, f"broker-{os.geteuid()}", "id-kv2").exists()


def test_of_many_who_publish_a_name_one_has_it(foreign, folder):
    for _ in range(30):
        barrier, had, refused = threading.Barrier(4), [], []

        def run():
            memory = vs.adopt(foreign.ctypes.data, 64)
            barrier.wait(30)
            try:
                had.append(vs.broker.publish("kv", memory, directory=folder))
            except vs.errors.AlreadyExists as why:
                refused.append(why)

        contend(run)
        assert (len(had), len(refused)) == (1, 3)
        had[0].close()


def contend(run):
    import vmmshare.testing
    calls = ctypes.CDLL(vmmshare.testing.host_driver())
    current = ctypes.c_void_p()
    assert calls.cuCtxGetCurrent(ctypes.byref(current)) == 0

    def with_context():
        assert calls.cuCtxSetCurrent(current) == 0
        run()

    threads = [threading.Thread(target=with_context) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_name_changes_hands_and_readers_have_one_of_both(foreign, folder):
    """Publishing and closing over and over: whoever fetches has the memory, or is told."""
    stop, seen, failed = threading.Event(), [0, 0], []

    def read():
        while not stop.is_set():
            try:
                with vs.broker.fetch("kv", directory=folder) as theirs:
                    seen[0] += 1
                    if int(np.from_dlpack(theirs.array(1, "uint8"))[0]) != int(foreign[0]):
                        failed.append("other bytes")
            except vs.errors.NotFound:
                seen[1] += 1
            except Exception as why:  # Anything else is none of both.
                failed.append(repr(why))
                return

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 60
    while min(seen) < 5 and not failed and time.monotonic() < deadline:
        publish("kv", foreign, folder).close()
        with publish("kv", foreign, folder):
            publish("other", foreign, folder).close()
    stop.set()
    reader.join()
    assert not failed and min(seen) >= 5, (failed, seen)


def test_many_names(foreign, folder):
    published = [publish(f"layer/{i}", foreign[8 * i:], folder) for i in range(100)]
    assert len(vs.broker.list(directory=folder)) == 100
    for i in range(0, 100, 9):
        with vs.broker.fetch(f"layer/{i}", directory=folder) as theirs:
            assert np.from_dlpack(theirs.array(8, "uint8")).tolist() == foreign[8 * i:][:8].tolist()
    for one in published:
        one.close()
    assert vs.broker.list(directory=folder) == []


@pytest.mark.parametrize("order", ["1,0", "1"])
def test_with_another_order_of_devices(cuda, folder, order):
    """The owner's device 0 is another number there, or is not seen there at all."""
    with vs.Allocation(1, nbytes=4096) as memory:
        text, current = (ctypes.c_char * 9)(*b"of a GPU"), ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 1) == 0
        assert cuda.cuCtxSetCurrent(current) == 0
        assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(memory.ptr), text, ctypes.c_size_t(9)) == 0
        uuid = vs.devices()[1].uuid
        with vs.broker.publish("kv", memory, directory=folder), \
                contexts(CUDA_VISIBLE_DEVICES=order) as peer:
            peer("import raw_import; raw_import.use_device(0)")
            assert peer("vs.devices()[0].uuid") == uuid
            peer(f"theirs = vs.broker.fetch('kv', directory={folder!r})")
            assert peer("theirs.array(9, 'uint8').__dlpack_device__()") == (2, 0)
            peer("import ctypes; back = ctypes.create_string_buffer(9)")
            assert peer("raw_import.cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(theirs.ptr), "
                        "ctypes.c_size_t(9))") == 0
            assert peer("back.value") == b"of a GPU"
            peer(f"handles = vs.broker.fetch_handles('kv', directory={folder!r})")
            peer("descriptor, size = handles.take()")
            assert peer("raw_import.bytes_behind(descriptor, size, handles.offset, 8)"
                        ) == b"of a GPU"
    assert cuda.cuDevicePrimaryCtxRelease_v2(1) == 0


def test_without_a_shared_namespace_of_processes(foreign, folder):
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"unshare --pid is not allowed here: {tried.stderr.strip()}")
    with publish("kv", foreign, folder) as published, contexts(*words) as peer:
        peer("import os")
        assert peer("os.getpid()") < 10
        peer("import raw_import; raw_import.use_device(0)")
        peer(f"theirs = vs.broker.fetch('kv', directory={folder!r})")
        assert peer("np.from_dlpack(theirs.array(4096, 'uint8')).tobytes()") == foreign.tobytes()
        peer(f"handles = vs.broker.fetch_handles('kv', directory={folder!r})")
        peer("descriptor, size = handles.take()")
        assert peer("raw_import.bytes_behind(descriptor, size, handles.offset, 99)"
                    ) == foreign.tobytes()[:99]
        assert len(published.leases()) == 2
        published.recall(60)
        assert peer("0 < theirs.recalled_in <= 60")
        peer("handles.close(); theirs.close()")
        published.wait_returned()
        # And the other way round: who lives there publishes.
        owner(peer, folder, "theirs", 9)
        with vs.broker.fetch("theirs", directory=folder) as memory:
            assert int(np.from_dlpack(memory.array(1, "uint8"))[0]) == 9


def test_what_is_no_entry(foreign, folder):
    with publish("kv", foreign, folder):
        path, = pathlib.Path(folder, f"broker-{os.geteuid()}").iterdir()
        good = path.read_bytes()
        said = json.loads(good)
        for bad in (b"{\n", b"[]\n", b"\xff\n", b"[" * 3000 + b"\n",
                    *(json.dumps({**said, **change}).encode() + b"\n"
                      for change in ({"offset": -1}, {"offset": "1"}, {"nbytes": 2**63},
                                     {"nbytes": 4 << 20}, {"text": 1}, {"text": "no"},
                                     {"name": "other"}, {"offset": True}))):
            path.write_bytes(bad)
            with pytest.raises(vs.errors.InvalidArgument):
                vs.broker.fetch("kv", directory=folder)
        path.write_bytes(json.dumps({**said, "text": "\ud800"}).encode() + b"\n")
        for look in (vs.broker.fetch, vs.broker.fetch_handles):
            with pytest.raises(vs.errors.InvalidArgument, match="surrogates"):
                look("kv", directory=folder)
        for cut in range(len(good)):
            path.write_bytes(good[:cut])
            with pytest.raises(vs.errors.NotFound, match="is not published"):
                vs.broker.fetch("kv", directory=folder)
        path.write_bytes(good)
        vs.broker.fetch("kv", directory=folder).close()
        path.chmod(0o640)
        with pytest.raises(vs.errors.PermissionDenied, match="640"):
            vs.broker.fetch("kv", directory=folder)
        path.chmod(0o600)
        if os.geteuid() == 0:  # Who else can give a file away?
            os.chown(path, 4711, -1)
            with pytest.raises(vs.errors.PermissionDenied, match="user 4711"):
                vs.broker.fetch("kv", directory=folder)
            os.chown(path, 0, -1)
        path.parent.chmod(0o770)
        with pytest.raises(vs.errors.PermissionDenied, match="770"):
            publish("kv2", foreign, folder)
        for look in (vs.broker.fetch, vs.broker.fetch_handles):
            with pytest.raises(vs.errors.PermissionDenied, match="770"):
                look("kv", directory=folder)
        with pytest.raises(vs.errors.PermissionDenied, match="770"):
            vs.broker.list(directory=folder)
        path.parent.chmod(0o700)
        os.chmod(folder, 0o1777)  # As /tmp is; the entries' own folder in it is closed.
        vs.broker.fetch("kv", directory=folder).close()
        assert [one["name"] for one in vs.broker.list(directory=folder)] == ["kv"]


def test_a_bad_entry_ends_no_list(foreign, folder, monkeypatch):
    with publish("a", foreign, folder), publish("z", foreign, folder):
        entries = pathlib.Path(folder, f"broker-{os.geteuid()}")
        said = (entries / "id-a").read_bytes()
        (entries / "a").write_bytes(said)  # No entry, and "a" is there once.
        for name, mode in (("open", 0o644), ("closed", 0), ("mine", 0o600)):
            (entries / f"id-{name}").write_bytes(said.replace(b'"a"', b'"%s"' % name.encode()))
            (entries / f"id-{name}").chmod(mode)
        expected = ["a", "mine", "z"]
        if os.geteuid() == 0:  # Who else can give a file away? Nor does a mode hold up this user.
            os.chown(entries / "id-mine", 4711, -1)
            expected = ["a", "closed", "z"]
        assert [one["name"] for one in vs.broker.list(directory=folder)] == expected

        def no_more(*_):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(vs.broker.os, "open", no_more)
            with pytest.raises(OSError, match="Too many open files"):  # Not a part of them.
                vs.broker.list(directory=folder)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [
    lambda path: os.mkfifo(path, 0o600), lambda path: path.mkdir(0o700), make_socket,
    lambda path: path.symlink_to(path.with_name("id-good"))])
def test_what_is_no_file_holds_nobody_up(foreign, folder, peer, make):
    with publish("good", foreign, folder):
        make(pathlib.Path(folder, f"broker-{os.geteuid()}", "id-kv"))
        # Elsewhere, where it can be ended should it not return.
        watchdog = threading.Timer(30, peer.kill)
        watchdog.start()
        for call in ("fetch", "fetch_handles"):
            with pytest.raises(conftest.PeerRaised, match="InvalidArgument.*no file"):
                peer(f"vs.broker.{call}('kv', directory={folder!r}, timeout=1)")
        assert peer(f"vs.broker.list(directory={folder!r})") == [{"name": "good", "nbytes": 4096}]
        watchdog.cancel()


def test_a_name_is_not_published_in_what_is_no_file(foreign, folder):
    with publish("good", foreign, folder):
        fifo = pathlib.Path(folder, f"broker-{os.geteuid()}", "id-kv")
        os.mkfifo(fifo, 0o600)
        with pytest.raises(vs.errors.InvalidArgument, match="no file"):
            publish("kv", foreign, folder)
        fifo.unlink()
        publish("kv", foreign, folder).close()


def test_what_cannot_be_published(foreign, folder, peer):
    for name in ("", "a b", "a" * 129, "a%", "\n", "é"):
        with pytest.raises(vs.errors.InvalidArgument, match="is no name"):
            publish(name, foreign, folder)
        with pytest.raises(vs.errors.InvalidArgument, match="is no name"):
            vs.broker.fetch(name, directory=folder)
    with pytest.raises(TypeError):
        vs.broker.publish(7, vs.adopt(foreign.ctypes.data, 8), directory=folder)
    with pytest.raises(TypeError, match="adopt"):
        vs.broker.publish("kv", foreign, directory=folder)
    owner(peer, folder)
    with vs.broker.fetch("kv", directory=folder) as theirs:
        with pytest.raises(vs.errors.FailedPrecondition):  # What was imported is another's.
            vs.broker.publish("mine", theirs.memory, directory=folder)
    for name in (".", "..", "../kv", "/kv"):  # None of these leaves the folder.
        with publish(name, foreign, folder):
            vs.broker.fetch(name, directory=folder).close()
    assert vs.broker.list(directory=folder) == [{"name": "kv", "nbytes": 4 << 20}]


def test_the_users_own_folder(foreign, monkeypatch, folder):
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.delenv("NVIDIA_DRA_LOCAL_IPC_DIR", raising=False)
    with vs.broker.publish("kv", vs.adopt(foreign.ctypes.data, 64)):
        assert pathlib.Path(folder, "vmmshare", f"broker-{os.geteuid()}", "id-kv").exists()
        vs.broker.fetch("kv").close()
