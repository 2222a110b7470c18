"""A kernel of cuda.core fills an array; another process reads it as a cuda.core.Buffer.

Shows vmmshare.cuda_core.buffer(). Needs a GPU, numpy, and cuda-core 1.0 or newer. Run it by
itself: it starts the other process.
"""

import support
import vmmshare as vs
import vmmshare.cuda_core

COUNT = 1 << 10
SOURCE = r"""
extern "C" __global__ void count(int* out, unsigned long long size) {
  const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) out[i] = (int)i;
}
"""


def fill(core, numpy, array):
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    options = core.ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    kernel = core.Program(SOURCE, "c++", options).compile("cubin").get_kernel("count")
    core.launch(stream, core.LaunchConfig(grid=COUNT // 256, block=256), kernel,
                vmmshare.cuda_core.buffer(array), numpy.uint64(COUNT))
    stream.sync()


def total(text, ticket):
    """In the other process: by way of pinned memory, which NumPy reads."""
    import numpy
    from cuda import core
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    array = vs.connect(text, timeout=10).open(ticket)
    theirs = vmmshare.cuda_core.buffer(array, readonly=True)
    pinned = core.LegacyPinnedMemoryResource().allocate(theirs.size, stream=stream)
    theirs.copy_to(pinned, stream=stream)
    stream.sync()
    return int(numpy.from_dlpack(pinned).view("int32").sum())


def main():
    support.arguments(__doc__)
    numpy = support.library("numpy", "numpy")
    core = support.library("cuda.core", "cuda-core")
    if not hasattr(core, "Device"):
        support.skip("cuda.core is older than 1.0: pip install --upgrade cuda-core")
    support.gpu()
    pool = vs.Pool(device=0)
    array = pool.empty(COUNT, "int32")
    fill(core, numpy, array)
    share = vs.serve(pool)
    print(f"sum {support.elsewhere(total, str(share), array.ticket())}")


if __name__ == "__main__":
    main()
