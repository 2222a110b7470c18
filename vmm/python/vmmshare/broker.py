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
import errno
import fcntl
import json
import os
import stat
import threading
import typing

from . import _closing, connect
from ._core import Allocation, Array, Device, Server, _Fetched
from ._names import checked_name
from ._paths import Path, text_of
from .errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied

__all__ = ["Fetched", "Handles", "Published", "fetch", "fetch_handles", "list", "publish"]

_BEGIN = "id-"
_MOST = 4096  # Bytes of an entry.
_servers: "dict[str, tuple[int, Server]]" = {}


def _name_of(name: "str | bytes") -> str:
    return checked_name(name.hex() if isinstance(name, bytes) else name, "a str or bytes")


def _folder(directory: Path) -> str:
    """Where the entries are: beside the sockets, as C++ finds that folder."""
    user = os.geteuid()
    if not directory:
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        directory = (os.environ.get("NVIDIA_DRA_LOCAL_IPC_DIR")
                     or (f"{runtime}/vmmshare" if runtime else f"/tmp/vmmshare-{user}"))
    return os.path.join(text_of(directory), f"broker-{user}")


def _check(path: str, what: os.stat_result) -> None:
    if what.st_uid != os.geteuid() or stat.S_IMODE(what.st_mode) & 0o077:
        raise PermissionDenied(f"{path} is of user {what.st_uid}, with mode "
                               f"{stat.S_IMODE(what.st_mode):o}; expected this user's alone",
                               "Remove it, or name another directory.")


def _check_folder(folder: str) -> None:
    _check(folder, os.lstat(folder))  # A link would be somebody else's.


def _check_is_file(path: str, what: os.stat_result) -> None:
    if not stat.S_ISREG(what.st_mode):
        raise InvalidArgument(f"{path} is no entry of a broker: it is no file", "Remove it.")


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, _BEGIN + name.replace("/", "%"))


def _server(directory: Path) -> Server:
    folder = _folder(directory)  # The environment may name another one by now.
    pid, server = _servers.get(folder, (0, None))
    if server is None or pid != os.getpid():  # A forked child's is its own.
        server = Server(directory=directory)
        _servers[folder] = (os.getpid(), server)
    return server


# Held where a descriptor of an entry is opened or closed, and while a process is forked: the child
# closes all that there are, and nothing else.
_forking = threading.RLock()


class _Entry:
    """The file of a name, which this process alone has locked once it owns it: a forked child
    closes it, for the lock stands as long as anybody has the descriptor. Whatever ends a call, as
    Ctrl-C does, leaves the descriptor here, for withdraw()."""

    def __init__(self, path: str):
        self.path, self.descriptor = path, -1
        self.is_ours, self.is_parents = False, False

    def own(self, name: str) -> None:
        """Locks it: the lock goes with the process, and a name whose entry nobody has locked is
        free. AlreadyExists when another one has. REQUIRES: nobody forks."""
        _entries.add(self)
        while True:
            self.descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _check_is_file(self.path, os.fstat(self.descriptor))
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Else its owner removed it meanwhile, and what is there now is another one.
                self.is_ours = os.fstat(self.descriptor).st_ino == os.stat(self.path).st_ino
            except FileNotFoundError:
                pass
            except BlockingIOError:
                raise AlreadyExists(f"{name!r} is published already, by a process that is there",
                                    "Take another name, or close what has this one.") from None
            if self.is_ours:
                return
            self._let_go()

    def withdraw(self) -> None:
        """Once more it does nothing; of two who call it one does."""
        with _forking:
            try:
                # Unless somebody removed it: nobody else has the lock on it.
                with contextlib.suppress(FileNotFoundError):
                    if (self.is_ours and self.descriptor >= 0
                            and os.stat(self.path).st_ino == os.fstat(self.descriptor).st_ino):
                        os.unlink(self.path)
            finally:
                self._let_go()
                _entries.discard(self)

    def _let_go(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_entries: "set[_Entry]" = set()  # All that are open.
# Of what was collected: a collection may come in the middle of anything, and waits for no fork.
_collected: "builtins.list[tuple[_Entry, typing.Any]]" = []


def _close_collected() -> None:
    """Unless another thread has the lock, which calls this once it has let go of it."""
    shares = []
    while _collected and _forking.acquire(blocking=False):
        try:
            with contextlib.suppress(IndexError, OSError):
                entry, share = _collected.pop()
                shares.append(share)
                entry.withdraw()
        finally:
            _forking.release()
    for share in shares:
        share.close()


@contextlib.contextmanager
def _no_fork() -> "typing.Iterator[None]":
    try:
        with _forking:
            yield
    finally:
        _close_collected()


def _go_on_in_parent() -> None:
    _forking.release()
    _close_collected()


def _forget_in_child() -> None:
    try:
        _collected.clear()
        while _entries:
            entry = _entries.pop()
            entry.is_parents = True
            with contextlib.suppress(OSError):
                entry._let_go()
    finally:
        _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_go_on_in_parent,
                    after_in_child=_forget_in_child)


