"""Two processes."""

import os
import shutil
import tempfile
import threading
import time

import numpy as np
import pytest

import vmmshare as vs
from conftest import PeerRaised


def test_a_block_is_seen_by_another_process(pool, peer):
    with vs.serve(pool) as share, pool.empty((3, 4), "float64") as array:
        np.from_dlpack(array)[:] = np.arange(12).reshape(3, 4)
        peer(f"theirs = vs.connect({str(share)!r}, writable=True)")
        peer(f"array = np.from_dlpack(theirs.open({array.ticket()!r}))")
        assert peer("array.tolist()") == np.arange(12).reshape(3, 4).tolist()
        peer("array[1] = -1")
        assert np.from_dlpack(array)[1].tolist() == [-1] * 4
        lease, = pool.leases()
        assert lease["process"] == peer.process.pid and lease["state"] == "held"
        peer("del array")
        pool.wait_returned(timeout=10)
        assert pool.leases() == []


def test_who_serves_after_the_sockets_folder_was_removed_is_reached(pool, peer, monkeypatch):
    folder = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
    monkeypatch.setattr(vs, "_server", None)
    monkeypatch.delenv("NVIDIA_DRA_LOCAL_IPC_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with vs.serve(pool) as before:
        shutil.rmtree(folder)  # As at the end of the user's last login.
        os.mkdir(folder, 0o700)
        with pytest.raises(PeerRaised, match="NotFound"):
            peer(f"vs.connect({str(before)!r}, timeout=10)")
        with vs.serve(pool) as share, vs.serve(pool) as another:
            peer(f"one, other = [vs.connect(each) for each in {[str(share), str(another)]}]")
            peer("one.close(); other.close()")
        assert len(os.listdir(f"{folder}/vmmshare")) == 1  # One server has both.
    shutil.rmtree(folder)


def test_what_a_peer_holds_is_not_used_again(pool, peer):
    with vs.serve(pool) as share:
        array = pool.empty(1000, "uint8")
        np.from_dlpack(array)[:] = 1
        peer(f"theirs = vs.connect({str(share)!r})")
        peer(f"held = np.from_dlpack(theirs.open({array.ticket()!r}))")
        array.close()
        others = [pool.empty(1000, "uint8") for _ in range(100)]
        for other in others:
            np.from_dlpack(other)[:] = 2
        assert peer("int(held.sum())") == 1000
        for other in others:
            other.close()
        del other, others


def test_a_peer_that_is_killed_gives_back(pool, peer):
    with vs.serve(pool) as share, pool.empty(10, "int8") as array:
        peer(f"theirs = vs.connect({str(share)!r})")
        peer(f"held = theirs.open({array.ticket()!r})")
        assert len(pool.leases()) == 1
        peer.kill()
        pool.wait_returned(timeout=20)
        assert pool.leases() == []


def test_an_owner_that_is_killed_leaves_what_is_open(driver, peer):
    text = peer("pool = vs.Pool(host_node=0)\nshare = vs.serve(pool)") or peer("str(share)")
    peer("own = pool.empty(10, 'int8')\nnp.from_dlpack(own)[:] = 6")
    ticket = peer("own.ticket()")
    theirs = vs.connect(text)
    view = np.from_dlpack(theirs.open(ticket))
    theirs.check()
    peer.kill()
    assert view.tolist() == [6] * 10
    deadline = time.monotonic() + 20
    with pytest.raises(vs.errors.Unavailable):
        while time.monotonic() < deadline:
            theirs.check()
            time.sleep(0.01)
    with pytest.raises(vs.errors.NotFound):
        vs.connect(text, timeout=5)


def test_recall(pool, peer):
    with vs.serve(pool) as share, pool.empty(10, "int8") as array:
        peer(f"theirs = vs.connect({str(share)!r})")
        peer(f"held = theirs.open({array.ticket()!r})")
        assert peer("theirs.recalled()") == []
        pool.recall(within=30)
        deadline = time.monotonic() + 20
        while not peer("theirs.recalled()") and time.monotonic() < deadline:
            pass
        assert peer("theirs.recalled() == [held.ptr]")
        with pytest.raises(vs.errors.DeadlineExceeded, match=str(peer.process.pid)) as raised:
            pool.wait_returned(timeout=0.05)
        assert isinstance(raised.value, TimeoutError)
        peer("held.close()")
        pool.wait_returned(timeout=20)


def test_a_recall_calls_back(pool, peer):
    with vs.serve(pool) as share, pool.empty(10, "int8") as one, pool.empty(10, "int8") as two:
        peer(f"theirs = vs.connect({str(share)!r})")
        peer(f"held = {{a.ptr: a for a in map(theirs.open, [{one.ticket()!r}, {two.ticket()!r}])}}")
        peer("import threading; done = threading.Event()")
        peer("let_go = lambda addresses: ([held.pop(a).close() for a in addresses], done.set())")
        peer("thread = vs.on_recall(theirs, let_go)")
        pool.recall(within=30)
        pool.wait_returned(timeout=30)  # Only the callback lets go.
        assert peer("done.wait(30), held") == (True, {})
        peer("theirs.close()")
        peer("thread.join(30)")
        assert not peer("thread.is_alive()")


def test_a_watch_ends_with_the_owner(driver, peer):
    text = peer("pool = vs.Pool(host_node=0)\nshare = vs.serve(pool)") or peer("str(share)")
    theirs = vs.connect(text)
    with pytest.raises(vs.errors.DeadlineExceeded):
        theirs._wait_recalled(0, 0.01)
    thread = vs.on_recall(theirs, print)
    peer.kill()
    thread.join(30)
    assert not thread.is_alive()


def test_an_allocation_is_shared(driver, peer):
    server = vs.Server()
    with vs.Allocation(nbytes=100, host_node=0) as memory, server.share(memory) as share:
        np.from_dlpack(memory.array(100, "uint8"))[:] = 4
        peer(f"theirs = vs.connect({str(share)!r})")
        assert peer("int(np.from_dlpack(theirs.array(100, 'uint8')).sum())") == 400
        assert peer("(theirs.readonly, theirs.nbytes, theirs.recalled_in)") == (True, 100, None)
        server.recall(memory, within=30)
        deadline = time.monotonic() + 20
        while peer("theirs.recalled_in") is None and time.monotonic() < deadline:
            pass
        assert 0 < peer("theirs.recalled_in") <= 30
        assert len(server.leases()) == 1
        peer("theirs.close()")
        server.wait_returned(timeout=20)
        with pytest.raises(vs.errors.FailedPrecondition):
            memory.recalled_in


def test_fences_order_two_processes(pool, peer):
    with vs.FencePool() as fences, vs.serve(fences) as fences_share, vs.serve(pool) as share:
        fence = fences.new()
        array = pool.empty(4, "int32")
        peer(f"fences = vs.connect_fences({str(fences_share)!r})")
        peer(f"fence = fences.open({fence.ticket()!r})")
        peer(f"theirs = vs.connect({str(share)!r})")
        peer(f"array = theirs.open({array.ticket()!r}, fence=fence, value=1)")
        np.from_dlpack(array)[:] = 8
        fence.signal(1)
        # Whoever takes the array waits for the fence.
        assert peer("np.from_dlpack(array).tolist()") == [8] * 4
        peer("fence.signal(2)")
        fence.wait(2, timeout=10)
        assert fence.value == 2
        peer("del array, fence")
        array.close()


def test_the_end_of_its_owner_ends_a_wait_for_a_fence(driver, peer):
    text = peer("fences = vs.FencePool(); share = vs.serve(fences)") or peer("str(share)")
    with vs.connect_fences(text) as theirs:
        fence = theirs.open(peer("fence = fences.new()") or peer("fence.ticket()"))
        peer("share.close()")  # Who has it keeps it, and the owner signals it still.
        with pytest.raises(vs.errors.DeadlineExceeded):
            fence.wait(1, timeout=0.2)
        peer("fence.signal(1)")
        fence.wait(1, timeout=20)
        theirs.check()
        peer.kill()
        with pytest.raises(vs.errors.Unavailable):
            fence.wait(2, timeout=None)
        fence.wait(1, timeout=None)  # It was signalled before.
        with pytest.raises(vs.errors.Unavailable):
            theirs.check()


def test_an_owner_that_closes_its_fences_and_their_pool_ends_a_wait_for_them(driver, peer):
    peer("fences = vs.FencePool(); share = vs.serve(fences)")
    peer("pool = vs.Pool(host_node=0); pools = vs.serve(pool); array = pool.empty(3, 'uint8')")
    text = peer("[str(share), str(pools)]")
    with vs.connect_fences(text[0]) as theirs, vs.connect(text[1]) as remote:
        peer("fence, other = fences.new(), fences.new()")
        fence = theirs.open(peer("fence.ticket()"))
        array = remote.open(peer("array.ticket()"), fence=fence, value=1)
        peer("share.close(); fences.close(); fence.close()")  # As `with` does when it is left.
        theirs.check()
        with pytest.raises(vs.errors.DeadlineExceeded):  # Another fence keeps the pool.
            fence.wait(1, timeout=0.2)
        peer("other.close()")
        with pytest.raises(vs.errors.Unavailable):
            fence.wait(1, timeout=60)
        with pytest.raises(vs.errors.Unavailable):
            theirs.check()
        with pytest.raises(vs.errors.Unavailable):
            np.from_dlpack(array)
        array.close()


@pytest.mark.parametrize("where, take", [
    ("host_node=0", lambda array, address: np.from_dlpack(array)),
    ("host_node=0", lambda array, address: np.from_dlpack(array.view(2, "uint8", 1))),
    ("host_node=0", lambda array, address: vs.weights.put("late", {"a": array}, host_node=0,
                                                          address=address, timeout=None)),
    ("device=0", lambda array, address: vs.serve_array(array, copy=True, timeout=None))],
    ids=["from_dlpack", "a view", "weights.put", "serve_array"])
def test_the_end_of_who_fills_an_array_ends_the_wait_for_it(cuda, keeper, peer, where, take):
    """Its fence is never signalled."""
    peer(f"pool, fences = vs.Pool({where}), vs.FencePool()")
    peer("served, fence, array = (vs.serve(pool), vs.serve(fences)), fences.new(), "
         "pool.empty(3, 'uint8')")
    texts, tickets = peer("[str(one) for one in served], (array.ticket(), fence.ticket())")
    ended = []

    def work():
        try:
            take(array, keeper.address)
            ended.append("taken")
        except Exception as error:
            ended.append(type(error))

    with vs.connect(texts[0]) as remote, vs.connect_fences(texts[1]) as fences:
        array = remote.open(tickets[0], fence=fences.open(tickets[1]), value=1)
        thread = threading.Thread(target=work, daemon=True)  # It may wait for ever.
        thread.start()
        peer.kill()
        thread.join(60)
        assert ended == [vs.errors.Unavailable]
        array.close()


def test_an_allocation_knows_who_holds_it_and_calls_them_back(driver, peer):
    with vs.Allocation(nbytes=100, host_node=0) as memory:
        with vs.Allocation(nbytes=100, host_node=0) as other:
            assert memory.leases() == []
            memory.wait_returned(timeout=0)
            with vs.serve(memory) as share, vs.serve(other) as others, vs.connect(str(others)):
                peer(f"theirs = vs.connect({str(share)!r})")
                peer("import threading; asked = []; done = threading.Event()")
                peer("let_go = lambda addresses: (asked.extend(addresses), done.wait(60),"
                     " theirs.close())")
                peer("ptr = theirs.ptr; thread = vs.on_recall(theirs, let_go)")
                lease, = memory.leases()
                assert (lease["process"], lease["state"]) == (peer.process.pid, "held")
                memory.recall(within=30)
                assert memory.leases()[0]["state"] == "recalled"
                assert other.leases()[0]["state"] == "held"
                with pytest.raises(vs.errors.DeadlineExceeded, match=str(peer.process.pid)):
                    memory.wait_returned(timeout=0.2)
                peer("done.set()")
                memory.wait_returned(timeout=30)  # Only the callback lets go.
                peer("thread.join(30)")
                assert peer("asked == [ptr]") and memory.leases() == []
                assert len(other.leases()) == 1
        for use in (lambda: vs.on_recall(memory, print), lambda: memory.recall(within=-1)):
            with pytest.raises((vs.errors.FailedPrecondition, ValueError)):
                use()


def test_the_keeper_by_one_call_each(keeper):
    with vs.Allocation(nbytes=100, host_node=0) as memory:
        np.from_dlpack(memory.array(100, "uint8"))[:] = 3
        vs.keeper.put("weights", memory, address=keeper.address, seal=True)
        with pytest.raises(vs.errors.AlreadyExists):
            vs.keeper.put("weights", memory, address=keeper.address)
        with pytest.raises(TypeError, match="not a Array: make a vmmshare.Allocation"):
            vs.keeper.put("array", memory.array(100, "uint8"), address=keeper.address)
    with vs.keeper.attach("weights", address=keeper.address, timeout=None) as theirs:
        assert np.from_dlpack(theirs.array(100, "uint8")).sum() == 300
    with pytest.raises(vs.errors.FailedPrecondition):
        vs.keeper.attach("weights", address=keeper.address, writable=True)
    entry, = vs.keeper.list(address=keeper.address)
    assert entry["name"] == "weights" and entry["state"] == "sealed"
    assert entry["host_node"] == 0 and entry["allocated_bytes"] >= entry["bytes"] > 0
    assert entry["user"] == str(os.geteuid()) and abs(entry["since"] - time.time()) < 600
    assert entry["outlives_creator"] and not entry["survives_restart"]
    vs.keeper.drop("weights", address=keeper.address)
    with pytest.raises(vs.errors.NotFound):
        vs.keeper.attach("weights", address=keeper.address)
    keeper.stop()
    with pytest.raises(vs.errors.DeadlineExceeded):
        vs.keeper.list(address=keeper.address, timeout=0.2)


def test_a_call_to_the_keeper_has_one_timeout_for_all_it_does(driver, monkeypatch):
    given = []

    class Slow:
        def __init__(self, address, timeout):
            given.append(timeout)

        def __enter__(self):
            return self

        def __exit__(self, *args):
            pass

        def put(self, name, allocation, timeout):
            given.append(timeout)
            time.sleep(0.2)

        def seal(self, name, timeout):
            given.append(timeout)

    monkeypatch.setattr(vs.keeper, "Keeper", Slow)
    vs.keeper.put("slow", vs.Allocation(host_node=0, nbytes=1), seal=True, timeout=5)
    assert given[0] == 5 and given[1] <= 5 and 0 < given[2] <= 4.8
    given.clear()
    vs.keeper.put("slow", vs.Allocation(host_node=0, nbytes=1), seal=True, timeout=None)
    assert given == [None] * 3


@pytest.mark.parametrize("writable", [False, True])
def test_the_keeper_outlives_the_creator(keeper, peer, writable):
    peer("memory = vs.Allocation(nbytes=100, host_node=0)")
    peer("np.from_dlpack(memory.array(100, 'uint8'))[:] = 3")
    peer(f"keeper = vs.Keeper({keeper.address!r})")
    peer("keeper.put('weights', memory)")
    if not writable:
        peer("keeper.seal('weights')")
    peer.kill()
    with vs.Keeper(keeper.address) as client:
        entry, = client.list()
        assert entry["name"] == "weights" and entry["bytes"] == 100
        with client.attach("weights", writable=writable) as memory:
            assert np.from_dlpack(memory.array(100, "uint8")).sum() == 300
        with pytest.raises(vs.errors.NotFound):
            client.attach("others")
        if not writable:
            with pytest.raises(vs.errors.FailedPrecondition):
                client.attach("weights", writable=True)
        client.drop("weights")
        assert client.list() == []


def test_the_writer_lock_is_one_connections_at_a_time(keeper, driver):
    memory = vs.Allocation(nbytes=100, host_node=0)
    with vs.Keeper(keeper.address) as writer, vs.Keeper(keeper.address) as other:
        writer.put("weights", memory)  # With the lock.
        with pytest.raises(vs.errors.DeadlineExceeded, match="process"):
            other.lock("weights", timeout=0)
        with pytest.raises(vs.errors.FailedPrecondition):
            other.unlock("weights")
        writer.unlock("weights")
        other.lock("weights", timeout=10)
        entry, = other.list()
        assert entry["state"] == "locked" and entry["holder"] == os.getpid()
        other.unlock("weights")
        assert writer.list()[0]["state"] == "writable"
        with pytest.raises(vs.errors.FailedPrecondition):
            writer.seal("weights")
        writer.lock("weights", timeout=10)
        writer.seal("weights")
        writer.drop("weights")


def test_no_keeper(driver):
    with pytest.raises(vs.errors.NotFound):
        vs.Keeper("/tmp/vmmshare-no-such-keeper/k", timeout=1)
