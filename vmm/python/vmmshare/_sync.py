"""Weights that one process writes step by step and others use meanwhile; vmmshare.weights has the
names.

The sets lie in some slots, two by default, which all processes map once. What goes round among
them are the turns: a ring for each follower, whose items have no contents but the number of an
update. Of two slots one is read while the other one is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import socket
import time
import typing

from . import connect
from ._core import Allocation, FencePool, Server, Share
from ._ring import RingBuffer, RingHome, RingReader, RingWriter, open_ring
from ._sets import Draft, TensorSet, draft
from .errors import (Aborted, DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument,
                     OutOfRange, Unavailable, VmmshareError)

if typing.TYPE_CHECKING:
    import torch

_VERSION = 1
_MOST = 16 << 10  # Bytes of what a publisher says first.
_MOST_SLOTS = 8
_ITEM = 8  # Bytes of a ring's buffers, in which nothing is.
_ENDED = (Aborted, DataLoss, Unavailable)


class Update(typing.NamedTuple):
    """What publish() returns: the update's number, from 1, and by name the followers that were
    found to have ended, each with the error that said so. They get no more."""

    number: int
    lost: "dict[str, VmmshareError]"


@dataclasses.dataclass
class _Follower:
    ring: RingWriter
    buffer: "RingBuffer | None" = None  # Acquired for an update that is not published.


def _left(deadline: "float | None") -> "float | None":
    return None if deadline is None else max(deadline - time.monotonic(), 0)


def _socket_of(connection: "socket.socket | int") -> socket.socket:
    if not isinstance(connection, (socket.socket, int)):
        raise TypeError("expected a connected socket.socket, or a descriptor as an int, not a "
                        f"{type(connection).__name__}")
    return connection if isinstance(connection, socket.socket) else socket.socket(fileno=connection)


@contextlib.contextmanager
def _hello(own: socket.socket, timeout: "float | None", here: str, there: str
           ) -> "typing.Iterator[None]":
    """For the first message, which waits `timeout` seconds."""
    try:
        # A timeout of 0 would be another kind of error.
        own.settimeout(None if timeout is None else max(timeout, 1e-3))
        yield
        own.setblocking(True)
    except TimeoutError as why:
        raise DeadlineExceeded(f"{here}: nobody was on the other end within {timeout} s",
                               f"Call {there} there.") from why
    except OSError as why:
        raise Unavailable(f"{here}: the other end hung up: {why}", "Connect anew.") from why


def _deadline(timeout: "float | None") -> "float | None":
    return None if timeout is None else time.monotonic() + timeout


class Publisher:
    """Writes a model's weights anew again and again, for processes that follow: see publisher().

        with vs.weights.publisher(model.state_dict()) as publisher:
            publisher.add(connection, "engine 0")          # each engine, then or later
            for batch in data:
                step(model, batch)
                publisher.copy(model.state_dict())         # on PyTorch's current stream

    One thread at a time. Streams are CUstreams as ints; no host waits for a GPU.
    """

    def __init__(self, slots: "list[Draft]", device: typing.Any):
        self._slots, self._server = slots, Server()
        for place, slot in enumerate(slots):
            slot._writer.seal(place + 1)  # Followers map it from now on.
        self._shares: "list[Share]" = [self._server.share(slot.memory) for slot in slots]
        self._home = RingHome(device, host_node=0)
        self._fences = FencePool(device)
        self._written = self._fences.new()
        self._tensors: "dict[int, dict[str, torch.Tensor]]" = {}
        self._followers: "dict[str, _Follower]" = {}
        self._lost: "dict[str, VmmshareError]" = {}
        self._checked: "list[torch.Tensor]" = []  # That copy() was given.
        self._ended: "list[RingWriter]" = []
        self._acquired = False
        self.number = 0

    @property
    def followers(self) -> "list[str]":
        """Names of those that are there, as far as is known."""
        return list(self._followers)

    def add(self, connection: "socket.socket | int", name: str = "", *, stream: int = 0,
            timeout: "float | None" = 10.0) -> None:
        """Takes the process that calls follow() on the other end of `connection`, a Unix socket of
        SOCK_SEQPACKET, which is the publisher's from now on. It has the newest update at once,
        if there is one, in the order of `stream`. FailedPrecondition for a name that another one
        has, and between acquire() and publish(); DeadlineExceeded when it does not follow."""
        name = name or f"follower {len(self._followers) + 1}"
        if name in self._followers or self._acquired:
            raise FailedPrecondition(
                f"add({name!r}) " + ("while an update is acquired" if self._acquired else
                                     "of a name that a follower has"),
                "Publish it first." if self._acquired else "Give each a name of its own.")
        deadline = _deadline(timeout)
        own = _socket_of(connection)
        said = {"version": _VERSION, "slots": [str(share) for share in self._shares]}
        with _hello(own, timeout, "add()", "follow()"):
            own.send(json.dumps(said).encode())
        ring = self._home.open(own, buffers=len(self._slots), nbytes=_ITEM,
                               timeout=_left(deadline))
        if self.number > 0:
            self._written.wait(stream, self.number)
            buffer = ring.acquire(stream, timeout=_left(deadline))
            buffer.tag = self.number
            ring.publish(buffer, stream, timeout=_left(deadline))
        self._followers[name] = _Follower(ring)

    def acquire(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> Draft:
        """The slot of the next update, for work that is put on `stream` later, which waits until
        no follower uses what is there. DeadlineExceeded names a follower that has not looked for
        an update for two rounds of the slots; it may be tried again."""
        deadline = _deadline(timeout)
        for name in list(self._followers):
            follower = self._followers[name]
            if follower.buffer is not None:
                continue  # Of a try before.
            try:
                follower.buffer = follower.ring.acquire(stream, timeout=_left(deadline))
            except DeadlineExceeded as why:
                raise DeadlineExceeded(
                    f"follower {name!r} has not let go of update {self.number + 1 - len(self._slots)}"
                    f" or of one before, within {timeout} s: {why.args[0]}",
                    "Have it call latest() more often, or make more slots.") from why
            except _ENDED as why:
                self._drop(name, why)
        self._acquired = True
        return self._slot

    @property
    def _slot(self) -> Draft:
        return self._slots[(self.number + 1) % len(self._slots)]

    def publish(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> Update:
        """Hands over what was written on `stream`. Followers see all of it or nothing.
        FailedPrecondition without acquire()."""
        if not self._acquired:
            raise FailedPrecondition("publish() of an update that was not acquired",
                                     "Call acquire() first, and write to what it returns.")
        deadline = _deadline(timeout)
        number = self.number + 1
        self._written.signal(stream, number)
        for name in list(self._followers):
            follower = self._followers[name]
            buffer, follower.buffer = follower.buffer, None
            assert buffer is not None
            buffer.tag = number
            try:
                follower.ring.publish(buffer, stream, timeout=_left(deadline))
            except (*_ENDED, DeadlineExceeded) as why:
                self._drop(name, why)
        self.number, self._acquired = number, False
        lost, self._lost = self._lost, {}
        return Update(number, lost)

    def copy(self, tensors: "typing.Mapping[str, torch.Tensor]", *,
             timeout: "float | None" = 10.0) -> Update:
        """acquire(), a copy of PyTorch's tensors on its current stream, and publish(). All that
        are no aliases must be given; it is quickest with the same tensors each time, as
        dict(model.named_parameters()) has them. KeyError for a name that is missing, ValueError for another
        shape."""
        import torch
        stream = torch.cuda.current_stream().cuda_stream
        place = (self.number + 1) % len(self._slots)
        if place not in self._tensors:
            made = self._slots[place].torch()
            self._tensors[place] = {name: made[name] for name in self._slots[place].own}
        to = self._tensors[place]
        given = [tensors[name] for name in to]
        # Of 20,000 tensors to look takes longer than to copy them: once, for the same ones.
        if len(given) != len(self._checked) or not all(map(operator.is_, given, self._checked)):
            for name, one, other in zip(to, to.values(), given):
                if one.shape != other.shape:
                    raise ValueError(f"tensor {name!r} is of shape {tuple(other.shape)}; expected "
                                     f"{tuple(one.shape)}")
            self._checked = given
        deadline = _deadline(timeout)
        self.acquire(stream, timeout=timeout)
        with torch.no_grad():
            torch._foreach_copy_(list(to.values()), given, non_blocking=True)
        return self.publish(stream, timeout=_left(deadline))

    def _drop(self, name: str, why: VmmshareError) -> None:
        self._lost[name] = why
        ring = self._followers.pop(name).ring
        ring.abort()  # Streams go on; those of a follower that is alive are told.
        self._ended.append(ring)  # To close it waits for the GPU.

    def finish(self, *, timeout: "float | None" = 10.0) -> None:
        """Says that no more come, and returns when all followers have taken what there is and
        their GPUs have let go of it."""
        deadline = _deadline(timeout)
        for follower in self._followers.values():
            follower.ring.finish(timeout=_left(deadline))

    def close(self) -> None:
        """Hangs up. What followers have mapped stays with them."""
        for ring in [*self._ended, *(one.ring for one in self._followers.values())]:
            ring.close()
        self._ended, self._followers, self._tensors, self._checked = [], {}, {}, []
        for share in self._shares:
            share.close()
        for slot in self._slots:
            slot.close()
        self._home.close()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def publisher(like: "typing.Mapping[str, typing.Any]", *, slots: int = 2, fingerprint: str = "",
              metadata: "typing.Mapping[str, str] | None" = None, device: typing.Any = 0,
              host_node: "int | None" = None) -> Publisher:
    """A Publisher of sets of such tensors, as draft() has them. Each slot is a set's memory: two
    of them are least, and with each one more the writer may be one more update ahead."""
    if not 2 <= slots <= _MOST_SLOTS:
        raise InvalidArgument(f"{slots} slots; expected 2 to {_MOST_SLOTS}")
    made = [draft(like, fingerprint=fingerprint, metadata=metadata, device=device,
                  host_node=host_node) for _ in range(slots)]
    return Publisher(made, device)


class Follower:
    """Weights that another process writes anew again and again: see follow().

        with vs.weights.follow(connection) as follower:
            for request in requests:
                weights = follower.latest(stream)
                run(model_of[follower.slot], request)      # on `stream`

    One thread at a time.
    """

    def __init__(self, ring: RingReader, sets: "list[TensorSet]"):
        self._ring, self._sets = ring, sets
        self._buffer: "RingBuffer | None" = None
        self._tensors: "dict[int, dict[str, torch.Tensor]]" = {}
        self.finished = False

    @property
    def number(self) -> int:
        """Of the update that is in use; 0 before the first."""
        return 0 if self._buffer is None else self._buffer.tag

    @property
    def slot(self) -> int:
        """Where it lies: tensors of one slot have the same addresses each time."""
        return self.number % len(self._sets)

    @property
    def sets(self) -> "list[TensorSet]":
        """The sets by slot."""
        return list(self._sets)

    def latest(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> TensorSet:
        """The newest update that was handed over: later work on `stream` sees all of it.

        Gives the one before back after what is on `stream` now; use that no more. Waits only for
        the first one, DeadlineExceeded then. When the publisher has finished, that stays in use
        which was the last. Unavailable when the publisher ended: what is mapped stays, and wait()
        says whether it is complete.
        """
        while not self.finished:
            try:
                newer = self._ring.acquire(stream, timeout=timeout if self._buffer is None else 0)
            except DeadlineExceeded:
                if self._buffer is None:
                    raise
                break
            except OutOfRange:
                self.finished = True
                break
            previous, self._buffer = self._buffer, newer
            if previous is not None:
                self._ring.release(previous, stream)
        if self._buffer is None:
            raise OutOfRange("the publisher finished before its first update",
                             "Publish one before finish().")
        return self._sets[self.slot]

    def torch(self) -> "dict[str, torch.Tensor]":
        """The tensors of the update in use; made once for each slot."""
        if self._buffer is None:
            raise FailedPrecondition("no update is in use", "Call latest() first.")
        if self.slot not in self._tensors:
            self._tensors[self.slot] = self._sets[self.slot].torch()
        return self._tensors[self.slot]

    def wait(self, *, timeout: "float | None" = 10.0) -> None:
        """Returns when all of the update in use is there, for a host that looks at it; streams
        need no wait. Aborted or Unavailable when it never will be."""
        if self._buffer is None:
            raise FailedPrecondition("no update is in use", "Call latest() first.")
        self._buffer.wait(timeout=timeout)

    def release(self, stream: int = 0) -> None:
        """Gives the update back after what is on `stream` now: none is in use then."""
        if self._buffer is not None:
            previous, self._buffer = self._buffer, None
            self._ring.release(previous, stream)

    def close(self) -> None:
        """Lets go of all when its tensors are gone. Synchronise first, or release()."""
        self._tensors = {}
        self._ring.close()
        for one in self._sets:
            one.close()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _slots_of(said: bytes) -> "list[str]":
    if not said:
        raise Unavailable("follow(): the publisher hung up", "Call add() on the other end.")
    try:
        what = json.loads(said)
        if what["version"] != _VERSION:
            raise ValueError(f"version {what['version']!r}; this vmmshare has {_VERSION}")
        slots = what["slots"]
        if not (isinstance(slots, list) and 2 <= len(slots) <= _MOST_SLOTS
                and all(isinstance(one, str) for one in slots)):
            raise ValueError(f"slots {slots!r:.80}")
    except (KeyError, TypeError, ValueError, RecursionError) as why:
        raise InvalidArgument(f"the other end sent what no publisher of weights sends: {why}",
                              "Connect to one that calls add() on its end.") from why
    return slots


def follow(connection: "socket.socket | int", *, device: typing.Any = 0,
           fingerprint: "str | None" = None, timeout: "float | None" = 10.0) -> Follower:
    """The weights of the Publisher that calls add() on the other end. `device`: whose streams use
    them here. DeadlineExceeded, Unavailable when nobody does; FailedPrecondition for another
    fingerprint."""
    deadline = _deadline(timeout)
    own = _socket_of(connection)
    sets: "list[TensorSet]" = []
    try:
        with _hello(own, timeout, "follow()", "add()"):
            said = own.recv(_MOST)
        slots = _slots_of(said)
        for place, text in enumerate(slots):
            memory = connect(text, timeout=_left(deadline))
            if not isinstance(memory, Allocation):
                raise InvalidArgument("the publisher's slot is a pool")
            sets.append(TensorSet(f"slot {place}", memory))
            found = sets[-1].fingerprint
            if fingerprint is not None and found != fingerprint:
                raise FailedPrecondition(f"the publisher's weights have the fingerprint {found!r}; "
                                         f"expected {fingerprint!r}", "They are of another model.")
        ring = open_ring(own, device=device, timeout=_left(deadline))
    except BaseException:
        own.close()
        for one in sets:
            one.close()
        raise
    return Follower(ring, sets)
