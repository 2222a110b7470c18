"""An array of another process as a jax.Array, without a copy.

Shows vmmshare.jax.array(). JAX has no allocator of others, and its arrays do not change: so
another library fills the array, CuPy here. Needs a GPU, jax with CUDA, and cupy; with --host
jax and numpy alone, in memory of the host. Run it by itself: it starts the other process.
"""

import os

import support
import vmmshare as vs
import vmmshare.jax

COUNT = 1 << 10
# JAX would take most of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def total(text, ticket):
    """In the other process."""
    theirs = vmmshare.jax.array(vs.connect(text, timeout=10).open(ticket))
    return int(theirs.sum())


def fill(array, host):
    if host:
        numpy = support.library("numpy", "numpy")
        numpy.from_dlpack(array)[:] = numpy.arange(COUNT)
    else:
        import vmmshare.cupy
        cupy = support.library("cupy", "cupy-cuda12x")
        vmmshare.cupy.array(array)[:] = cupy.arange(COUNT, dtype="int32")
        cupy.cuda.get_current_stream().synchronize()


def main():
    host = support.arguments(__doc__, "--host").host
    jax = support.library("jax", "'jax[cuda12]'")
    if host:
        support.host_driver()
    else:
        support.gpu()
        if jax.default_backend() != "gpu":
            support.skip(f"jax has the backend {jax.default_backend()}: pip install 'jax[cuda12]'")
    pool = vs.Pool(device=0, host_node=0 if host else None)
    array = pool.empty(COUNT, "int32")
    fill(array, host)
    share = vs.serve(pool)
    print(f"sum {support.elsewhere(total, str(share), array.ticket())}")


if __name__ == "__main__":
    main()
