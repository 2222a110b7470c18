"""Exchanges of a job over stores of keys and values."""

import ctypes
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

import vmmshare as vs
import vmmshare.job
from threads import on_a_thread


class Store:
    """As torch.distributed has them."""

    def __init__(self):
        self.values, self.changed, self.sets = {}, threading.Condition(), 0

    def set(self, key, value):
        assert isinstance(key, str) and isinstance(value, bytes)
        with self.changed:
            self.values[key] = value
            self.sets += 1
            self.changed.notify_all()

    def wait(self, keys, timeout):
        assert isinstance(timeout, datetime.timedelta)
        assert timeout > datetime.timedelta(0)  # Which is for ever.
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys),
                                         timeout.total_seconds()):
                raise RuntimeError("Socket Timeout")

    def get(self, key):
        return self.values[key]

    def delete_key(self, key):
        with self.changed:
            return self.values.pop(key, None) is not None


def rounds_in(store):
    """Those of which keys are there: NAME/ROUND/RANK/KEY."""
    with store.changed:
        return {int(key.split("/")[1]) for key in store.values}


def write(cuda, address, number):
    value = ctypes.c_uint8(number)
    assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), ctypes.byref(value),
                                ctypes.c_size_t(1)) == 0


def read(cuda, address):
    value = ctypes.c_uint8()
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), ctypes.c_uint64(address),
                                ctypes.c_size_t(1)) == 0
    return value.value


def run(cuda, work, size):
    joins = [on_a_thread(cuda, lambda rank=rank: work(rank)) for rank in range(size)]
    return [join() for join in joins]


def expect_one_memory(cuda, parts):
    for memory in parts:
        write(cuda, memory.ptr(memory.rank), 7 + memory.rank)
    for memory in parts:
        assert [read(cuda, memory.ptr(rank)) for rank in range(memory.size)] == [
            7 + rank for rank in range(memory.size)]


def test_symmetric_memory_over_a_store_of_pytorchs(cuda):
    store = Store()
    parts = run(cuda, lambda rank: vs.SymmetricMemory(
        0, 1 << 20, vmmshare.job.store(store, rank, 3)), 3)
    expect_one_memory(cuda, parts)


def fence(ranks):
    joins = [threading.Thread(target=rank.fence, args=(60,)) for rank in ranks]
    for join in joins:
        join.start()
    for join in joins:
        join.join(60)


def test_a_fast_ranks_next_value_is_not_taken_for_the_last_one():
    store = Store()
    fast, slow = ranks = [vmmshare.job.store(store, rank, 2) for rank in range(2)]
    for number in range(8):
        for rank in ranks:
            rank.put("same", b"%d of %d" % (number, rank.rank))
        fence(ranks)
        # It has read what it wants, and is in the next round already.
        assert fast.get(1, "same") == b"%d of 1" % number
        fast.put("other", b"next")
        if number % 2:
            fast.put("same", b"next")
        assert slow.get(0, "same") == b"%d of 0" % number


def test_one_exchange_serves_many_memories_and_the_store_does_not_grow(cuda):
    store, kept = Store(), []

    def work(rank):
        exchange = vmmshare.job.store(store, rank, 3, name="a")
        get = exchange._get

        def slow(key, timeout):
            if rank == (exchange._round % 3):
                time.sleep(0.002)
            return get(key, timeout)

        exchange._get = slow
        for number in range(12):
            with vs.SymmetricMemory(0, 4096, exchange) as memory:
                write(cuda, memory.ptr(rank), 1 + rank + 3 * number)
                exchange.fence(60)
                found = [read(cuda, memory.ptr(other)) for other in range(3)]
                assert found == [1 + other + 3 * number for other in range(3)]
                exchange.fence(60)  # Nobody's part goes while others read it.
            kept.append(rounds_in(store))
        return True

    assert run(cuda, work, 3) == [True] * 3
    assert store.sets > 12 * 9
    # Three of each rank and one that is being withdrawn; ranks are a round apart.
    assert max(max(rounds) - min(rounds) for rounds in kept) <= 4
    last = rounds_in(store)
    assert min(last) > 12 * 2 and len(last) == 2, last


