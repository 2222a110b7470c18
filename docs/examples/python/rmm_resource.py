"""RMM takes its memory from a pool: cuDF, cuML and whatever else allocates by RMM.

Shows vmmshare.rmm.memory_resource(), and vmmshare.ticket(), by which another process reads what RMM
allocated where it lies. Needs a GPU and rmm. Run it by itself: it starts the other process.
"""

import support
import vmmshare as vs
import vmmshare.rmm

TEXT = b"from a DeviceBuffer"


def read(text, ticket):
    """In the other process: a DeviceBuffer is a copy of what is at an address."""
    import rmm
    theirs = vs.connect(text, timeout=10).open(ticket)
    return rmm.DeviceBuffer(ptr=theirs.ptr, size=theirs.nbytes).tobytes()


def main():
    support.arguments(__doc__)
    rmm = support.library("rmm", "rmm-cu12")
    support.gpu()
    pool = vs.Pool(device=0)
    rmm.mr.set_current_device_resource(vmmshare.rmm.memory_resource(pool))
    buffer = rmm.DeviceBuffer.to_device(TEXT)  # Which waits for its stream.
    print(f"RMM's buffer is in a block of the pool: {pool.find(buffer.ptr)}")
    share = vs.serve(pool)
    print(support.elsewhere(read, str(share), vs.ticket(buffer)).decode())
    del buffer  # Before the pool's resource.


if __name__ == "__main__":
    main()
