"""What runs in the two processes of a row.

The first is started by row.py and starts the second. Each loads its libraries, says so, and
waits; when it is told to go, both work. The first writes JSON, a line each, for row.py.
"""

import importlib
import json
import multiprocessing as mp
import os
import socket
import sys
import traceback

LINGER = 20  # Seconds that the second process gets to end by itself.


class Side:
    """One of the two: rank 0 owns what is shared, and measures; rank 1 is its peer."""

    def __init__(self, rank, pipe, link, options):
        self.rank, self.peer, self.pipe, self.link = rank, 1 - rank, pipe, link
        self.options = options
        self.device = options["devices"][rank]
        self.cuda, self._lines = None, None

    @property
    def quick(self):
        return self.options["quick"]

    def use_device(self, device):
        """Loads the driver and makes a context on the device."""
        from driver import Driver
        self.device = device
        if self.options["driver"] == "host":
            import vmmshare.testing
            vmmshare.testing.use_host_driver()
            self.cuda = Driver(vmmshare.testing.host_driver())
        else:
            self.cuda = Driver()
        self.cuda.use(device)

    def meet(self):
        self.pipe.send("here")
        found = self.pipe.recv()
        assert found == "here", f"the peer sent {found!r}"

    def agree(self, going_on):
        """What rank 0 says, on both."""
        if self.rank == 0:
            self.pipe.send(bool(going_on))
            return going_on
        return self.pipe.recv()

    def slower(self, times):
        """On rank 0: of each pair of times that of the slower side."""
        if self.rank == 1:
            self.pipe.send(times)
            return times
        return [max(pair) for pair in zip(times, self.pipe.recv())]

    def emit(self, **figures):
        if self.rank == 0:
            print(json.dumps({"figures": figures}), file=self._lines, flush=True)


def work_of(row):
    module = importlib.import_module(row["module"])
    return getattr(module, row["work"])()


def second(pipe, link, row, options):
    try:
        work = work_of(row)
        work.load()
        pipe.send("loaded")
    except BaseException as error:
        pipe.send(f"not loadable: {type(error).__name__}: {error}")
        return
    try:
        if pipe.recv() == "go":
            work.run(Side(1, pipe, link, options))
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # Nothing that waits for its peer may keep it.


def first(row, options):
    """Returns whether it went well."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no figure.

    def say(**words):
        print(json.dumps(words), file=lines, flush=True)

    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    link, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = context.Process(target=second, args=(theirs, far, row, options), daemon=True)
    child.start()
    theirs.close()
    far.close()
    try:
        work = work_of(row)
        work.load()
    except (ImportError, OSError, AttributeError) as error:
        say(missing=f"not loadable: {type(error).__name__}: {error}")
        return False
    answer = ours.recv()
    if answer != "loaded":
        say(missing=answer)
        return False
    say(loaded=True)
    if sys.stdin.readline().strip() != "go":
        return False
    ours.send("go")
    side = Side(0, ours, link, options)
    side._lines = lines
    try:
        work.run(side)
    except (EOFError, ConnectionError):
        child.join(LINGER)
        say(peer=child.exitcode)
        return False
    except Exception as error:
        traceback.print_exc()
        say(failed=f"{type(error).__name__}: {error}")
        return False
    say(done=True)
    child.join(LINGER)
    return True


if __name__ == "__main__":
    good = first(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0 if good else 1)  # Libraries that wait for their peers in exit handlers do not.