def test_two_exchanges_over_one_store(cuda):
    store = Store()
    first = run(cuda, lambda rank: vs.SymmetricMemory(
        0, 1 << 20, vmmshare.job.store(store, rank, 2, name="first")), 2)
    second = run(cuda, lambda rank: vs.SymmetricMemory(
        0, 2 << 20, vmmshare.job.store(store, rank, 2, name="second")), 2)
    expect_one_memory(cuda, first)
    expect_one_memory(cuda, second)


def test_ranks_that_do_not_come_are_named_in_time(cuda):
    store = Store()

    def work(rank):
        start = time.monotonic()
        with pytest.raises(vs.errors.DeadlineExceeded, match="ranks 1, 3 of 4 did not come"):
            vs.SymmetricMemory(0, 4096, vmmshare.job.store(store, rank, 4), timeout=0.5)
        assert 0.1 < time.monotonic() - start < 20
        return True

    joins = [on_a_thread(cuda, lambda rank=rank: work(rank)) for rank in (0, 2)]
    assert [join() for join in joins] == [True, True]


def test_a_rank_for_which_no_time_is_left_is_not_called_dead(cuda):
    met, own = threading.Barrier(2), [None, None]

    def work(rank):
        def all_gather(mine):  # As MPI's: it waits, whatever the timeout.
            own[rank] = dict(mine)
            met.wait(50)
            all_of_it = list(own)
            met.wait(50)
            return all_of_it

        try:
            vs.SymmetricMemory(0, 4096, vmmshare.job.AllGather(rank, 2, all_gather), timeout=0)
        except vs.errors.DeadlineExceeded as error:
            return str(error)
        return ""  # The answer may be there at once.

    assert not [said for said in run(cuda, work, 2) if "died" in said]


@pytest.mark.parametrize("device, raised, said", [
    (99, vs.errors.NotFound, "no device has ordinal 99"),
    ("GPU-0", vs.errors.NotFound, 'no device has the UUID "GPU-0"'),
    (1.5, TypeError, "device: expected an ordinal"),
    (1 << 40, ValueError, "device is 1099511627776"),
])
def test_a_rank_that_cannot_have_its_device_takes_part_and_all_are_told(cuda, device, raised, said):
    store = Store()

    def work(rank):
        with pytest.raises(Exception) as error:
            vs.SymmetricMemory(device if rank == 1 else 0, 4096,
                               vmmshare.job.store(store, rank, 2), timeout=50)
        return error.value

    told = run(cuda, work, 2)
    # Not that rank 1 did not come, once the time is over.
    assert isinstance(told[0], vs.errors.NotFound), told[0]
    assert "rank 1 (host " in str(told[0]) and said in str(told[0])
    assert isinstance(told[1], raised) and str(told[1]).startswith(said)


@pytest.mark.parametrize("size", [4, 600, 1100])
def test_missing_ranks_of_many_are_named_by_a_store_that_takes_milliseconds(size):
    class Whole(Store):
        """As PyTorch's: what is less than a millisecond is left out, and 0 finds nothing."""

        def wait(self, keys, timeout):
            whole = timeout // datetime.timedelta(milliseconds=1)
            if whole == 0:
                raise RuntimeError("Socket Timeout")
            super().wait(keys, datetime.timedelta(milliseconds=whole))

    store = Whole()
    for rank in set(range(size)) - {0, 2, 3}:
        store.set(f"vmmshare/0/{rank}/here", b"here")
    with pytest.raises(vs.errors.DeadlineExceeded, match=f"ranks 2, 3 of {size} did not come"):
        vmmshare.job.store(store, 0, size).fence(0.2)


