"""RMM takes its memory from a pool: cuDF, cuML and whatever else allocates by RMM.

Shows vmmshare.rmm.memory_resource(). Needs a GPU, rmm and cupy. To share what RMM allocated, copy it
into an array of the pool: one that is copied here is read in another process, by RMM too.
"""

import support
import vmmshare as vs
import vmmshare.cupy
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
    cupy = support.library("cupy", "cupy-cuda12x")
    support.gpu()
    pool = vs.Pool(device=0)
    rmm.mr.set_current_device_resource(vmmshare.rmm.memory_resource(pool))
    buffer = rmm.DeviceBuffer.to_device(TEXT)
    print(f"RMM's buffer is in a block of the pool: {pool.find(buffer.ptr)}")
    array = pool.empty(len(TEXT), "uint8")
    vmmshare.cupy.array(array)[:] = cupy.asarray(buffer)
    cupy.cuda.runtime.deviceSynchronize()
    share = vs.serve(pool)
    print(support.elsewhere(read, str(share), array.ticket()).decode())
    del buffer  # Before the pool's resource.


if __name__ == "__main__":
    main()
