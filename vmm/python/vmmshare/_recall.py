"""vmmshare.on_recall()."""

from __future__ import annotations

import threading
import time
import typing

from ._core import Allocation, Array, RemotePool, Restorable
from .errors import DeadlineExceeded, FailedPrecondition, Unavailable

_LOOK_AGAIN = 0.2  # Seconds.


def _recalls_of_pool(remote):
    seen = 0
    while True:
        try:
            seen = remote._wait_recalled(seen, _LOOK_AGAIN)
        except DeadlineExceeded:
            continue
        yield remote.recalled()


def _is_recalled(memory):
    try:
        return memory.recalled_in is not None
    except FailedPrecondition:
        # Of another process's that this one gave back, or gives back just now, nobody wants
        # anything, until it is restored.
        if not isinstance(memory, Restorable) or memory.closed or memory.text:
            raise
        return False


def _recall_of_allocation(memory):
    while True:
        while not _is_recalled(memory):
            time.sleep(_LOOK_AGAIN)
        before = getattr(memory, "_restores", None)
        yield [memory.ptr]
        if before is None:
            return  # It does not come back.
        # What was restored since, by the callback perhaps, is asked for anew.
        while memory._restores == before and _is_recalled(memory):
            time.sleep(_LOOK_AGAIN)


def on_recall(remote: "RemotePool | Allocation | Array | Restorable",
              callback: "typing.Callable[[list[int]], object]") -> threading.Thread:
    """Calls callback(addresses) when the owner of `remote` wants memory back.

    On a thread of its own, which is returned, one call after the other; `addresses` are the
    Array.ptr of all of a RemotePool that are open here and asked for, or the ptr of an
    Allocation or of open_array()'s Array, which is asked for once, or of a Restorable, which is
    asked for again each time that it was restored. Let go of them as soon as possible: an
    owner's release() that timed out goes on asking, and nothing is said of that again. The
    thread ends when `remote`, which it keeps, is closed or its owner ends, or the callback
    raises; while a Restorable is released it sees no owner's end.

    FailedPrecondition for an Allocation, Array or Restorable that is of no other process,
    Unavailable for one whose owner has ended.
    """
    takes = (RemotePool, Allocation, Array, Restorable)
    if not isinstance(remote, takes) or not callable(callback):
        raise TypeError("on_recall() takes what connect() returned and a function, not a "
                        f"{type(remote).__name__} and a {type(callback).__name__}")
    if not isinstance(remote, RemotePool):
        _is_recalled(remote)
        asked = _recall_of_allocation(remote)
    else:
        asked = _recalls_of_pool(remote)

    def watch():
        while True:
            try:
                addresses = next(asked, None)
            except (FailedPrecondition, Unavailable):
                return
            if addresses is None:
                return
            if addresses:
                callback(addresses)

    thread = threading.Thread(target=watch, name="vmmshare-recall", daemon=True)
    thread.start()
    return thread
