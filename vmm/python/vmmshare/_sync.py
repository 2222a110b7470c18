"""What a publisher of weights and its followers say to each other first; vmmshare.weights has the
names.

The sets lie in some slots, two by default, which all processes map once. What goes round among
them are the turns: a ring for each follower, whose items have no contents but the number of an
update. Of two slots one is read while the other one is written.
"""

from __future__ import annotations

import contextlib
import json
import socket
import typing

from ._deadlines import bounded
from .errors import DeadlineExceeded, InvalidArgument, Unavailable, Unimplemented

_VERSION = 1
_MOST = 16 << 10  # Bytes of the first message.
MOST_SLOTS = 8


def check_connection(connection: object, begin: str = "expected") -> None:
    """begin: of the TypeError's text."""
    # A bool is an int, and 1 the standard output.
    if isinstance(connection, bool) or not isinstance(connection, (socket.socket, int)):
        raise TypeError(f"{begin} a connected socket.socket, or a descriptor as an int, not a "
                        f"{type(connection).__name__}")


def socket_of(connection: "socket.socket | int") -> socket.socket:
    check_connection(connection)
    return connection if isinstance(connection, socket.socket) else socket.socket(fileno=connection)


@contextlib.contextmanager
def _hello(own: socket.socket, timeout: "float | None", here: str, there: str
           ) -> "typing.Iterator[None]":
    """For the first message, which waits `timeout` seconds."""
    seconds = bounded(timeout)  # A socket takes no more than 292 years.
    try:
        # A timeout of 0 would be another kind of error.
        own.settimeout(None if seconds is None else max(seconds, 1e-3))
        yield
        own.setblocking(True)
    except TimeoutError as why:
        raise DeadlineExceeded(f"{here}: nobody was on the other end within {timeout} s",
                               f"Call {there} there.") from why
    except OSError as why:
        raise Unavailable(f"{here}: the other end hung up: {why}", "Connect anew.") from why


def tell_slots(own: socket.socket, slots: "list[str]", timeout: "float | None") -> None:
    """The texts of the slots' shares, to whoever calls hear_slots()."""
    with _hello(own, timeout, "add()", "follow()"):
        own.send(json.dumps({"version": _VERSION, "slots": slots}).encode())


def hear_slots(own: socket.socket, timeout: "float | None") -> "list[str]":
    """InvalidArgument for what no publisher says, Unimplemented for one of a newer release."""
    with _hello(own, timeout, "follow()", "add()"):
        said = own.recv(_MOST)
    return _slots_of(said)


def _slots_of(said: bytes) -> "list[str]":
    if not said:
        raise Unavailable("follow(): the publisher hung up", "Call add() on the other end.")
    try:
        what = json.loads(said)
        version = what["version"]
        if isinstance(version, int) and version > _VERSION:
            raise Unimplemented(f"the other end speaks version {version}; this vmmshare has {_VERSION}",
                                "Use the same release on both sides.")
        if version != _VERSION:
            raise ValueError(f"version {version!r}; this vmmshare has {_VERSION}")
        slots = what["slots"]
        if not (isinstance(slots, list) and 2 <= len(slots) <= MOST_SLOTS
                and all(isinstance(one, str) for one in slots)):
            raise ValueError(f"slots {slots!r:.80}")
        for one in slots:
            one.encode()  # JSON may say what is no Unicode.
    except (KeyError, TypeError, ValueError, RecursionError) as why:
        raise InvalidArgument(f"the other end sent what no publisher of weights sends: {why}",
                              "Connect to one that calls add() on its end.") from why
    return slots