class Slow:
    """A store that needs some time for each answer, and the clock by which it does."""

    def __init__(self, monkeypatch, seconds):
        self.seconds, self.now, self.values, self.since = seconds, 0.0, {}, {}
        monkeypatch.setattr(vmmshare.job, "time", types.SimpleNamespace(monotonic=lambda: self.now))

    def get(self, key, timeout):
        answer = max(self.now + self.seconds, self.since.get(key, 0.0))
        if key not in self.values or answer > self.now + timeout:
            self.now += timeout
            return None
        self.now = answer
        return self.values[key]

    def exchange(self, size, missing):
        for rank in set(range(1, size)) - missing:
            for key in ("here", "card"):
                self.values[f"vmmshare/0/{rank}/{key}"] = b"%d" % rank
        exchange = vmmshare.job.KeyValues(0, size, self.values.__setitem__, self.get)
        exchange.put("card", b"0")
        return exchange


def test_a_store_that_needs_longer_for_an_answer_loses_no_rank_that_came(monkeypatch):
    store = Slow(monkeypatch, 0.015)
    exchange = store.exchange(16, {3})
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 3 of 16 did not come to fence 0"):
        exchange.fence(60)
    assert store.now < 60.5
    store.now += 60
    # What those have put who came is had all the same, and what is not there takes little.
    for rank in set(range(16)) - {3}:
        assert exchange.get(rank, "card") == b"%d" % rank
    with pytest.raises(vs.errors.NotFound, match="rank 3 of 16"):
        exchange.get(3, "card")
    assert store.now < 121


def test_a_rank_that_came_late_over_a_slow_store_has_put_what_it_put(monkeypatch):
    store = Slow(monkeypatch, 0.015)
    exchange = store.exchange(100, set())
    # So late that the time is over while the others are fetched, none of which was missing.
    store.since["vmmshare/0/1/here"] = 57.4
    exchange.fence(60)
    for rank in range(100):
        assert exchange.get(rank, "card") == b"%d" % rank
    assert store.now < 61


def test_ranks_for_which_no_time_is_left_are_not_called_missing(monkeypatch):
    store = Slow(monkeypatch, 0.4)  # So that there is no time for a look at all others.
    for timeout, said in ((60, "rank 1 and maybe later ones of 16 did not come"),
                          (0, "maybe ranks 1 and up of 16 did not come")):
        before = store.now
        with pytest.raises(vs.errors.DeadlineExceeded, match=said):
            store.exchange(16, {1}).fence(timeout)
        assert store.now < before + timeout + 1.5


def test_a_missing_rank_may_come_while_the_others_are_looked_at(monkeypatch):
    store = Slow(monkeypatch, 0.015)
    store.since["vmmshare/0/1/here"] = 59.9
    store.exchange(3, set()).fence(60)
    store = Slow(monkeypatch, 0.015)
    store.since["vmmshare/0/1/here"] = 60.1
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 3 did not come"):
        store.exchange(3, set()).fence(60)


def test_an_exchange_of_which_a_fence_failed_is_over():
    store = Store()
    first, second = [vmmshare.job.store(store, rank, 2) for rank in range(2)]
    first.put("card", b"0")
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 2 did not come"):
        first.fence(0.01)
    second.put("card", b"1")
    second.fence(60)  # For it all have come.
    sets = store.sets
    for _ in range(2):
        with pytest.raises(vs.errors.FailedPrecondition,
                           match="earlier fence of 'vmmshare' failed.*with another name"):
            first.fence(60)
    assert store.sets == sets
    # Who is missing can be found out all the same.
    assert first.get(1, "card") == b"1"
    first.put("here too", b"0")
    again = [vmmshare.job.store(store, rank, 2, name="again") for rank in range(2)]
    fence(again)


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_an_exchange_whose_fence_was_cut_short_is_over(error):
    values = {"vmmshare/0/1/here": b"here"}

    def get(key, timeout):
        raise error

    exchange = vmmshare.job.KeyValues(0, 2, values.__setitem__, get)
    with pytest.raises(error):
        exchange.fence(60)
    exchange._get = lambda key, timeout: values.get(key)
    with pytest.raises(vs.errors.FailedPrecondition, match="earlier fence"):
        exchange.fence(60)


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_an_exchange_by_one_call_whose_fence_failed_is_over(error):
    there = [{}, {}]

    def all_gather(own):
        if there is None:
            raise error
        return [own, *there[1:]]

    exchange = vmmshare.job.AllGather(0, 2, all_gather)
    there[1] = {"card": b"1"}
    exchange.put("card", b"0")
    exchange.fence(60)
    assert [exchange.get(rank, "card") for rank in range(2)] == [b"0", b"1"]
    there, before = None, there
    exchange.put("card", b"again")
    with pytest.raises(error):
        exchange.fence(60)
    # Nobody is taken to have come by what was put for the round before.
    for rank in range(2):
        with pytest.raises(LookupError):
            exchange.get(rank, "card")
    there = before
    with pytest.raises(vs.errors.FailedPrecondition, match="earlier fence"):
        exchange.fence(60)


