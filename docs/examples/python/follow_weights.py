"""A trainer writes its weights anew each step, and two engines switch to them without a copy.

usage: follow_weights.py [--host]

--host: without a GPU, in memory of the host; else it needs a GPU and CuPy 14 or newer. This
process is the trainer, and starts the engines.
"""

import socket
import subprocess
import sys

import vmmshare as vs
import vmmshare.weights

STEPS = 5
LIKE = {"embed.weight": ((1000, 64), "float32"), "norm.weight": (64, "float32")}


def array_of(array, host):
    """It, as an array of whatever library is here."""
    if host:
        import numpy
        return numpy.from_dlpack(array)
    import cupy
    return cupy.from_dlpack(array)


def train(flags):
    publisher = vs.weights.publisher(LIKE, host_node=0 if flags else None)
    engines = []
    for name in ("engine 0", "engine 1"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        engines.append(subprocess.Popen(
            [sys.executable, __file__, "--engine", str(theirs.fileno()), *flags],
            pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True))
        theirs.close()
        publisher.add(ours, name, timeout=60)
    for step in range(1, STEPS + 1):
        # On the default stream: later work there waits until no engine uses what is overwritten.
        slot = publisher.acquire(timeout=60)
        if flags:
            slot.wait(timeout=60)  # A CPU writes in no stream's order; a GPU needs no wait.
        for array in slot.values():
            array_of(array, flags)[...] = step
        number, lost = publisher.publish(timeout=60)
        print(f"trainer: update {number}, {len(lost)} engines lost")
    publisher.finish(timeout=60)
    for name, engine in zip(("engine 0", "engine 1"), engines):
        print(f"{name}: {engine.communicate(timeout=60)[0].strip()}")
    publisher.close()
    return int(any(engine.returncode for engine in engines))  # One that is killed has a negative one.


def make_context():
    """Current on this thread; with CuPy or PyTorch there is one already."""
    import ctypes

    import vmmshare.testing
    cuda, context = ctypes.CDLL(vmmshare.testing.host_driver()), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def follow(descriptor, flags):
    seen = []
    with vs.weights.follow(descriptor, timeout=60) as follower:
        while not follower.finished:
            weights = follower.latest(timeout=60)
            if follower.number not in seen:
                follower.wait(timeout=60)  # For the host, which looks at it here.
                values = {float(array_of(one, flags).ravel()[i])
                          for one in weights.values() for i in (0, -1)}
                assert values == {float(follower.number)}, values
                seen.append(follower.number)
        follower.release()
    print(f"the last update was {seen[-1]}, and each that was seen was whole")
    return 0 if seen[-1] == STEPS else 1


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    flags = [word for word in sys.argv[1:] if word == "--host"]
    if flags:
        import vmmshare.testing
        vmmshare.testing.use_host_driver()
        make_context()
    else:
        import cupy
        cupy.zeros(1)  # A context.
    if "--engine" in sys.argv:
        return follow(int(sys.argv[sys.argv.index("--engine") + 1]), flags)
    return train(flags)


sys.exit(main())
