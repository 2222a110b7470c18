"""Memory that another library made, under a name: found by processes that were told no more.

    memory = vmmshare.adopt(ptr, nbytes)                    # made by cuMemCreate(), by whomever
    published = vmmshare.broker.publish("kv/0", memory)     # while this exists

    theirs = vmmshare.broker.fetch("kv/0")                  # another process of this user: mapped
    array = theirs.array((8, 128), "float16")

    handles = vmmshare.broker.fetch_handles("kv/0")         # or its descriptor, for software that
    descriptor, nbytes = handles.take()                     # maps it itself

The owner sees who holds it, and asks for it back: leases(), recall(), wait_returned(). One process
holds at most 128 of an owner's at once, all together 256. Nothing is kept beyond the owner: what is
to outlive its maker goes to a keeper. No process id is looked at and no
device's number, so namespaces of processes and CUDA_VISIBLE_DEVICES may differ; the folder of the
sockets is what both need, at the same path.

A name has 1 to 128 of A-Z a-z 0-9 . _ / -; bytes stand for their digits in hexadecimal.
`directory` is that folder, this user's own if empty, and `timeout` in seconds, None for ever.
PermissionDenied for a folder that others may write to.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import typing

from . import _closing, connect
from ._broker_entries import (Entry, close_collected, collect, folder_of, make_folder, name_of,
                              names, no_fork, read)
from ._core import Allocation, Array, Device, Server, _Fetched
from ._paths import Path, is_removed
from .errors import InvalidArgument, NotFound

__all__ = ["Fetched", "Handles", "Published", "fetch", "fetch_handles", "list", "publish"]

_servers: "dict[str, tuple[int, Server]]" = {}


def _server(directory: Path) -> Server:
    folder = folder_of(directory)  # The environment may name another one by now.
    pid, server = _servers.get(folder, (0, None))
    # A forked child's is its own. Nobody can connect to one whose socket was removed.
    if server is None or pid != os.getpid() or is_removed(server._address):
        server = Server(directory=directory)
        _servers[folder] = (os.getpid(), server)
    return server


class Published(_closing.Closing):
    """Memory under a name while this exists: see publish(). The name is free when it was closed,
    and when its process has ended, however."""

    def __init__(self, name: str, entry: Entry, memory: Allocation, share: typing.Any):
        self.name, self.memory = name, memory
        self._entry, self._share = entry, share

    def leases(self) -> "builtins.list[dict[str, typing.Any]]":
        """Who holds it: a list of dicts."""
        return self.memory.leases()

    def recall(self, within: float) -> None:
        """Asks all of them to let go within so many seconds; waits for none. close() first, so
        that nobody fetches it anew."""
        self.memory.recall(within)

    def wait_returned(self, timeout: "float | None" = 10.0) -> None:
        """Returns when nobody holds it; DeadlineExceeded names who still does."""
        self.memory.wait_returned(timeout)

    def close(self) -> None:
        """Publishes it no more. Who has it keeps it. After an exception, as of Ctrl-C, it may be
        called again."""
        if self._entry.is_parents:
            return
        try:
            self._entry.withdraw()
        finally:
            self._share.close()
            close_collected()

    @property
    def closed(self) -> bool:
        return self._share.closed and self._entry.descriptor < 0

    def __del__(self) -> None:
        entry = getattr(self, "_entry", None)
        if entry is not None and entry.descriptor >= 0:
            collect(entry, self._share)


def publish(name: "str | bytes", memory: Allocation, *, directory: Path = "") -> Published:
    """Publishes an Allocation, or what adopt() made of another library's pointer, under a name.

    AlreadyExists while another has it; a name whose owner has ended is free. FailedPrecondition
    for memory that another process made, or that cannot be shared. What is shared is the whole of
    what cuMemCreate() made: of adopted memory also what lies around the pointer.
    """
    if not isinstance(memory, Allocation):
        raise TypeError(f"publish() takes an Allocation, of adopt(ptr, nbytes) for example, not a "
                        f"{type(memory).__name__}")
    name = name_of(name)
    entry = Entry(name, directory)
    share = _server(directory).share(memory)  # Makes the folder, too.
    published = Published(name, entry, memory, share)
    try:
        make_folder(directory)
        with no_fork():
            entry.own(name)
        entry.say({"name": name, "text": str(share), "offset": memory.offset,
                   "nbytes": memory.nbytes})
    except BaseException:
        published.close()
        raise
    return published


@contextlib.contextmanager
def _asking(name: str) -> "typing.Iterator[None]":
    try:
        yield
    except NotFound as why:
        raise NotFound(f"{name!r} was published, and its owner has ended or serves it no more: "
                       f"{why.args[0]}", why.remedy) from why


class Fetched(_closing.Closing):
    """Another process's memory, mapped: see fetch(). Arrays of it keep it."""

    def __init__(self, name: str, memory: Allocation, offset: int, nbytes: int):
        self.name, self.memory, self.offset, self.nbytes = name, memory, offset, nbytes

    @property
    def ptr(self) -> int:
        """Where what was published begins."""
        return self.memory.ptr + self.offset

    @property
    def recalled_in(self) -> "float | None":
        """Seconds until its owner wants it back; None while nobody asks. Unavailable once the
        owner has ended: what is mapped stays."""
        return self.memory.recalled_in

    def array(self, shape: typing.Any, dtype: typing.Any, offset: int = 0) -> Array:
        """A typed view, from `offset` bytes on. ValueError when it would leave what was
        published."""
        if offset < 0:
            raise ValueError(f"offset {offset}")
        array = self.memory.array(shape, dtype, self.offset + offset)
        if offset + array.nbytes > self.nbytes:
            raise ValueError(f"an array of {array.nbytes} bytes from {offset} on leaves the "
                             f"{self.nbytes} of {self.name!r}")
        return array

    def close(self) -> None:
        """Gives it back when its arrays are gone."""
        self.memory.close()

    @property
    def closed(self) -> bool:
        return self.memory.closed


