"""A process that writes weights step by step; vmmshare.weights has the names."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import typing

from . import serve
from ._closing import Closing
from ._core import Device, FencePool, Share, devices
from ._deadlines import deadline_of, left_of
from ._marks import Marks, check_not_captured, keep
from ._ring import Item, RingHome, RingWriter
from ._sets import Draft, draft
from ._sync import MOST_SLOTS, socket_of, tell_slots
from .errors import (Aborted, DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument,
                     Unavailable, VmmshareError)

if typing.TYPE_CHECKING:
    import socket

    import torch

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
    # Acquired for an update that is not published: one, or none. Whatever is raised as it comes.
    came: "list[Item]" = dataclasses.field(default_factory=list)
    given: int = 0  # The last item of the ring that was begun to be handed over.


class Publisher(Closing):
    """Writes a model's weights anew again and again, for processes that follow: see publisher().

        with vs.weights.publisher(model.state_dict()) as publisher:
            publisher.add(connection, "engine 0")          # each engine, then or later
            for batch in data:
                step(model, batch)
                publisher.copy(model.state_dict())         # on PyTorch's current stream

    One thread at a time. Streams are CUstreams as ints; no host waits for a GPU before a follower
    is two rounds of the slots behind.
    """

    def __init__(self, slots: "list[Draft]", device: typing.Any):
        self._slots = slots
        for place, slot in enumerate(slots):
            slot._writer.load_copying()  # What copies: it cannot be loaded while streams wait.
            slot._writer.seal(place + 1)  # Followers map it from now on.
        self._ordinal = _ordinal_of(device)
        with contextlib.ExitStack() as undo:  # Who handles what is raised has this object.
            def closed_if_not(made: typing.Any) -> typing.Any:
                return undo.enter_context(contextlib.closing(made))

            self._shares: "list[Share]" = [closed_if_not(serve(slot.memory)) for slot in slots]
            self._home = closed_if_not(RingHome(device, host_node=0))
            self._fences = closed_if_not(FencePool(device))
            self._written = closed_if_not(self._fences.new())
            self._marks = closed_if_not(Marks(device))
            undo.pop_all()
        self._tensors: "dict[int, dict[str, torch.Tensor]]" = {}
        self._followers: "dict[str, _Follower]" = {}
        self._lost: "dict[str, VmmshareError]" = {}
        self._closing: "list[threading.Thread]" = []  # Rings of followers that have ended.
        self._added = 0
        self._acquired = False
        self._stream = 0  # That of the last acquire().
        self._signalled = 0  # The last number.
        self._begun = 0  # That publish() began to hand over. More than `number`: not to the end.
        self.number = 0
        self._pid = os.getpid()
        self._open = True

    @property
    def followers(self) -> "list[str]":
        """Names of those that are there, as far as is known."""
        return list(self._followers)

    def add(self, connection: "socket.socket | int", name: str = "", *, stream: int = 0,
            timeout: "float | None" = 10.0) -> None:
        """Takes the process that calls follow() on the other end of `connection`, a Unix socket of
        SOCK_SEQPACKET, which is the publisher's from now on. It has the newest update at once,
        if there is one, in the order of `stream`. FailedPrecondition for a name that another one
        has, between acquire() and publish(), and while `stream` is captured into a graph;
        DeadlineExceeded when it does not follow."""
        self._check_open()
        check_not_captured(stream, "add()")
        added = self._added + 1
        if not name:
            while f"follower {added}" in self._followers:  # One that was given.
                added += 1
            name = f"follower {added}"
        if name in self._followers:
            raise FailedPrecondition(f"add({name!r}) of a name that a follower has",
                                     "Give each a name of its own.")
        if self._acquired or self._is_handed_over_in_part:
            raise FailedPrecondition(f"add({name!r}) while an update is acquired",
                                     "Publish it first.")
        deadline = deadline_of(timeout)
        own = socket_of(connection)
        with self._marks.behind(stream), contextlib.ExitStack() as undo:  # Which tells it.
            undo.callback(own.close)
            tell_slots(own, [str(share) for share in self._shares], timeout)
            ring = self._home.open(own, buffers=len(self._slots), nbytes=_ITEM,
                                   timeout=left_of(deadline))
            undo.callback(ring.close)
            undo.callback(ring.abort)
            if self.number > 0:
                self._written.wait(stream, self.number)
                buffer = ring.acquire(stream, timeout=left_of(deadline))
                buffer.tag = self.number
                ring.publish(buffer, stream, timeout=left_of(deadline))
            undo.pop_all()
        self._followers[name] = _Follower(ring)
        self._added = added

    def acquire(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> Draft:
        """The slot of the next update, for work that is put on `stream` later, which waits until
        no follower uses what is there.

        It is free in the order of the stream: a host that writes to it calls the slot's wait()
        first. What was written on the stream before is for the caller to wait for. After an
        exception, or without a publish(), it may be called again, on another stream too.

        DeadlineExceeded names a follower that has not looked for an update for two rounds of the
        slots; FailedPrecondition while `stream` is captured into a graph, and when publish() has
        handed over the one before in part: then call that again first."""
        self._check_open()
        if self._is_handed_over_in_part:
            raise FailedPrecondition(
                f"acquire() when publish() has handed over the update {self._begun} in part, so "
                "that followers may use its slot", "Call publish() again first.")
        check_not_captured(stream, "acquire()")
        deadline = deadline_of(timeout)
        if self._acquired or any(one.came for one in self._followers.values()):
            self._marks.order(self._stream, stream)  # What a try before waits for.
        self._stream = stream
        with self._marks.behind(stream):
            for name in list(self._followers):
                follower = self._followers[name]
                if follower.came:
                    continue  # Of a try before.
                try:
                    follower.ring._take(stream, left_of(deadline), follower.came)
                except DeadlineExceeded as why:
                    raise DeadlineExceeded(
                        f"follower {name!r} is two rounds of the {len(self._slots)} slots behind, "
                        f"and was so for {timeout} s: {why.args[0]}",
                        "Have it call latest() more often, or end it.") from why
                except _ENDED as why:
                    self._drop(name, why)
        self._acquired = True
        self._slot._acquired = self._marks, stream
        return self._slot

    def _check_open(self) -> None:
        if not self._open:
            raise FailedPrecondition("the publisher was closed",
                                     "Use it before close(), or before its `with` block ends.")

    @property
    def _place(self) -> int:
        """Of the next update's slot."""
        return (self.number + 1) % len(self._slots)

    @property
    def _slot(self) -> Draft:
        return self._slots[self._place]

    @property
    def _is_handed_over_in_part(self) -> bool:
        return self._begun > self.number

    def publish(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> Update:
        """Hands over what was written on `stream`. Followers see all of it or nothing.
        FailedPrecondition without acquire(), and while `stream` is captured into a graph. After
        another exception than the first it is to be tried again: followers may have the update. Where
        that is FailedPrecondition all have it: the exception came as the call returned."""
        if not self._acquired and not self._is_handed_over_in_part:
            raise FailedPrecondition("publish() of an update that was not acquired",
                                     "Call acquire() first, and write to what it returns.")
        check_not_captured(stream, "publish()")
        deadline = deadline_of(timeout)
        number = self.number + 1
        with self._marks.behind(stream):
            if self._signalled < number:
                if self._written.value < self._signalled:  # Another stream's, which is late.
                    self._written.wait(stream, self._signalled)
                is_second_try, self._begun = self._is_handed_over_in_part, number
                try:
                    self._written.signal(stream, number)
                except (VmmshareError, TypeError, ValueError) as why:
                    if not is_second_try:
                        self._begun = self.number
                    if not (is_second_try and isinstance(why, FailedPrecondition)):
                        raise  # Else the first one did, and Ctrl-C came as it returned.
                self._signalled = number
            for name in list(self._followers):
                if self._followers[name].came:  # Else a call before did, which then failed.
                    self._hand_over(name, number, stream, left_of(deadline))
        # In this order: each of them may be the last one before Ctrl-C.
        self._slot._acquired = None
        self._acquired = False
        self.number = number
        lost, self._lost = self._lost, {}
        return Update(number, lost)

    def _hand_over(self, name: str, number: int, stream: int, timeout: "float | None") -> None:
        """An update, in the turn that was acquired for the follower `name`."""
        follower = self._followers[name]
        buffer = follower.ring._buffer_of(follower.came[0], stream)
        buffer.tag = number
        is_second_try, follower.given = follower.given == buffer.number, buffer.number
        try:
            follower.ring.publish(buffer, stream, timeout=timeout)
        except (*_ENDED, DeadlineExceeded) as why:
            self._drop(name, why)
        except FailedPrecondition:
            if not is_second_try:
                follower.given = 0
                raise  # Else the first one did, and Ctrl-C came as it returned.
        follower.came.clear()

    def copy(self, tensors: "typing.Mapping[str, torch.Tensor]", *,
             timeout: "float | None" = 10.0) -> Update:
        """acquire(), a copy of PyTorch's tensors on its current stream, and publish().

        All that are no aliases must be given; those of another type are converted. KeyError for a
        name that is missing, ValueError for another shape. After an exception it may be called
        again: an update that was handed over in part is then handed over to all first.

        To memory of the host it is this thread that copies, and from there it waits until the GPU
        has read it. Before either it waits for the GPU to let go of the slot: DeadlineExceeded if
        it does not."""
        try:
            import torch
        except ImportError as error:
            raise ImportError("a publisher's copy() needs torch: pip install torch. Arrays of NumPy "
                              "are copied into what acquire() returns, by publish()") from error
        given = [tensors[name] for name in self._slot.own]
        on_host = self._slot.on_host
        where = self._ordinal if on_host else next(iter(self._own_of_slot().values())).device
        stream = torch.cuda.current_stream(where).cuda_stream
        check_not_captured(stream, "copy()")
        deadline = deadline_of(timeout)
        if self._is_handed_over_in_part:
            self._lost = self.publish(stream, timeout=left_of(deadline)).lost
        to = self._own_of_slot()
        slot = self.acquire(stream, timeout=left_of(deadline))

        def await_slot(way: str) -> None:
            if not self._marks.passed(left_of(deadline)):
                raise DeadlineExceeded(
                    f"copy() {way} memory of the host: the GPU has not let go of the slot within "
                    f"{timeout} s",
                    "Have followers call release(), or look for what PyTorch's current stream waits for.")

        if on_host:
            await_slot("to")
        with self._marks.behind(stream):  # Another call may be on another stream.
            # The GPU copies the first while the next are looked at.
            others = slot._writer.copy_tensors(torch.Tensor, given, slot.places, stream)
            if others:
                names = [slot.own[i] for i in others]
                here, there = [to[name] for name in names], [given[i] for i in others]
                for name, one, other in zip(names, here, there):
                    if one.shape != other.shape:  # PyTorch would broadcast it.
                        raise ValueError(f"tensor {name!r} is of shape {tuple(other.shape)}; "
                                         f"expected {tuple(one.shape)}")
                # What is pinned may be written to again once this returns.
                at_once = on_host or not all(other.is_cuda for other in there)
                if at_once and not on_host:
                    await_slot("from")
                with torch.no_grad():
                    torch._foreach_copy_(here, there, non_blocking=not at_once)
        return self.publish(stream, timeout=left_of(deadline))

    def _own_of_slot(self) -> "dict[str, torch.Tensor]":
        """The next update's tensors, but for aliases; made once for each slot."""
        if self._place not in self._tensors:
            made = self._slot.torch()
            self._tensors[self._place] = {name: made[name] for name in self._slot.own}
        return self._tensors[self._place]

    def _drop(self, name: str, why: VmmshareError) -> None:
        self._lost[name] = why
        ring = self._followers[name].ring
        ring.abort()  # Streams go on; those of a follower that is alive are told.
        # Now, for engines come and go as long as the trainer lives.
        self._closing = [one for one in self._closing if one.is_alive()] + _close_aside([ring])
        del self._followers[name]

    def finish(self, *, timeout: "float | None" = 10.0) -> "dict[str, VmmshareError]":
        """Says to all that no more come, and returns when their GPUs have let go of what there
        is; what publish() has as `lost` is returned. What was acquired and not published, also by
        an acquire() that failed, is left out: followers keep the update before. Its stream must
        still be there.

        DeadlineExceeded names those that are not done; it may be called again. FailedPrecondition
        for an acquired update that has none before, and for one that publish() has handed over in
        part: publish it first; and while its stream is captured into a graph."""
        deadline = deadline_of(timeout)
        self._leave_out_acquired(deadline)
        for follower in self._followers.values():  # Says it to all before it waits for one.
            with contextlib.suppress(DeadlineExceeded, *_ENDED):
                follower.ring.finish(timeout=0)
        late = []
        for name in list(self._followers):
            try:
                self._followers[name].ring.finish(timeout=left_of(deadline))
            except DeadlineExceeded:
                late.append(name)
            except _ENDED as why:
                self._drop(name, why)
        if late:
            raise DeadlineExceeded(f"followers {late} have not let go of all within {timeout} s",
                                   "Have them call latest() until they have finished, and release().")
        lost, self._lost = self._lost, {}
        return lost

    def _leave_out_acquired(self, deadline: "float | None") -> None:
        """A turn that was acquired cannot be given back: who is to have it gets the update before
        once more."""
        waiting = [name for name, one in self._followers.items() if one.came]
        if self._is_handed_over_in_part or waiting and self.number == 0:
            raise FailedPrecondition(
                f"finish() when the update {self.number + 1} was acquired and is not published to all",
                "Call publish() first; or close(), by which followers see that it never came.")
        if not self._acquired and not waiting:
            return
        check_not_captured(self._stream, "finish()")
        with self._marks.behind(self._stream):
            if waiting:
                self._written.wait(self._stream, self.number)
            for name in waiting:
                self._hand_over(name, self.number, self._stream, left_of(deadline))
        self._slot._acquired = None
        self._acquired = False

    def close(self, *, timeout: "float | None" = 10.0) -> None:
        """Hangs up. What followers have mapped stays with them. Waits some 10 s for those that use
        an update, all at a time, so call finish() first; and until the GPU has passed what this
        class put on streams, and what is on that of an update that was acquired and not published,
        which must be there. What it has not passed after `timeout` seconds more stays mapped until
        this process ends, as all does of one that is dropped with an update acquired. In a forked
        child it does nothing: all is the parent's."""
        if self._pid != os.getpid():
            return
        if self._open and self._acquired:
            self._acquired, self._slot._acquired = False, None
            self._marks.put(self._stream)
        self._close(timeout)

    def _close(self, timeout: "float | None") -> None:
        if not self._open:
            return
        self._tensors = {}
        for thread in [*self._closing, *_close_aside([one.ring for one in self._followers.values()])]:
            thread.join()
        if self._marks.passed(timeout):
            for share in self._shares:
                share.close()
            for slot in self._slots:
                slot.close()
            self._home.close()
            self._written.close()
            self._fences.close()
            self._marks.close()
        else:
            keep(self._shares, self._slots, self._home, self._written, self._fences, self._marks)
        self._closing, self._followers = [], {}
        self._open = False

    def __del__(self) -> None:
        # Not in the order in which its parts would go; at the interpreter's end all goes.
        if (getattr(self, "_open", False) and self._pid == os.getpid()
                and not sys.is_finalizing()):
            if self._acquired:
                self._marks.give_up()
            self._close(10.0)

    @property
    def closed(self) -> bool:
        return not self._open


def _ordinal_of(device: typing.Any) -> int:
    if isinstance(device, str):
        return next(one.ordinal for one in devices() if one.uuid == device)
    return device.ordinal if isinstance(device, Device) else int(device)


def _close_aside(rings: "list[RingWriter]") -> "list[threading.Thread]":
    """Each waits for its reader and for the GPU, some 10 s: on threads, which are returned."""
    threads = []
    for ring in rings:
        # The interpreter's end does not wait for it.
        thread = threading.Thread(target=ring.close, name="vmmshare-ring", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # No thread can be had, or the interpreter is ending.
            ring.close()
        else:
            threads.append(thread)
    return threads


def publisher(like: "typing.Mapping[str, typing.Any]", *, slots: int = 2, fingerprint: str = "",
              metadata: "typing.Mapping[str, str] | None" = None, device: typing.Any = 0,
              host_node: "int | None" = None) -> Publisher:
    """A Publisher of sets of such tensors, as draft() has them. Each slot is a set's memory: two
    of them are least, and with each one more the writer may be one more update ahead."""
    if not 2 <= slots <= MOST_SLOTS:
        raise InvalidArgument(f"{slots} slots; expected 2 to {MOST_SLOTS}")
    made: "list[Draft]" = []
    try:
        while len(made) < slots:
            made.append(draft(like, fingerprint=fingerprint, metadata=metadata, device=device,
                              host_node=host_node))
        return Publisher(made, device)
    except BaseException:
        for one in made:
            one.close()
        raise
