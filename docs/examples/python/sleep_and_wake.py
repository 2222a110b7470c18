"""Two engines share weights, give the memory back, and have it again at the same addresses.

usage: sleep_and_wake.py [--host]

--host: without a GPU, in memory of the host; else it needs a GPU and CuPy 14 or newer. This
process owns the weights and starts the other one, which maps them read-only and lets go when
it is asked.
"""

import subprocess
import sys
import threading

import vmmshare as vs

COUNT = 1 << 20


def total(array, host):
    """The sum of it, by whatever library is here."""
    if host:
        import numpy as np
        return int(np.from_dlpack(array).sum())
    import cupy
    return int(cupy.from_dlpack(array).sum())


def fill(array, value, host):
    if host:
        import numpy as np
        np.from_dlpack(array)[:] = value
    else:
        import cupy
        cupy.from_dlpack(array)[:] = value
        cupy.cuda.get_current_stream().synchronize()


def own(flags):
    weights = vs.restorable(nbytes=4 * COUNT, host_node=0 if flags else None)
    array = weights.array(COUNT, "int32")
    fill(array, 3, flags)
    other = subprocess.Popen([sys.executable, __file__, "--of", weights.text, *flags],
                             stdout=subprocess.PIPE, text=True)
    print("other:", other.stdout.readline().strip())
    at = weights.ptr
    weights.release(timeout=30)  # Returns when the other one has let go as well.
    print("asleep: the device has the memory back")
    weights.restore()
    print("awake:", "same address," if weights.ptr == at else "elsewhere,", "sum",
          total(array, flags))
    print("other:", other.stdout.readline().strip())
    return other.wait()


def use(text, flags):
    weights = vs.connect_restorable(text)
    array, at = weights.array(COUNT, "int32"), weights.ptr
    print("sum", total(array, flags), flush=True)
    asleep = threading.Event()

    def let_go(addresses):
        weights.release()
        asleep.set()

    vs.on_recall(weights, let_go)  # Also of each later sleep, until `weights` is closed.
    asleep.wait()
    weights.restore(timeout=30)  # Waits until the owner is awake.
    print("awake:", "same address," if weights.ptr == at else "elsewhere,", "sum",
          total(array, flags))
    return 0


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    flags = [word for word in sys.argv[1:] if word == "--host"]
    if flags:
        import vmmshare.testing
        vmmshare.testing.use_host_driver()
    if "--of" in sys.argv:
        return use(sys.argv[sys.argv.index("--of") + 1], flags)
    return own(flags)


sys.exit(main())