def fetch(name: "str | bytes", *, writable: bool = False, directory: Path = "",
          timeout: "float | None" = 10.0,
          device: "Device | int | str | None" = None) -> Fetched:
    """The memory under a name, mapped, read-only unless `writable`. `device` as of connect().
    NotFound when nobody publishes it, InvalidArgument for an entry that is damaged,
    DeadlineExceeded."""
    name, text, offset, nbytes = read(name, directory)
    with _asking(name):
        memory = connect(text, timeout=timeout, writable=writable, device=device)
    if not isinstance(memory, Allocation) or offset + nbytes > memory.nbytes:
        memory.close()
        raise InvalidArgument(f"the entry of {name!r} says {nbytes} bytes from {offset} on, which "
                              "its memory has not")
    return Fetched(name, memory, offset, nbytes)


class Handles(_closing.Closing):
    """Handles of another process's memory, which is not mapped here: see fetch_handles(). The
    owner counts it as held until this is closed, so close it when whoever has them has let go of
    the memory."""

    def __init__(self, name: str, fetched: _Fetched, offset: int, nbytes: int):
        self.name, self.offset, self.nbytes = name, offset, nbytes
        self._fetched = fetched

    @property
    def chunks(self) -> int:
        """How many there are, one for each cuMemCreate(); 1 for all but the largest memory."""
        return self._fetched.chunks

    @property
    def recalled_in(self) -> "float | None":
        """As Fetched.recalled_in."""
        return self._fetched.recalled_in

    def take(self, chunk: int = 0) -> "tuple[int | bytes, int]":
        """The descriptor, or the 64 bytes of a fabric handle, and the chunk's bytes. A descriptor
        is the caller's to close. Once for each: FailedPrecondition after that."""
        return self._fetched.take(chunk)

    def close(self) -> None:
        """Gives the lease back. What was taken stays."""
        self._fetched.close()

    @property
    def closed(self) -> bool:
        return self._fetched.closed


def fetch_handles(name: "str | bytes", *, directory: Path = "",
                  timeout: "float | None" = 10.0) -> Handles:
    """The handles of the memory under a name. What was published begins `offset` bytes into the
    chunks, side by side. Errors as fetch()."""
    name, text, offset, nbytes = read(name, directory)
    with _asking(name):
        return Handles(name, _Fetched(text, timeout), offset, nbytes)


def list(*, directory: Path = "") -> "builtins.list[dict[str, typing.Any]]":
    """Name and nbytes of all that was published here by owners who did not close it; some of these
    may have ended, which fetch() tells. What fetch() refuses is left out."""
    found = []
    for one in names(directory):
        with contextlib.suppress(NotFound, InvalidArgument, PermissionError):
            name, _, _, nbytes = read(one, directory)
            found.append({"name": name, "nbytes": nbytes})
    return found