def test_what_was_put_for_another_round_is_no_answer():
    """As where Ctrl-C ended one rank's part between two fences, and it begins anew."""
    met, own = threading.Barrier(2), [None, None]

    def exchange(rank):
        def all_gather(mine):
            own[rank] = dict(mine)
            met.wait(60)
            all_of_it = list(own)
            met.wait(60)
            return all_of_it
        return vmmshare.job.AllGather(rank, 2, all_gather)

    first, second = ranks = [exchange(rank) for rank in range(2)]
    for key in ("ticket", "outcome"):
        for number, rank in enumerate(ranks):
            rank.put(key, b"%d" % number)
        fence(ranks)
        assert first.get(1, key) == b"1" and second.get(0, key) == b"0"
    first.put("ticket", b"anew")
    second.put("outcome", b"mapped")
    fence(ranks)
    with pytest.raises(LookupError):
        second.get(0, "outcome")
    with pytest.raises(LookupError):
        first.get(1, "ticket")


def test_a_communicator_that_gathers_what_others_have_is_refused():
    class Intercommunicator:  # As mpi4py's: rank and size are of the own group, what it has is not.
        Get_rank, Get_size, Is_inter = (lambda self: 0), (lambda self: 1), (lambda self: True)

        def allgather(self, own):
            raise AssertionError("nobody is to be asked")

    with pytest.raises(ValueError, match=r"Merge\(\)"):
        vmmshare.job.mpi(Intercommunicator())


def test_a_group_that_this_process_is_not_of_is_refused(monkeypatch):
    torch, dist = types.ModuleType("torch"), types.ModuleType("torch.distributed")
    dist.get_rank = dist.get_world_size = lambda group: -1  # As PyTorch says it.
    torch.distributed = dist
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    with pytest.raises(ValueError, match="not of the group"):
        vmmshare.job.torch_distributed("another")


def test_a_rank_that_tries_again_gets_no_memory_that_others_do_not_have(cuda):
    class Ending(Store):
        ended = False

        def end(self):
            with self.changed:
                self.ended = True
                self.changed.notify_all()

        def wait(self, keys, timeout):
            with self.changed:
                self.changed.wait_for(lambda: self.ended or all(key in self.values for key in keys),
                                      timeout.total_seconds())
                if not all(key in self.values for key in keys):
                    raise RuntimeError("the test has ended")

        def has(self, part):
            with self.changed:
                return self.changed.wait_for(lambda: any(part in key for key in self.values), 60)

    store, failed = Ending(), threading.Event()
    first, second = [vmmshare.job.store(store, rank, 2) for rank in range(2)]
    first_fence = first.fence

    def late(timeout):
        first.fence = first_fence
        try:
            first_fence(0.01)
        finally:
            failed.set()
            # The other rank maps what this one is about to give up.
            assert store.has("/1/vmmshare.outcome.")

    def other():
        assert failed.wait(60)
        try:
            return vs.SymmetricMemory(0, 4096, second, timeout=60)
        except RuntimeError as why:
            return str(why)

    first.fence = late
    join = on_a_thread(cuda, other)
    try:
        with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 2 did not come"):
            vs.SymmetricMemory(0, 4096, first, timeout=60)
        with pytest.raises(vs.errors.FailedPrecondition, match="earlier fence"):
            vs.SymmetricMemory(0, 4096, first, timeout=60)
    finally:
        store.end()
    assert join() == "the test has ended"


