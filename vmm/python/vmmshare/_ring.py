"""A ring of buffers from one process to another; vmmshare has its names."""

from __future__ import annotations

import bisect
import operator
import os
import socket
import sys
import threading
import typing

from . import _core, errors
from ._closing import Closing, check_open
from ._core import Array, Device
from ._deadlines import deadline_of, left_of
from ._marks import Mark, Marks, check_is_here, keep
from ._reads import CPU
from ._sync import check_connection


def _channel(connection: "socket.socket | int") -> _core._Channel:
    check_connection(connection, "a ring takes")
    return _core._Channel(connection if isinstance(connection, int) else connection.detach())


def _number(name: str, number: typing.Any, bits: int = 64) -> int:
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"{name}: expected an int, not a {type(number).__name__}") from None
    if not 0 <= value < 2**bits:
        raise ValueError(f"{name} is {number}; expected 0 to 2**{bits} - 1")
    return value


class _Free:
    """How a host knows that a writer's buffers are free. These have it, and not the writer, so
    that they do not keep that."""

    def __init__(self, device: "int | str | Device"):
        self._device = device
        self._marks: "Marks | None" = None  # Whom the GPU alone writes for needs none.
        self._turn = threading.Lock()
        self._pid = os.getpid()

    def mark(self, stream: int) -> "Mark":
        check_is_here(self._pid)
        # Held for the signal too: let_go() asks after all that were put.
        with self._turn:
            if self._marks is None:
                self._marks = Marks(self._device)
            return self._marks.mark(stream)

    def let_go(self, timeout: float) -> None:
        if self._pid != os.getpid():  # As check_is_here().
            return
        with self._turn:  # Nobody puts one there from now on.
            marks, self._marks = self._marks, None
        if marks is None:
            return
        passed = False
        try:
            passed = marks.passed(timeout)
        finally:
            if not passed:
                keep(marks)  # The GPU will write there.
        if passed:
            marks.close()

    def __del__(self) -> None:
        if getattr(self, "_marks", None) is not None and not sys.is_finalizing():
            self.let_go(0)


Item = typing.Tuple[int, int, int, int]  # Address, bytes, tag and number.


class RingBuffer:
    """A buffer of a ring that is acquired: `ptr`, `nbytes`, `number` (from 1) and `tag`.

    A writer may lower `nbytes` and set `tag`, an int, before it publishes.
    """

    def __init__(self, ring: _core._Ring, item: Item, stream: int, free: "_Free | None"):
        self._ring, self._whole, self._stream = ring, item, stream
        self._free = free  # A writer's has it.
        self._mark: "Mark | None" = None  # Of the first wait(): one on the stream is enough.
        self._given_on = False
        self.ptr, self.nbytes, self.tag, self.number = item

    def _item(self) -> Item:
        return self.ptr, self.nbytes, self.tag, self.number

    def array(self, shape: typing.Any, dtype: typing.Any, offset: int = 0) -> Array:
        """A typed view. Its contents are another item's once the buffer is given on."""
        return self._ring.array(self._whole, shape, dtype, offset)

    def wait(self, *, timeout: "float | None" = 10.0) -> None:
        """For a host, which works in no stream's order. A reader's: returns when the contents are
        there, for a host that looks at them; Aborted or Unavailable when they never will be.

        A writer's: returns when the buffer is free, for a host that writes to it, that is when
        what is on the stream that acquire() was given is done, which must be there still.
        FailedPrecondition once it is published, and while that stream is captured into a graph.
        When the reader has ended it returns as well: publish() says so."""
        if self._free is None:
            self._ring.wait(self._item(), timeout)
            return
        if self._given_on:
            raise errors.FailedPrecondition(
                f"wait() for item {self.number}, which was published: it is the reader's",
                "Call it after acquire(), before the host writes.")
        check_open(self._ring)
        if self._mark is None:
            self._mark = self._free.mark(self._stream)
        self._mark.wait(timeout, f"the buffer of item {self.number}")


