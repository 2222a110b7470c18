"""How the ranks of a job find each other, for SymmetricMemory.

    memory = vs.SymmetricMemory(0, 1 << 30, vmmshare.job.mpi(MPI.COMM_WORLD))
    right = memory.array((memory.rank + 1) % memory.size, 1 << 28, "float32")
"""

from __future__ import annotations

import math
import time
import typing

from .errors import DeadlineExceeded, FailedPrecondition, NotFound

__all__ = ["AllGather", "KeyValues", "mpi", "store", "torch_distributed"]

# How long a look at what may be there takes at least once the time is over, and all of a fence(),
# or of the get() after it, together. A store that needs longer is given three times what the
# slowest of its answers took.
_LAST_LOOK, _LAST_LOOKS = 0.01, 1.0
_HERE = "here"  # The key that says that a rank has come to a fence.
# Whose keys may be in use: of the round that goes on, and of the two before it.
_ROUNDS_KEPT = 3


class AllGather:
    """An exchange over a call that gives every rank what all ranks have.

    After a fence() that raised it is over, as a KeyValues is: each further one raises
    FailedPrecondition, and get() finds nothing.
    """

    def __init__(self, rank: int, size: int,
                 all_gather: "typing.Callable[[dict[str, bytes]], list[dict[str, bytes]]]"):
        self.rank, self.size, self._all_gather = rank, size, all_gather
        self._own: "dict[str, bytes]" = {}  # Since the last fence.
        self._all: "list[dict[str, bytes]]" = [{} for _ in range(size)]
        self._over = False  # From the beginning of a fence until it has succeeded.

    def put(self, key: str, value: bytes) -> None:
        """What get() gives the other ranks after the next fence()."""
        self._own[key] = value

    def fence(self, timeout: float) -> None:
        """The medium waits as long as it is made to, whatever `timeout` says."""
        if self._over:
            raise FailedPrecondition(
                "an earlier fence of this exchange failed, and other ranks may have passed it",
                "Make another exchange on every rank.")
        self._over = True
        # What was put for another round is no answer in this one: a rank that was interrupted and
        # begins anew is a round behind the others.
        own, self._own = self._own, {}
        self._all = [{} for _ in range(self.size)]
        self._all = self._all_gather(own)
        self._over = False

    def get(self, rank: int, key: str) -> bytes:
        """What `rank` put under `key` for the last fence()."""
        return self._all[rank][key]


def mpi(communicator) -> AllGather:
    """Over a communicator of mpi4py. A rank that does not come is waited for by MPI. ValueError for
    an intercommunicator, whose allgather() gives what the ranks of the other group have."""
    # A stand-in of one may be of one kind alone.
    if hasattr(communicator, "Is_inter") and communicator.Is_inter():
        raise ValueError("an intercommunicator: each of its groups would get what the other one "
                         "put. Pass communicator.Merge(), which has the ranks of both")
    return AllGather(communicator.Get_rank(), communicator.Get_size(), communicator.allgather)


