"""Memory under a name, by a connection to the keeper of its own for each call.

    vmmshare.keeper.put("weights", allocation)
    theirs = vmmshare.keeper.attach("weights")     # any process of this user, then or later

Who makes many calls, or holds a writer lock, has a Keeper. In all of these `address` is that
of the keeper's socket, this user's own if empty, and `timeout` is in seconds, for the whole
call, None for ever. NotFound: no keeper listens there; start one by `vmmshare keep`.
DeadlineExceeded, and what each says.
"""

from __future__ import annotations

import builtins
import contextlib
import time
import typing

from ._core import Allocation, Device, Keeper
from ._deadlines import deadline_of, left_of
from ._paths import Path

__all__ = ["attach", "drop", "list", "put"]


@contextlib.contextmanager
def _connected(address: Path, timeout: "float | None"
               ) -> "typing.Iterator[tuple[Keeper, typing.Callable[[], float | None]]]":
    """A connection, and what says how much is left of the timeout."""
    began = time.monotonic()
    with Keeper(address, timeout=timeout) as keeper:
        deadline = deadline_of(timeout, began)  # Keeper() has checked what it is.
        yield keeper, lambda: left_of(deadline)


def put(name: str, allocation: Allocation, *, seal: bool = False, address: Path = "",
        timeout: "float | None" = 10.0) -> None:
    """Has the keeper hold the memory too, beyond this process. seal: it is complete, and
    read-only from now on; where that fails the name is there, and not sealed. AlreadyExists
    when the name is taken."""
    if not isinstance(allocation, Allocation):
        raise TypeError(f"a keeper holds a whole Allocation, not a {type(allocation).__name__}: "
                        "make a vmmshare.Allocation, and arrays in it by its array()")
    with _connected(address, timeout) as (keeper, left):
        keeper.put(name, allocation, timeout=left())
        if seal:
            keeper.seal(name, timeout=left())


def attach(name: str, *, writable: bool = False, address: Path = "",
           timeout: "float | None" = 10.0,
           device: "Device | int | str | None" = None) -> Allocation:
    """The Allocation under a name. `device` as of connect(). NotFound when there is none;
    FailedPrecondition for a writable one of sealed memory."""
    with _connected(address, timeout) as (keeper, left):
        return keeper.attach(name, writable=writable, timeout=left(), device=device)


def drop(name: str, *, address: Path = "", timeout: "float | None" = 10.0) -> None:
    """Forgets the name. Who has it attached keeps it. NotFound when there is none."""
    with _connected(address, timeout) as (keeper, left):
        keeper.drop(name, timeout=left())


def list(*, address: Path = "", timeout: "float | None" = 10.0
         ) -> "builtins.list[dict[str, typing.Any]]":
    """Everything kept, by name: of each name, state, bytes, process, user, since, attached
    and what else docs/keeper.md says."""
    with _connected(address, timeout) as (keeper, left):
        return keeper.list(timeout=left())
