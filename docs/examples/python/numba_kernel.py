"""Kernels of Numba on one array: here one fills it, in another process one reads it.

Shows vmmshare.numba.array(). Needs a GPU, numpy and numba-cuda. Run it by itself: it starts
the other process.
"""

import support
import vmmshare as vs
import vmmshare.numba

COUNT = 1 << 10


def kernels():
    """Compiled when they are first called."""
    import numba.cuda

    @numba.cuda.jit
    def count(out):
        i = numba.cuda.grid(1)
        if i < out.size:
            out[i] = i

    @numba.cuda.jit
    def double(numbers, out):
        i = numba.cuda.grid(1)
        if i < out.size:
            out[i] = 2 * numbers[i]

    return count, double


def doubled(text, ticket):
    """In the other process: it reads their array and writes one of its own."""
    import numba.cuda
    theirs = vmmshare.numba.array(vs.connect(text, timeout=10).open(ticket))
    own = numba.cuda.device_array(COUNT, "int32")
    kernels()[1][COUNT // 256, 256](theirs, own)
    return int(own.copy_to_host().sum())


def main():
    support.arguments(__doc__)
    cuda = support.library("numba.cuda", "numba-cuda")
    support.gpu()
    pool = vs.Pool(device=0)
    array = pool.empty(COUNT, "int32")
    kernels()[0][COUNT // 256, 256](vmmshare.numba.array(array))
    cuda.synchronize()
    share = vs.serve(pool)
    print(f"sum of the doubled {support.elsewhere(doubled, str(share), array.ticket())}")


if __name__ == "__main__":
    main()
