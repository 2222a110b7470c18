"""Compiles a kernel at run time and runs it on the array of make_data.py.

usage: run_kernel.py FILE

It only reads: the memory is mapped read-only, and what the kernel writes is an array of its
own. Needs a GPU and cupy, which has NVRTC, the compiler.
"""

import json
import sys

import vmmshare as vs

SOURCE = r"""
extern "C" __global__ void square(const float* in, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * in[i];
}
"""


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    import cupy

    import vmmshare.cupy
    with open(sys.argv[1]) as told:
        data = json.load(told)
    try:
        memory = vs.connect(data["text"], timeout=10)
    except vs.errors.NotFound as gone:
        print(f"{gone.code}: {gone}")
        return 1
    theirs = vmmshare.cupy.array(memory.array(data["shape"], data["dtype"]))
    squares = cupy.empty_like(theirs)
    kernel = cupy.RawKernel(SOURCE, "square")
    kernel(((theirs.size + 255) // 256,), (256,), (theirs, squares, theirs.size))
    print(f"square of the last one: {float(squares[-1]):.0f}")
    return 0


sys.exit(main())
