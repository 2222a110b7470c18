"""Processes that use weights which another one writes step by step; vmmshare.weights has the
names."""

from __future__ import annotations

import os
import sys
import typing

from . import connect
from ._closing import Closing
from ._core import Allocation
from ._deadlines import deadline_of, left_of
from ._marks import Marks, check_not_captured, keep
from ._ring import Item, RingBuffer, RingReader, open_ring
from ._sets import TensorSet
from ._sync import hear_slots, socket_of
from .errors import (DeadlineExceeded, FailedPrecondition, InvalidArgument, OutOfRange,
                     VmmshareError)

if typing.TYPE_CHECKING:
    import socket

    import torch


_LAPS_AHEAD = 2  # That a ring's writer may be: RingWriter::Acquire().


class Follower(Closing):
    """Weights that another process writes anew again and again: see follow().

        with vs.weights.follow(connection) as follower:
            for request in requests:
                weights = follower.latest(stream)
                run(model_of[follower.slot], request)      # on `stream`

    One thread at a time.
    """

    def __init__(self, ring: RingReader, sets: "list[TensorSet]", marks: Marks):
        self._ring, self._sets, self._marks = ring, sets, marks
        self._stream = 0  # That the update is used on.
        self._pid = os.getpid()
        self._open = True
        self._buffer: "RingBuffer | None" = None
        # What Ctrl-C may leave half done: an item that came, on a stream, and is not in use yet;
        # one that is in use no more, and not given back; and the last that was begun to be.
        self._came: "list[Item]" = []
        self._came_on = 0
        self._to_release: "RingBuffer | None" = None
        self._released, self._released_on = 0, 0
        self._has_begun = False  # There was an update.
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
        """The newest update that was handed over before the call, or one that came meanwhile:
        later work on `stream` sees all of it, also where another stream got it before.

        Gives the one before back after what is on `stream` now; use that no more, and have
        `stream` wait for other streams that use it. Waits only for the first one,
        DeadlineExceeded then. When the publisher has finished, that stays in use which was the
        last; OutOfRange when there was none, or release() gave it back. Unavailable when the
        publisher ended, Aborted when it has dropped this follower or was closed: what is mapped
        stays, and wait() says whether it is complete. FailedPrecondition while `stream` is captured
        into a graph.
        """
        check_not_captured(stream, "latest()")
        self._settle(stream)
        # A publisher is two laps ahead at most. One that is as fast as this loop, or lies, would
        # have it go on for ever.
        for _ in range(_LAPS_AHEAD * len(self._sets)):
            if self.finished and not self._came:
                break
            try:
                self._take(stream, timeout if self._buffer is None else 0)
            except DeadlineExceeded:
                if self._buffer is None:
                    raise
                break
            except OutOfRange:
                self.finished = True
                break
        if self._buffer is None:
            if self._has_begun:
                raise OutOfRange("the publisher has finished, and its last update was given back",
                                 "Look at `finished` before, or keep the last update.")
            raise OutOfRange("the publisher finished before its first update",
                             "Publish one before finish().")
        # The update that is in use may be there for another stream's work alone.
        self._marks.order(self._stream, stream)
        self._stream = stream
        return self._sets[self.slot]

    def _take(self, stream: int, timeout: "float | None") -> None:
        """Has the next one in use, and gives the one before back. What is left of a call that was
        interrupted goes on where that was."""
        is_on_stream = bool(self._came)
        if is_on_stream:
            self._marks.order(self._came_on, stream)
        self._came_on = stream
        try:
            if not self._came:
                self._ring._take(stream, timeout, self._came)
            is_on_stream = True
            newer = self._ring._buffer_of(self._came[0], stream)
            # In this order: each of them may be the last one before Ctrl-C.
            self._to_release = self._buffer
            self._buffer = newer
            self._stream, self._has_begun = stream, True
            self._came.clear()
            self._give_back_the_one_before(stream)
        finally:
            if is_on_stream or self._came:
                self._marks.put(stream)

    def _settle(self, stream: int) -> None:
        """What Ctrl-C left between two steps of _take() or of release()."""
        if self._to_release is not None and self._to_release is self._buffer:
            self._to_release = None
        if self._came and self._buffer is not None and self._buffer.number == self._came[0][3]:
            self._came.clear()
            self._stream, self._has_begun = self._came_on, True
        if self._to_release is not None:
            self._marks.order(self._came_on, stream)
            with self._marks.behind(stream):
                self._give_back_the_one_before(stream)
        if self._buffer is not None and self._released == self._buffer.number:
            # It may be the publisher's by now, which writes there.
            self._marks.order(self._released_on, stream)
            self._release(stream)

    def _give_back_the_one_before(self, stream: int) -> None:
        if self._to_release is None:
            return
        try:
            self._give_back(self._to_release, stream)
        except VmmshareError:  # The ring has ended, which the next call says too.
            self._to_release = None
            raise
        self._to_release = None

    def _give_back(self, buffer: RingBuffer, stream: int) -> None:
        is_second_try, self._released = self._released == buffer.number, buffer.number
        try:
            self._ring.release(buffer, stream)
        except (VmmshareError, TypeError, ValueError) as why:
            if not is_second_try:
                self._released = 0
            if not (is_second_try and isinstance(why, FailedPrecondition)):
                raise  # Else the first one did, and Ctrl-C came as it returned.

    def torch(self) -> "dict[str, torch.Tensor]":
        """The tensors of the update in use; made once for each slot."""
        self._in_use()
        if self.slot not in self._tensors:
            self._tensors[self.slot] = self._sets[self.slot].torch()
        return self._tensors[self.slot]

    def wait(self, *, timeout: "float | None" = 10.0) -> None:
        """Returns when all of the update in use is there, for a host that looks at it; streams
        need no wait. Aborted or Unavailable when it never will be."""
        self._in_use().wait(timeout=timeout)

    def _in_use(self) -> RingBuffer:
        if self._buffer is None:
            raise FailedPrecondition("no update is in use", "Call latest() first.")
        return self._buffer

    def release(self, stream: int = 0) -> None:
        """Gives the update back after what is on `stream` now: none is in use then, and latest()
        waits for the next one. Aborted, Unavailable or FailedPrecondition as latest(); the update is
        in use still then. After another exception, Ctrl-C say, it may be given back: use it no more,
        the next release() or latest() does the rest."""
        if self._buffer is not None:
            check_not_captured(stream, "release()")
            self._settle(stream)
            if self._buffer is not None:
                self._release(stream)

    def _release(self, stream: int) -> None:
        self._released_on = stream
        with self._marks.behind(stream):
            self._give_back(self._in_use(), stream)
        self._buffer = None

    def close(self, *, timeout: "float | None" = 10.0) -> None:
        """Lets go of all when its tensors are gone. Waits until the GPU has passed what was on the
        streams at each latest() and release(), and what is on the last one now if the update was
        not released: that stream must be there. After `timeout` seconds its memory stays mapped
        until this process ends, as that does of one that is dropped with an update in use. In a
        forked child it does nothing: all is the parent's."""
        if self._pid != os.getpid():
            return
        if self._open and self._buffer is not None:
            self._buffer = None
            self._marks.put(self._stream)
        self._close(timeout)

    def _close(self, timeout: "float | None") -> None:
        if not self._open:
            return
        self._tensors = {}
        self._ring.close()
        if self._marks.passed(timeout):
            for one in self._sets:
                one.close()
            self._marks.close()
        else:
            keep(self._sets, self._marks)
        self._open = False

    def __del__(self) -> None:
        # Not in the order in which its parts would go; at the interpreter's end all goes.
        if (getattr(self, "_open", False) and self._pid == os.getpid()
                and not sys.is_finalizing()):
            if self._buffer is not None:
                self._marks.give_up()
            self._close(10.0)

    @property
    def closed(self) -> bool:
        return not self._open


def follow(connection: "socket.socket | int", *, device: typing.Any = 0,
           fingerprint: "str | None" = None, timeout: "float | None" = 10.0) -> Follower:
    """The weights of the Publisher that calls add() on the other end. `device`: whose streams and
    kernels use them here. DeadlineExceeded, Unavailable when nobody does; FailedPrecondition for another
    fingerprint."""
    deadline = deadline_of(timeout)
    own = socket_of(connection)
    sets: "list[TensorSet]" = []
    try:
        marks = Marks(device)
        slots = hear_slots(own, timeout)
        for place, text in enumerate(slots):
            memory = connect(text, timeout=left_of(deadline), device=device)
            if not isinstance(memory, Allocation):
                memory.close()
                raise InvalidArgument("the publisher's slot is a pool")
            sets.append(TensorSet(f"slot {place}", memory))
            found = sets[-1].fingerprint
            if fingerprint is not None and found != fingerprint:
                raise FailedPrecondition(f"the publisher's weights have the fingerprint {found!r}; "
                                         f"expected {fingerprint!r}", "They are of another model.")
        ring = open_ring(own, device=device, timeout=left_of(deadline))
    except BaseException:
        own.close()
        for one in sets:
            one.close()
        raise
    return Follower(ring, sets, marks)