def test_a_rank_that_came_in_time_is_not_called_missing_after_one_that_did_not(monkeypatch):
    for seconds, came in ((0.001, 59.5), (0.001, 59.98), (0.015, 59.9)):
        store = Slow(monkeypatch, seconds)
        store.since["vmmshare/0/2/here"] = came  # When the others have been looked at once.
        with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 4 did not come"):
            store.exchange(4, {1}).fence(60)
        assert store.now < 60.5
    # So do all that come, in whatever order.
    for first, second in ((59.2, 59.9), (59.9, 59.2)):
        store = Slow(monkeypatch, 0.001)
        store.since = {"vmmshare/0/1/here": first, "vmmshare/0/2/here": second}
        store.exchange(4, set()).fence(60)
        assert store.now < 60


def test_missing_ranks_of_which_there_are_many_take_no_more_than_a_second(monkeypatch):
    store = Slow(monkeypatch, 0.001)
    with pytest.raises(vs.errors.DeadlineExceeded, match="did not come"):
        store.exchange(600, set(range(1, 600))).fence(60)
    assert store.now < 61


def test_half_of_the_time_is_for_all_ranks_to_come(cuda):
    exchange = vmmshare.job.store(Store(), 0, 2)
    given = []

    def fence(timeout):
        given.append(timeout)
        raise vs.errors.DeadlineExceeded("rank 1 did not come")

    exchange.fence = fence
    with pytest.raises(vs.errors.DeadlineExceeded):
        vs.SymmetricMemory(0, 4096, exchange, timeout=1000)
    assert len(given) == 1 and given[0] <= 500


def test_a_rank_whose_time_is_over_in_the_last_round_fails_alone(cuda):
    store, over = Store(), threading.Event()
    first, second = [vmmshare.job.store(store, rank, 2) for rank in range(2)]
    first_fence, second_put = first.fence, second.put

    def last(timeout):
        try:
            first_fence(0.01)
        finally:
            over.set()

    def fence(timeout):
        first_fence(timeout)
        first.fence = last

    def put(key, value):
        if "outcome" in key:
            assert over.wait(60)
        second_put(key, value)

    first.fence, second.put = fence, put
    join = on_a_thread(cuda, lambda: vs.SymmetricMemory(0, 4096, second, timeout=60))
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 2 did not come to fence 1"):
        vs.SymmetricMemory(0, 4096, first, timeout=60)
    # What has gone for that rank is still there for this one.
    memory = join()
    write(cuda, memory.ptr(0), 7)
    assert read(cuda, memory.ptr(0)) == 7


def test_functions_of_the_programs_own(cuda):
    store, deleted = Store(), []

    def get(key, timeout):
        try:
            store.wait([key], datetime.timedelta(seconds=timeout))
        except RuntimeError as why:
            raise TimeoutError from why
        return store.get(key)

    def exchange(rank):
        return vmmshare.job.KeyValues(rank, 2, store.set, get,
                                      lambda key: deleted.append(key))

    parts = run(cuda, lambda rank: vs.SymmetricMemory(0, 4096, exchange(rank)), 2)
    expect_one_memory(cuda, parts)
    lone = exchange(0)
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 2 did not come to fence 0"):
        vmmshare.job.KeyValues(0, 2, store.set, get, name="alone").fence(0.01)
    with pytest.raises(vs.errors.NotFound, match="rank 1 of 2 put no 'a'"):
        lone.get(1, "a")
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError):
            vmmshare.job.KeyValues(rank, size, store.set, get)


def over_values_as(kind):
    """Of each rank of two the memory over a store that gives values back as `kind` makes them, or
    what was raised."""
    def get(key, timeout):
        store.wait([key], datetime.timedelta(seconds=timeout))
        return kind(store.get(key))

    def work(rank):
        try:
            return vs.SymmetricMemory(0, 4096, vmmshare.job.KeyValues(rank, 2, store.set, get))
        except Exception as error:
            return error

    store = Store()
    return work


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_store_may_give_what_is_like_bytes(cuda, kind):
    expect_one_memory(cuda, run(cuda, over_values_as(kind), 2))


