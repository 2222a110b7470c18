"""An array of CuPy's own, made here, and summed in another process where it lies.

Shows vmmshare.cupy.use_pool(), within which CuPy's arrays are in the pool, vmmshare.ticket(),
which shares them, and vmmshare.cupy.array().
Needs a GPU and cupy. Run it by itself: it starts the other process.
"""

import support
import vmmshare as vs
import vmmshare.cupy

COUNT = 1 << 20


def total(text, ticket):
    """In the other process."""
    theirs = vmmshare.cupy.array(vs.connect(text, timeout=10).open(ticket))
    return float(theirs.sum(dtype="float64"))


def main():
    support.arguments(__doc__)
    cupy = support.library("cupy", "cupy-cuda12x")
    support.gpu()
    pool = vs.Pool(device=0)
    with vmmshare.cupy.use_pool(pool):
        numbers = cupy.arange(COUNT, dtype="float32")
    print(f"CuPy's own array is in a block of the pool: {pool.find(numbers.data.ptr)}")
    cupy.cuda.get_current_stream().synchronize()
    share = vs.serve(pool)
    print(f"sum {support.elsewhere(total, str(share), vs.ticket(numbers)):.0f}")


if __name__ == "__main__":
    main()