class _End(Closing):
    """Several threads may use it: their calls take turns, also while one waits. Each passes a
    stream of its own: on one that they share what a thread has acquired ahead waits before what
    another one publishes or releases, and both ends may wait for each other for ever."""

    _free: "_Free | None" = None

    def __init__(self, ring: _core._Ring):
        self._ring = ring
        # Acquired by calls that Ctrl-C ended as they returned, and by items() that waited for
        # their contents; nobody was given them.
        self._unclaimed: "list[RingBuffer]" = []

    def _take(self, stream: int, timeout: "float | None", into: "list[Item]") -> None:
        """acquire() for who keeps `into`: the item is in there, whatever is raised as it comes."""
        self._ring.acquire(stream, timeout, into)

    def _buffer_of(self, item: Item, stream: int) -> RingBuffer:
        return RingBuffer(self._ring, item, stream, self._free)

    def acquire(self, stream: int = 0, *, timeout: "float | None" = 10.0) -> RingBuffer:
        """The next buffer, for later work on `stream`, a CUstream as an int.

        The writer's is free by then, the reader's is full, in the order of the stream: a host that
        writes to it or looks at it calls the buffer's wait() first. A buffer that came as Ctrl-C
        ended the call is the next one again.

        OutOfRange when the writer has finished, DeadlineExceeded, Unavailable when the other end
        has gone, Aborted when it called abort(), or closed while an array of a buffer lives.
        FailedPrecondition while `stream` is captured into a graph; and, at once, when the next
        buffer is acquired since the lap before, by this thread or another one: call it again once
        that is published, or released. ValueError for stream 2, each thread's own.
        """
        unclaimed: "list[RingBuffer]" = []
        try:
            try:  # By one call, which Ctrl-C ends not before it has moved it.
                unclaimed.extend(map(self._unclaimed.pop, (0,)))
            except IndexError:
                pass
            if not unclaimed:
                return self._acquire_next(stream, timeout)
            buffer = unclaimed[0]
            if buffer._stream != stream:  # On which its contents, or their end, are waited for.
                buffer.wait(timeout=timeout)
                buffer._stream = stream
            return buffer
        except BaseException:
            for buffer in unclaimed:
                self._have_unclaimed(buffer)
            raise

    def _have_unclaimed(self, buffer: RingBuffer) -> None:
        """By number: of several threads the first to be interrupted may have a later one."""
        bisect.insort(self._unclaimed, buffer, key=operator.attrgetter("number"))

    def _acquire_next(self, stream: int, timeout: "float | None") -> RingBuffer:
        into: "list[Item]" = []
        try:
            self._take(stream, timeout, into)
            return self._buffer_of(into[0], stream)
        except BaseException:
            if into:
                self._have_unclaimed(self._buffer_of(into[0], stream))
            raise

    def finish(self, *, timeout: "float | None" = 10.0) -> None:
        """Returns when the GPU has passed all; a writer says that no more come."""
        self._ring.finish(timeout)

    def abort(self) -> None:
        """Ends the ring, and lets all streams go that wait in it, on both ends. Comes after what
        another thread's publish() is about to send, which is done by its timeout."""
        self._ring.abort()

    def close(self) -> None:
        """Waits until the GPU has passed what is in it, and hangs up. When it does not go on for
        10 s its streams are let go of, and have as long again to pass. After Ctrl-C it goes on
        by itself.

        While an array of a buffer lives the ring's memory stays. A reader ends the ring as by
        abort() then, at once when a buffer is acquired; a writer hangs up when the last one has
        gone, so that what it published can be used: finish() says that no more come."""
        self._ring.close()
        if self._free is not None:
            self._free.let_go(10.0)

    @property
    def closed(self) -> bool:
        return bool(self._ring.closed)


class RingWriter(_End):
    """The producer's end, of RingHome.open()."""

    def __init__(self, ring: _core._Ring, device: "int | str | Device"):
        super().__init__(ring)
        self._free = _Free(device)

    def publish(self, buffer: RingBuffer, stream: int = 0, *,
                timeout: "float | None" = 10.0) -> None:
        """Hands over what is on `stream` now. FailedPrecondition when it was already, or while
        `stream` is captured into a graph: then it is still acquired."""
        _number("nbytes", buffer.nbytes)
        _number("tag", buffer.tag)
        self._ring.hand_over(buffer._item(), stream, timeout)
        buffer._given_on = True


class RingReader(_End):
    """The consumer's end, of open_ring(). Iterating gives one buffer after the other on the
    default stream, each until the next is asked for; see items()."""

    def release(self, buffer: RingBuffer, stream: int = 0) -> None:
        """Gives it back after the work that is on `stream` now. FailedPrecondition when it was
        already, or while `stream` is captured into a graph: then it is still acquired."""
        self._ring.hand_over(buffer._item(), stream, None)

    def items(self, stream: int = 0, *, timeout: "float | None" = None
              ) -> "typing.Iterator[RingBuffer]":
        """The buffers on `stream`, each released when the next is asked for, until the writer
        has finished. Those on the host are waited for. `timeout` in seconds, for each with its
        contents. An item whose contents were late, or that was waited for as Ctrl-C came, is the
        next one again."""
        while True:
            deadline = deadline_of(timeout)
            try:
                buffer = self.acquire(stream, timeout=left_of(deadline))
            except errors.OutOfRange:
                return
            try:
                if buffer.array(0, "uint8").__dlpack_device__()[0] == CPU:
                    buffer.wait(timeout=left_of(deadline))
            except BaseException as why:
                if isinstance(why, errors.VmmshareError) and not isinstance(
                        why, errors.DeadlineExceeded):
                    self.release(buffer, stream)  # Its contents never come.
                else:
                    self._have_unclaimed(buffer)
                raise
            try:
                yield buffer
            finally:
                # Who keeps the iterator may let go of it after close(), which gave it back.
                if not self.closed:
                    self.release(buffer, stream)

    def __iter__(self) -> "typing.Iterator[RingBuffer]":
        return self.items()


class RingHome(Closing):
    """Where the buffers of this process's rings are: one for many rings whose readers may
    see each other's buffers. Unimplemented without stream memory operations."""

    def __init__(self, device: "int | str | Device" = 0, *, host_node: "int | None" = None):
        self._home, self._device = _core._RingHome(device, host_node), device

    def open(self, connection: "socket.socket | int", *, buffers: int = 8, nbytes: int,
             timeout: "float | None" = 10.0) -> RingWriter:
        """A ring of so many buffers of `nbytes` to whoever calls open_ring() on the other end
        of `connection`, a Unix socket of SOCK_SEQPACKET, which is the ring's from now on."""
        # The connection first: where the rest is wrong it is closed, and the other end told.
        ring = self._home.open(_channel(connection), _number("buffers", buffers, 32),
                               _number("nbytes", nbytes), timeout)
        return RingWriter(ring, self._device)

    def close(self) -> None:
        """Its rings keep their buffers."""
        self._home.close()

    @property
    def closed(self) -> bool:
        return bool(self._home.closed)


def open_ring(connection: "socket.socket | int", *, device: "int | str | Device" = 0,
              writable: bool = False, timeout: "float | None" = 10.0) -> RingReader:
    """The reader's end of a ring. `device`: whose streams use the buffers here."""
    return RingReader(_core._open_ring(_channel(connection), device, writable, timeout))