def torch_distributed(group=None) -> AllGather:
    """Over torch.distributed, with the group's own timeout. ValueError for a group that this process
    is not of."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise ImportError("torch_distributed() needs torch: pip install torch") from error

    def all_gather(own):
        gathered = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, own, group=group)
        return gathered

    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not of the group: only its ranks make the exchange")
    return AllGather(rank, dist.get_world_size(group), all_gather)


class KeyValues:
    """An exchange over a store of keys and values that every rank reaches.

        exchange = vmmshare.job.KeyValues(rank, size, set=store.put, get=store.wait_for)

    set(key, value): keys are text, values bytes. get(key, timeout): the value, as bytes, bytearray
    or memoryview, waiting up to `timeout` seconds for somebody to set it; None or TimeoutError when
    nobody has. What is none of these, the str of a store that decodes for example, is a TypeError of
    the call that takes the exchange. delete(key): with it the store holds what the last three rounds
    put and no more. name: the same on all ranks; of exchanges over one store each has another one,
    also if one of them has ended before.

    What is put is set once, and fetched by those who ask for it; every rank puts the same keys in
    the same rounds, as SymmetricMemory does. fence() raises DeadlineExceeded, with the ranks that
    did not come, when its timeout has passed; other things as the functions raise them. Of ranks
    for which there was no time to ask it says "and maybe later ones".

    After a fence() that failed, in whatever way, the exchange is over: other ranks may have passed
    it, and would take what is put for the round that failed. Each further fence() raises
    FailedPrecondition; put() and get() go on, to find out who is missing.
    """

    def __init__(self, rank: int, size: int, set: "typing.Callable[[str, bytes], object]",
                 get: "typing.Callable[[str, float], bytes | None]",
                 delete: "typing.Callable[[str], object] | None" = None,
                 name: str = "vmmshare"):
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} of {size}; expected 0 to {size - 1}")
        self.rank, self.size = rank, size
        self._set, self._get, self._delete, self._name = set, get, delete, name
        self._round, self._until = 0, time.monotonic()
        self._over = False  # From the beginning of a fence until it has succeeded.
        self._came = {rank}  # To the last fence.
        self._look, self._looks = _LAST_LOOK, _LAST_LOOKS  # One's time, and what all may take.
        self._own: "list[list[str]]" = [[]]  # Keys of this round, and of those before it.
        self._rounds: "dict[str, int]" = {}  # In which a key was put last, by every rank.

    def put(self, key: str, value: bytes) -> None:
        self._rounds[key] = self._round
        self._publish(self._key(self.rank, key, self._round), value)

    def fence(self, timeout: float) -> None:
        if self._over:
            raise FailedPrecondition(
                f"an earlier fence of {self._name!r} failed, and other ranks may have passed it",
                "Make another KeyValues on every rank, with another name.")
        self._over = True
        self._until = time.monotonic() + timeout
        self._look, self._looks, self._came = _LAST_LOOK, _LAST_LOOKS, {self.rank}
        self._publish(self._here(self.rank), b"here")
        # The first rank that is missing takes this time; the rest is for a look at the others.
        late, unasked = self._wait_for_all(self._until - min(timeout / 10, _LAST_LOOKS))
        # What is left of the time is theirs.
        late = [rank for number, rank in enumerate(late, 1)
                if not self._comes_late(rank, len(late) - number)]
        self._looks = _LAST_LOOKS
        if late or unasked is not None:
            names = f"{'rank' if len(late) == 1 else 'ranks'} {', '.join(map(str, late))}"
            if unasked is not None:
                names = f"{names} and maybe later ones" if late else f"maybe ranks {unasked} and up"
            raise DeadlineExceeded(
                f"{names} of {self.size} did not come to fence {self._round} of {self._name!r} "
                f"within {timeout:g} s", "See whether those ranks run, and reach the store.")
        self._round += 1
        # Who has come here has fetched what it wants of the round before the last.
        self._own.insert(0, [])
        old = self._own.pop() if len(self._own) > _ROUNDS_KEPT else []
        self._rounds = {key: when for key, when in self._rounds.items()
                        if when > self._round - _ROUNDS_KEPT}
        if self._delete is not None:
            for key in old:
                self._delete(key)
        self._over = False

    def get(self, rank: int, key: str) -> bytes:
        # Of a rank that has come it should be there.
        look = min(_LAST_LOOK, _LAST_LOOKS / self.size)
        if rank in self._came and self._look <= self._looks:
            look = self._look
        path = self._key(rank, key, self._rounds.get(key, self._round - 1))
        left = self._until - time.monotonic()
        value = None
        if left >= look:
            start = time.monotonic()
            value = self._fetch(path, left)
            if value is not None and rank in self._came:  # So it was there: how long that takes.
                self._look = max(self._look, 3 * (time.monotonic() - start))
        elif rank in self._came or self._looks > 0:
            value = self._look_at(path, look)
        else:
            raise NotFound(f"rank {rank} of {self.size} was not asked for {key!r} in {self._name!r}: "
                           "to look for those before it took too long")
        if value is None:
            raise NotFound(f"rank {rank} of {self.size} put no {key!r} in {self._name!r}")
        return value

    def _key(self, rank: int, key: str, round: int) -> str:
        return f"{self._name}/{round}/{rank}/{key}"

    def _publish(self, key: str, value: bytes) -> None:
        self._set(key, value)
        self._own[0].append(key)

    def _here(self, rank: int) -> str:
        return self._key(rank, _HERE, self._round)

    def _wait_for_all(self, until: float) -> "tuple[list[int], int | None]":
        """The ranks that have not come by then, and the first that there was no time to ask for."""
        late: "list[int]" = []
        timed = False
        for rank in range(self.size):
            if rank == self.rank:
                continue
            left = until - time.monotonic()
            if self._comes(rank, left):
                continue
            if not timed:
                # What is there shows how long an answer takes.
                timed = True
                if self._look_at(self._here(self.rank), _LAST_LOOKS) is None:
                    self._looks = 0.0
            if left < self._look:  # Too little to say that it is not there.
                if self._look > self._looks:
                    return late, rank
                if self._look_at(self._here(rank), self._look) is not None:
                    self._came.add(rank)
                    continue
            late.append(rank)
        return late, None

    def _comes(self, rank: int, within: float) -> bool:
        if within <= 0 or self._fetch(self._here(rank), within) is None:
            return False
        self._came.add(rank)
        return True

    def _comes_late(self, rank: int, more: int) -> bool:
        """The same within what is left of the time, but for a look at each of `more` others."""
        left = self._until - time.monotonic()
        if left >= self._look or self._look > self._looks:
            return self._comes(rank, max(left - more * self._look, min(left, self._look)))
        if self._look_at(self._here(rank), self._look) is None:
            return False
        self._came.add(rank)
        return True

    def _look_at(self, key: str, timeout: float) -> "bytes | None":
        start = time.monotonic()
        value = self._fetch(key, timeout)
        took = time.monotonic() - start
        self._looks -= took  # Longer than it was to, where a store counts whole seconds.
        if value is not None:
            self._look = max(self._look, 3 * min(took, timeout))
        return value

    def _fetch(self, key: str, timeout: float) -> "bytes | None":
        try:
            return self._get(key, timeout)
        except TimeoutError:
            return None


def store(store: typing.Any, rank: int, size: int, *, name: str = "vmmshare") -> KeyValues:
    """Over a store of torch.distributed, a TCPStore for example, without a process group.
    `name` as in KeyValues. A store that cannot delete keys, EtcdStore for example, keeps them."""
    from datetime import timedelta

    looks = hasattr(store, "check")

    def look(key: str, until: float) -> "bytes | None":
        while not store.check([key]):
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, _LAST_LOOK))
        return store.get(key)

    def wait(key: str, timeout: float) -> "bytes | None":
        # Stores take whole milliseconds and leave out the rest; 0 of them is no look at all.
        milliseconds = max(math.ceil(timeout * 1e3), 1)
        until = time.monotonic() + timeout
        try:
            store.wait([key], timedelta(milliseconds=milliseconds))
        except (RuntimeError, LookupError):  # Of a wait that took its time, in whatever words.
            if time.monotonic() < until - timeout / 10:
                raise
            return None
        return store.get(key)

    def get(key: str, timeout: float) -> "bytes | None":
        nonlocal looks
        until = time.monotonic() + timeout
        if looks:
            # The wait() of a FileStore counts whole seconds, and ends up to one of them late.
            value = wait(key, timeout - 1) if timeout >= 2 else None
            if value is not None:
                return value
            try:
                return look(key, until)
            except RuntimeError:  # Not every store has it; one that is lost says so next.
                looks = False
        return wait(key, max(until - time.monotonic(), 0))

    deletes = True

    def delete(key: str) -> None:
        nonlocal deletes
        try:
            if deletes:
                store.delete_key(key)
        except RuntimeError:  # Other ranks have passed the fence; a store that is lost says so next.
            deletes = False

    return KeyValues(rank, size, store.set, get, delete, name)