@pytest.mark.parametrize("kind", [lambda value: value.decode("latin-1"), list], ids=["str", "list"])
def test_a_store_that_gives_no_bytes_is_named_and_no_rank_called_dead(cuda, kind):
    """As redis-py with decode_responses=True."""
    for error in run(cuda, over_values_as(kind), 2):
        assert isinstance(error, TypeError), error
        assert "get() of the exchange returned: expected bytes, as were put, not a " in str(error)


class LikeEtcd(Store):
    """As PyTorch's EtcdStore, which is written in Python."""

    deletes = 0

    def wait(self, keys, override_timeout=None):
        try:
            super().wait(keys, override_timeout)
        except RuntimeError:
            raise LookupError("Timeout while waiting for keys in EtcdStore") from None

    def delete_key(self, key):
        self.deletes += 1
        raise RuntimeError('Tried to call pure virtual function "c10d::Store::deleteKey"')


def test_a_store_that_times_out_by_a_lookup_error_names_who_is_missing(cuda):
    with pytest.raises(vs.errors.DeadlineExceeded, match="ranks 1, 2 of 3 did not come"):
        vs.SymmetricMemory(0, 4096, vmmshare.job.store(LikeEtcd(), 0, 3), timeout=0.5)

    class Broken(Store):
        def wait(self, keys, timeout):
            raise KeyError("no such folder")

    with pytest.raises(KeyError, match="no such folder"):
        vs.SymmetricMemory(0, 4096, vmmshare.job.store(Broken(), 0, 2))


class LikeFile(Store):
    """As PyTorch's FileStore, whose wait() compares whole seconds that have passed with its
    timeout; and the clock."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.now, self.waits = 0.0, 0
        monkeypatch.setattr(vmmshare.job, "time", types.SimpleNamespace(
            monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds):
        self.now += seconds

    def check(self, keys):
        self.now += 0.001
        return all(key in self.values for key in keys)

    def wait(self, keys, timeout):
        self.waits += 1
        if not all(key in self.values for key in keys):
            self.now += timeout // datetime.timedelta(seconds=1) + 1
            raise RuntimeError("Wait timeout")


class WithoutCheck(LikeFile):
    def check(self, keys):
        raise RuntimeError('Tried to call pure virtual function "c10d::Store::check"')


@pytest.mark.parametrize("kind, late", [(LikeFile, 2), (WithoutCheck, 4)])
def test_missing_ranks_take_no_second_each_over_a_store_that_counts_seconds(monkeypatch, kind,
                                                                            late):
    store = kind(monkeypatch)
    for rank in range(64, 128):
        for key in ("here", "card"):
            store.set(f"vmmshare/0/{rank}/{key}", b"%d" % rank)
    exchange = vmmshare.job.store(store, 0, 128)
    exchange.put("card", b"0")
    with pytest.raises(vs.errors.DeadlineExceeded, match=r"ranks? 1\b.* of 128 did not come"):
        exchange.fence(60)
    # As SymmetricMemory looks who is missing.
    said = []
    for rank in range(1, 64):
        with pytest.raises(vs.errors.NotFound) as raised:
            exchange.get(rank, "card")
        said.append(str(raised.value))
    assert store.now < 60 + late
    # Of whom it was not looked for it is not said that he put nothing.
    assert "rank 1 of 128 put no 'card'" in said[0]
    assert ("rank 63 of 128 was not asked" in said[-1]) == (kind is WithoutCheck)


@pytest.mark.parametrize("timeout", [0.5, 1.5, 2, 2.5, 4.8, 30.3])
def test_a_fence_over_a_store_that_counts_seconds_ends_in_time(monkeypatch, timeout):
    store = LikeFile(monkeypatch)
    with pytest.raises(vs.errors.DeadlineExceeded, match="rank 1 of 2 did not come"):
        vmmshare.job.store(store, 0, 2).fence(timeout)
    assert timeout <= store.now <= timeout + 0.1


def test_a_store_that_is_lost_says_so_when_it_is_looked_at(monkeypatch):
    class Lost(LikeFile):
        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

        def wait(self, keys, timeout):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(RuntimeError, match="Connection reset"):
        vmmshare.job.store(Lost(monkeypatch), 0, 2).fence(0.5)


def test_a_store_that_cannot_delete_keeps_its_keys(cuda):
    store = LikeEtcd()

    def work(rank):
        exchange = vmmshare.job.store(store, rank, 2)
        return [vs.SymmetricMemory(0, 4096, exchange) for _ in range(4)]

    for parts in zip(*run(cuda, work, 2)):
        expect_one_memory(cuda, parts)
    assert rounds_in(store) == set(range(8))
    assert store.deletes == 2  # Each rank has tried once.


def test_what_a_store_raises_is_raised(cuda):
    class Broken(Store):
        def wait(self, keys, timeout):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(RuntimeError, match="Connection reset"):
        vs.SymmetricMemory(0, 4096, vmmshare.job.store(Broken(), 0, 2))


@pytest.mark.parametrize("call", ["SymmetricMemory", "check_agreed"])
def test_ctrl_c_waits_for_no_rank_that_is_missing(cuda, call):
    waits, interrupted = threading.Event(), threading.Event()

    class Waiting(Store):
        def wait(self, keys, timeout):
            try:
                waits.set()
                super().wait(keys, timeout)
            except KeyboardInterrupt:
                interrupted.set()
                raise

    def press_ctrl_c():
        # Python itself does not see one that comes when it is about to wait.
        while waits.wait(60) and not interrupted.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            interrupted.wait(2)

    alone = vs.SymmetricMemory(0, 4096, vmmshare.job.store(Store(), 0, 1))
    exchange = vmmshare.job.store(Waiting(), 0, 3)  # The others never come.
    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        if call == "check_agreed":
            alone.check_agreed(exchange, timeout=40)
        else:
            vs.SymmetricMemory(0, 4096, exchange, timeout=40)
    assert time.monotonic() - start < 20
    presser.join()


_STANDS_STILL = """
import sys
import vmmshare as vs
import vmmshare.testing

