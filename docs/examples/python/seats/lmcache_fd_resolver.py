"""A resolver of the shape that LMCache's `set_vmm_fd_resolver()` takes, over vmmshare's broker.

There a wrapper of a KV cache tensor travels to a cache server as plain data, and carries an export
id; the server asks a resolver for the descriptor behind it, imports that by calls of its own, and
closes it. Here the engine publishes the tensor's pointer under that id, and the resolver fetches
the descriptor by it. The engine sees who holds it, and asks for it back before it sleeps or ends.

Written from the signature alone, `Callable[[bytes], int]`: it has not run within LMCache.
tests/python/test_seats.py runs it with a stand-in of the caller, in two processes.
"""

import vmmshare as vs
import vmmshare.broker


class Exports:
    """In the engine: what is published, by export id. For one thread at a time."""

    def __init__(self, *, directory=""):
        self._directory, self._published = directory, {}

    def publish(self, export_id, ptr, nbytes):
        """Publishes the cuMemCreate() around `ptr`, which must be in one piece; a context must be
        current. AlreadyExists for an id that is taken, FailedPrecondition for memory of
        cudaMalloc(): the message says what to do."""
        self._published[export_id] = vs.broker.publish(export_id, vs.adopt(ptr, nbytes),
                                                       directory=self._directory)

    def holders(self, export_id):
        """Who holds it: a list of dicts."""
        return self._published[export_id].leases()

    def retire(self, export_id, *, within=10.0, timeout=None):
        """Nobody gets it anew; asks all who hold it to let go within so many seconds, and waits
        for that, by default as long. DeadlineExceeded names who still holds it: it is retired all
        the same, and may be waited for again."""
        published = self._published[export_id]
        published.close()
        published.recall(within)
        published.wait_returned(within if timeout is None else timeout)
        del self._published[export_id]

    def close(self):
        """Nobody gets anything anew. Who has it keeps it."""
        for published in self._published.values():
            published.close()


class FdResolver:
    """In the cache server: set_vmm_fd_resolver(FdResolver()). For one thread at a time."""

    def __init__(self, *, directory="", timeout=10.0):
        self._where = {"directory": directory, "timeout": timeout}
        self._held = {}

    def __call__(self, export_id):
        """The descriptor, which is the caller's to close. The engine counts the memory as held
        until release().

        NotFound for an id that nobody publishes, or whose engine has ended; FailedPrecondition for
        memory of several pieces, of which one descriptor is not all.
        """
        handles = vs.broker.fetch_handles(export_id, **self._where)
        if handles.chunks != 1:
            chunks = handles.chunks
            handles.close()
            raise vs.errors.FailedPrecondition(
                f"{export_id.hex()} is memory of {chunks} pieces, and a descriptor is one",
                "Make it by one cuMemCreate().")
        descriptor, _ = handles.take()
        self._held.setdefault(export_id, []).append(handles)
        return descriptor

    def release(self, export_id):
        """To be called when the wrapper has unmapped it: gives the lease back, or leases. Nothing
        for an id that is not held."""
        for handles in self._held.pop(export_id, []):
            handles.close()

    def wanted_back(self):
        """Export ids that their engines ask for, to be unmapped and released; those of engines that
        have ended are among them, for their memory goes with the last mapping."""
        wanted = []
        for export_id, all_of_it in self._held.items():
            try:
                asked = any(handles.recalled_in is not None for handles in all_of_it)
            except vs.errors.Unavailable:
                asked = True
            if asked:
                wanted.append(export_id)
        return wanted

    def close(self):
        for export_id in list(self._held):
            self.release(export_id)