class Published(_closing.Closing):
    """Memory under a name while this exists: see publish(). The name is free when it was closed,
    and when its process has ended, however."""

    def __init__(self, name: str, entry: _Entry, memory: Allocation, share: typing.Any):
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
            _close_collected()

    @property
    def closed(self) -> bool:
        return self._share.closed and self._entry.descriptor < 0

    def __del__(self) -> None:
        entry = getattr(self, "_entry", None)
        if entry is not None and entry.descriptor >= 0:
            _collected.append((entry, self._share))
            _close_collected()


def publish(name: "str | bytes", memory: Allocation, *, directory: Path = "") -> Published:
    """Publishes an Allocation, or what adopt() made of another library's pointer, under a name.

    AlreadyExists while another has it; a name whose owner has ended is free. FailedPrecondition
    for memory that another process made, or that cannot be shared. What is shared is the whole of
    what cuMemCreate() made: of adopted memory also what lies around the pointer.
    """
    if not isinstance(memory, Allocation):
        raise TypeError(f"publish() takes an Allocation, of adopt(ptr, nbytes) for example, not a "
                        f"{type(memory).__name__}")
    name = _name_of(name)
    entry = _Entry(_path(_folder(directory), name))
    share = _server(directory).share(memory)  # Makes the folder, too.
    published = Published(name, entry, memory, share)
    try:
        folder = _folder(directory)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _check_folder(folder)
        with _no_fork():
            entry.own(name)
        text = json.dumps({"name": name, "text": str(share), "offset": memory.offset,
                           "nbytes": memory.nbytes})
        os.ftruncate(entry.descriptor, 0)
        # The end says that all of it is there.
        os.write(entry.descriptor, text.encode() + b"\n")
    except BaseException:
        published.close()
        raise
    return published


def _read(name: "str | bytes", directory: Path) -> "tuple[str, str, int, int]":
    """(name, text of the share, offset, bytes) of an entry."""
    name = _name_of(name)
    folder = _folder(directory)
    path = _path(folder, name)
    try:
        _check_folder(folder)
        # What is no file, a FIFO for example, must not hold up whoever looks.
        entry = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"nobody has published {name!r}; {path} is not there",
                       "Share the folder of the sockets with its owner, and its path.") from None
    except OSError as why:
        if why.errno not in (errno.ELOOP, errno.ENXIO):  # A link; a socket.
            raise
        raise InvalidArgument(f"{path} is no entry of a broker: it is no file",
                              "Remove it.") from why
    try:
        _check_is_file(path, os.fstat(entry))
        _check(path, os.fstat(entry))
        said = os.read(entry, _MOST)
    finally:
        os.close(entry)
    if not said.endswith(b"\n"):
        raise NotFound(f"{name!r} is not published: its owner ended, or is about to", "Try again.")
    try:
        what = json.loads(said)
        text, offset, nbytes = what["text"], what["offset"], what["nbytes"]
        if (what["name"] != name or not isinstance(text, str)
                or not all(type(one) is int and 0 <= one < 2**63 for one in (offset, nbytes))):
            raise ValueError(f"it says {what!r:.200}")
        text.encode()  # JSON may say what is no Unicode.
    except (KeyError, TypeError, ValueError, RecursionError) as why:
        raise InvalidArgument(f"{path} is no entry of a broker, or a damaged one: {why}") from why
    return name, text, offset, nbytes


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
    name, text, offset, nbytes = _read(name, directory)
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
    name, text, offset, nbytes = _read(name, directory)
    with _asking(name):
        return Handles(name, _Fetched(text, timeout), offset, nbytes)


def list(*, directory: Path = "") -> "builtins.list[dict[str, typing.Any]]":
    """Name and nbytes of all that was published here by owners who did not close it; some of these
    may have ended, which fetch() tells. What fetch() refuses is left out."""
    folder, found = _folder(directory), []
    with contextlib.suppress(FileNotFoundError):
        _check_folder(folder)
        for file in sorted(os.listdir(folder)):
            if not file.startswith(_BEGIN):
                continue
            with contextlib.suppress(NotFound, InvalidArgument, PermissionError):
                name, _, _, nbytes = _read(file.removeprefix(_BEGIN).replace("%", "/"), directory)
                found.append({"name": name, "nbytes": nbytes})
    return found
