"""Entries of the broker: files, one for each name, in which the owner of memory says where it is
served."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import typing

from ._names import checked_name
from ._paths import Path, text_of
from .errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied

_BEGIN = "id-"
_MOST = 4096  # Bytes of an entry.


def name_of(name: "str | bytes") -> str:
    return checked_name(name.hex() if isinstance(name, bytes) else name, "a str or bytes")


def folder_of(directory: Path) -> str:
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


def make_folder(directory: Path) -> None:
    """REQUIRES: the folder of the sockets is there."""
    folder = folder_of(directory)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o700)  # The umask may have taken bits away.
    _check_folder(folder)


# Held where a descriptor of an entry is opened or closed, and while a process is forked: the child
# closes all that there are, and nothing else.
_forking = threading.RLock()


class Entry:
    """The file of a name, which this process alone has locked once it owns it: a forked child
    closes it, for the lock stands as long as anybody has the descriptor. Whatever ends a call, as
    Ctrl-C does, leaves the descriptor here, for withdraw()."""

    def __init__(self, name: str, directory: Path):
        self.path, self.descriptor = _path(folder_of(directory), name), -1
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

    def say(self, what: "dict[str, typing.Any]") -> None:
        """Has it say that, for read(). REQUIRES: it is owned."""
        text = json.dumps(what)
        os.ftruncate(self.descriptor, 0)
        # The end says that all of it is there.
        os.write(self.descriptor, text.encode() + b"\n")

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


_entries: "set[Entry]" = set()  # All that are open.
# Of what was collected: a collection may come in the middle of anything, and waits for no fork.
_collected: "list[tuple[Entry, typing.Any]]" = []


def close_collected() -> None:
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


def collect(entry: Entry, share: typing.Any) -> None:
    """Withdraws the one and closes the other, once nobody forks."""
    _collected.append((entry, share))
    close_collected()


@contextlib.contextmanager
def no_fork() -> "typing.Iterator[None]":
    try:
        with _forking:
            yield
    finally:
        close_collected()


def _go_on_in_parent() -> None:
    _forking.release()
    close_collected()


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


def read(name: "str | bytes", directory: Path) -> "tuple[str, str, int, int]":
    """(name, text of the share, offset, bytes) of an entry."""
    name = name_of(name)
    folder = folder_of(directory)
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


def names(directory: Path) -> "list[str]":
    """Of all entries that are there, whatever is in them."""
    folder = folder_of(directory)
    try:
        _check_folder(folder)
        return [file.removeprefix(_BEGIN).replace("%", "/") for file in sorted(os.listdir(folder))
                if file.startswith(_BEGIN)]
    except FileNotFoundError:
        return []