class Exchange:
    rank, size, card = 1, 2, b""

    def put(self, key, value):
        self.card = value

    def fence(self, seconds):
        print(self.card.hex(), flush=True)
        sys.stdin.readline()  # Until the test ends.
        raise RuntimeError("the test has ended")

vmmshare.testing.use_host_driver()
vs.SymmetricMemory(0, 4096, Exchange(), timeout=None)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a process that can be stopped")
@pytest.mark.parametrize("timeout", [None, 600])
def test_ctrl_c_waits_for_no_rank_that_stands_still(cuda, timeout):
    asked, threads, interrupted = threading.Event(), set(), threading.Event()
    here = sys._getframe()

    def press_ctrl_c():
        asked.wait(60)
        while (not interrupted.is_set()
               and sys._current_frames()[threading.main_thread().ident] is not here):
            time.sleep(0.001)  # get() would see it.
        if not interrupted.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    with subprocess.Popen([sys.executable, "-c", _STANDS_STILL], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        try:
            card = bytes.fromhex(other.stdout.readline().decode())
            os.kill(other.pid, signal.SIGSTOP)

            class Exchange:
                rank, size, own = 0, 2, b""

                def put(self, key, value):
                    threads.add(threading.get_ident())
                    self.own = value

                def fence(self, seconds):
                    threads.add(threading.get_ident())

                def get(self, rank, key):
                    threads.add(threading.get_ident())
                    if rank == 1:
                        asked.set()  # What comes next is to open its memory.
                    return card if rank == 1 else self.own

            presser = threading.Thread(target=press_ctrl_c)
            presser.start()
            start = time.monotonic()
            try:
                with pytest.raises(KeyboardInterrupt):
                    vs.SymmetricMemory(0, 4096, Exchange(), timeout=timeout)
            finally:
                interrupted.set()
                presser.join()
            assert time.monotonic() - start < 30
        finally:
            other.kill()
    assert asked.is_set()
    # Of MPI, say, no other thread may know.
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("error", [KeyError, IndexError, vs.errors.NotFound])
@pytest.mark.parametrize("call", ["put", "fence"])
def test_what_put_and_fence_raise_is_raised(cuda, call, error):
    """Of get() alone a LookupError says that something is not there."""
    def broken(*_):
        raise error("the store is broken")

    def nothing(rank, key):
        raise LookupError

    calls = {"put": lambda key, value: None, "fence": lambda seconds: None, "get": nothing,
             call: broken}
    with pytest.raises(error, match="the store is broken"):
        vs.SymmetricMemory(0, 4096, types.SimpleNamespace(rank=0, size=2, **calls))


def test_ranks_cut_the_same_buffers_without_a_word(cuda):
    store = Store()

    def work(rank):
        exchange = vmmshare.job.store(store, rank, 3)
        memory = vs.SymmetricMemory(0, 1 << 20, exchange)
        sets = store.sets
        first = memory.allocate(1000)
        second = memory.allocate(4096, alignment=4096)
        memory.free(first)
        third = memory.allocate(100_000)
        assert second % 4096 == 0
        assert third + 100_000 <= second or second + 4096 <= third
        return memory, exchange, (second, third), store.sets - sets

    parts = run(cuda, work, 3)
    assert len({offsets for _, _, offsets, _ in parts}) == 1
    run(cuda, lambda rank: parts[rank][0].check_agreed(parts[rank][1]), 3)
    for memory, _, offsets, _ in parts:
        for offset in offsets:
            write(cuda, memory.ptr(memory.rank) + offset, 40 + memory.rank)
    for memory, _, offsets, _ in parts:
        for offset in offsets:
            assert [read(cuda, memory.ptr(rank) + offset) for rank in range(3)] == [40, 41, 42]
            array = memory.array(1, 8, "uint8", offset)
            assert array.ptr == memory.ptr(1) + offset
            assert array.view(4, "uint8", 4).ptr == array.ptr + 4


def test_ranks_that_cut_otherwise_are_named(cuda):
    store = Store()

    def work(rank):
        exchange = vmmshare.job.store(store, rank, 2)
        memory = vs.SymmetricMemory(0, 1 << 20, exchange)
        memory.allocate(1024 if rank else 2048)
        with pytest.raises(vs.errors.FailedPrecondition,
                           match="rank 0 made 1 calls .* rank 1 made 1 calls .* same order"):
            memory.check_agreed(exchange)
        return True

    assert run(cuda, work, 2) == [True, True]


def test_a_buffer_that_was_allocated_can_be_seen_as_an_array(cuda):
    memory = vs.SymmetricMemory(0, 1000, vmmshare.job.store(Store(), 0, 1))
    with pytest.raises(vs.errors.ResourceExhausted, match="the memory ends at 1000"):
        memory.allocate(1024)
    offset = memory.allocate(1000)
    assert memory.array(0, 1000, "uint8", offset).ptr == memory.ptr(0) + offset
    memory.free(offset)
    offsets = [memory.allocate(200) for _ in range(4)]
    for offset in offsets:
        memory.array(0, 200, "uint8", offset)


def test_buffers_that_cannot_be_are_refused(cuda):
    memory = vs.SymmetricMemory(0, 1 << 20, vmmshare.job.store(Store(), 0, 1))
    with pytest.raises(vs.errors.ResourceExhausted, match="of 1048576 bytes 1048576 are free"):
        memory.allocate(1 << 21)
    for size, alignment in ((0, 256), (1, 3), (1, 4 << 20)):
        with pytest.raises(vs.errors.InvalidArgument):
            memory.allocate(size, alignment)
    offset = memory.allocate(1)
    memory.free(offset)
    with pytest.raises(vs.errors.NotFound, match=f"begins at {offset}"):
        memory.free(offset)
    memory.close()
    with pytest.raises(vs.errors.FailedPrecondition):
        memory.allocate(1)
