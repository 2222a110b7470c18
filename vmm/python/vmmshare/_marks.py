"""How far the GPU has come on streams, for who waits for that or will unmap what they use."""

from __future__ import annotations

import contextlib
import os
import threading
import typing

from . import _core
from ._core import FencePool
from ._deadlines import deadline_of, left_of
from .errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, VmmshareError

if typing.TYPE_CHECKING:
    from ._core import Fence

_MOST_AGAIN = 64  # Waits of a stream for marks on its own value, until it has passed them.


def check_is_here(made_in: int) -> None:
    """Of what was made in the process `made_in`. In a forked child all is the parent's, and a turn
    that one of the parent's threads had at the fork is taken for ever."""
    if made_in != os.getpid():
        raise FailedPrecondition("the object is the parent's, and this is a forked child",
                                 "Make what the child needs in the child, or start it by spawn.")


def check_not_captured(stream: int, what: str) -> None:
    """Before anything is put on it. In a graph it would come at each launch, or never, and signal
    what may be gone by then."""
    if _core._is_captured(stream):
        raise FailedPrecondition(
            f"{what}: stream {stream:#x} is being captured into a graph, each launch of which would "
            "do the same again",
            "Come again after the capture, or give a stream that is not captured.")


class Mark(typing.NamedTuple):
    """A point of a stream. Who waits for it again puts nothing more on the stream, whose queue the
    driver lets grow so far and no further: then a call blocks, whatever its timeout."""

    fence: "Fence"
    number: int
    stream: int

    def wait(self, timeout: "float | None", what: str) -> None:
        """Returns when it is passed. DeadlineExceeded names `what`."""
        try:
            self.fence.wait(self.number, timeout=timeout)
        except DeadlineExceeded as why:
            raise DeadlineExceeded(
                f"wait(): {what} was not free within {timeout} s on the stream {self.stream:#x} "
                "that acquire() was given",
                "Call again when whoever reads it has given it back, and what is on that stream is "
                "done; or wait longer.") from why


class Marks:
    """How far the GPU has come on the streams that were used, for who will unmap what they use.

    A mark is put while its stream is there; nobody asks after one that may be destroyed. A new
    stream may have the value of such a one, whose work goes on: so a fence is signalled again by
    a stream only when what was put before is passed, and otherwise another one is.
    """

    def __init__(self, device: typing.Any):
        self._fences = FencePool(device)
        self._last: "dict[int, tuple[Fence, int]]" = {}
        # Those before, of which each was not passed when the next one came.
        self._before: "list[tuple[int, Fence, int]]" = []
        self._sure = True
        self._unsure: "list[Fence]" = []  # That the GPU may signal once more, or not.
        self._again: "dict[int, int]" = {}  # How often order() had a stream wait for its value.
        self._turn = threading.Lock()  # Of mark(), which several threads may call.
        self._pid = os.getpid()

    def _mark(self, stream: int) -> "tuple[Fence, int]":
        check_not_captured(stream, "wait()")
        last = self._last.get(stream)
        on_its_way = last is not None and last[0].value < last[1]
        fence, number = (self._fences.new(), 0) if last is None or on_its_way else last
        try:
            fence.signal(stream, number + 1)
            if last is not None and on_its_way:
                self._before.append((stream, *last))
            self._last[stream] = fence, number + 1
        except (VmmshareError, TypeError, ValueError):
            raise  # Nothing was put.
        except BaseException:  # Ctrl-C: it may have been. No other mark may have that fence.
            self._sure = False
            self._unsure.append(fence)
            if last is not None:
                self._before.append((stream, *last))
            self._last.pop(stream, None)
            raise
        if len(self._last) + len(self._before) > 64:  # Streams come and go.
            self._last = {on: (mark, its) for on, (mark, its) in self._last.items()
                          if mark.value < its or on == stream}
            self._before = [(on, mark, its) for on, mark, its in self._before if mark.value < its]
            self._again = {on: count for on, count in self._again.items() if on in self._last}
        return fence, number + 1

    def _all(self) -> "list[tuple[int, Fence, int]]":
        return [*self._before, *((on, mark, its) for on, (mark, its) in self._last.items())]

    def put(self, stream: int) -> None:
        """Behind what is on `stream` now. What the driver refuses is never known to be passed, nor is
        what is on a stream that is captured; but nothing is on what is no stream."""
        try:
            self._mark(stream)
        except InvalidArgument:
            pass
        except VmmshareError:
            self._sure = False
        except BaseException:  # Ctrl-C: there may be none.
            self._sure = False
            raise

    @contextlib.contextmanager
    def behind(self, stream: int) -> "typing.Iterator[None]":
        """put() when what is in it is on the stream, all or a part of it."""
        try:
            yield
        finally:
            self.put(stream)

    def mark(self, stream: int) -> "Mark":
        """Behind what is on `stream` now, for a host that waits for it. FailedPrecondition while it
        is captured into a graph."""
        check_is_here(self._pid)
        with self._turn:
            return Mark(*self._mark(stream), stream)

    def order(self, before: int, after: int) -> None:
        """What is put on `after` from now on comes behind the marks on `before`, which may be gone
        by now. So it is when both have one value, which a new stream may have of one whose work
        goes on."""
        late = [(fence, number) for on, fence, number in self._all()
                if on == before and fence.value < number]
        if before == after and late:
            # Mostly it is the same stream, which would wait for itself: harmless, but the queue of
            # one that stands still fills up when somebody asks again and again.
            again = self._again.get(after, 0)
            if again >= _MOST_AGAIN:
                return
            self._again[after] = again + len(late)
        elif before == after:
            self._again.pop(after, None)
        for fence, number in late:
            fence.wait(after, number)

    def give_up(self) -> None:
        """passed() is false from now on: a stream that there is a mark to put on may be gone."""
        self._sure = False

    def passed(self, timeout: "float | None") -> bool:
        """Whether the GPU has passed all of them, or does within `timeout` seconds."""
        if not self._sure:
            return False
        deadline = deadline_of(timeout)
        try:
            for _, fence, number in self._all():
                fence.wait(number, timeout=left_of(deadline))
        except VmmshareError:
            return False
        return True

    def close(self) -> None:
        for _, fence, _ in self._all():
            fence.close()
        self._last, self._before = {}, []
        self._fences.close()


# What the GPU may still use when its owner has given up waiting: unmapped under
# its work it would end the context.
_kept: "list[object]" = []


def keep(*what: object) -> None:
    """Until this process ends."""
    _kept.append(what)
