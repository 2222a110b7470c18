#!/usr/bin/env python3
"""Memory that libraries have already, shared on a GPU. Prints one JSON object.

usage: gpu_served.py [NAME...]     NAME: a check, as the output has it
exit code 0: every check that could run passed

Wants the wheel installed; a check whose library is missing is "skipped". docs/platforms.md has
the table that this fills.
"""

import json
import os
import subprocess
import sys
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import multiprocessing as mp

import vmmshare as vs

COUNT = 1000  # Of float32.


def opener(pipe):
    """Opens what it is told of, says what it read, and writes 7s where it may."""
    import cupy
    cupy.zeros(1)
    theirs = None
    while (asked := pipe.recv()) is not None:
        try:
            if asked == "close":
                theirs = None
                pipe.send("closed")
                continue
            ticket, writable = asked
            if ticket == "dma-bufs":
                with vs.connect(writable, timeout=30, writable=True) as memory:
                    pipe.send(dma_bufs(memory.array(1000, "uint8")))
                continue
            start = time.perf_counter()
            theirs = vs.open_array(ticket, writable=writable)
            took = time.perf_counter() - start
            view = cupy.from_dlpack(theirs)
            total = float(view.sum())
            if writable:
                view[...] = 7
            cupy.cuda.Device().synchronize()
            del view
            pipe.send((total, took, dma_bufs(theirs)))
        except Exception as error:
            pipe.send(repr(error))


class Opener:
    def __init__(self):
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=opener, args=(theirs,))
        self.process.start()
        theirs.close()

    def __call__(self, *asked):
        self.pipe.send(asked if len(asked) > 1 else asked[0])
        if not self.pipe.poll(60):
            raise TimeoutError("the opener did not answer")
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join(60)


def expect(true, what):
    if not true:
        raise AssertionError(what)


def dma_bufs(array):
    """How many parts network cards get of it, or why none."""
    try:
        parts = vs.dma_bufs(array)
    except vs.errors.VmmshareError as why:
        return f"{type(why).__name__}: {why}"
    for part in parts:
        os.fstat(part.fileno())
        part.close()
    return len(parts)


def pool_and_importer(opener):
    """dma-bufs of a pool's block, whole and in part, and of what another process opened."""
    with vs.Pool(rdma="try") as pool:
        array = pool.empty(COUNT, "float32")
        with vs.Allocation(nbytes=8 << 20, rdma="try") as memory, vs.serve(memory) as share:
            return {"block": dma_bufs(array),
                    "small block": dma_bufs(pool.empty(300, "uint8")),
                    "imported": opener("dma-bufs", str(share))}


def by_consent_and_by_copy(opener, array, total_of, unasked=False, consent=True):
    """What the table has of one kind of array: ones, of which total_of() is the sum.

    unasked, consent: whether it is shared in place so.
    """
    found = {"dma-bufs": dma_bufs(array)}
    try:
        vs.serve_array(array).close()
        found["unasked"] = "in place"
    except vs.errors.FailedPrecondition as why:
        found["unasked"] = str(why)
    expect((found["unasked"] == "in place") == unasked, found["unasked"])
    with vs.serve_array(array, copy=True) as served:
        answer = opener(served.ticket, False)
        expect(answer[0] == COUNT, f"copy: {answer}")
        opener("close")
        expect(total_of() == COUNT, "the copy changed the array")
        found["copy"] = "sum right"
    try:
        served = vs.serve_array(array, legacy=True)
    except vs.errors.FailedPrecondition as why:
        found["legacy"] = str(why)
        expect(not consent, f"legacy=True: {why}")
        return found
    with served:
        expect(consent, f"legacy=True served it: {served.weakness}")
        expect((served.weakness == "") == unasked, served.weakness)
        expect(served.disclosed is not None, "what is disclosed is not said")
        answer = opener(served.ticket, True)
        expect(answer[0] == COUNT, f"in place: {answer}")
        found["dma-bufs opened"] = answer[2]
        expect(total_of() == 7 * COUNT, f"{total_of()} after the other's writes")
        if served.weakness:
            expect("writable=True" in opener(served.ticket, False), "mapped read-only")
        opener("close")
        served.wait_returned()
        found["legacy"] = served.weakness or "in place"
    return found


def torch_default(opener):
    import torch
    tensor = torch.ones(COUNT, device="cuda")
    torch.cuda.synchronize()
    return by_consent_and_by_copy(opener, tensor, lambda: float(tensor.sum()))


def torch_view_with_gaps(opener):
    import torch
    tensor = torch.ones(COUNT, 2, device="cuda")[:, 0]
    torch.cuda.synchronize()
    return by_consent_and_by_copy(opener, tensor, lambda: float(tensor.sum()))


def torch_parameter(opener):
    """Which DLPack does not export."""
    import torch
    tensor = torch.nn.Parameter(torch.ones(COUNT, device="cuda"))
    torch.cuda.synchronize()
    return by_consent_and_by_copy(opener, tensor, lambda: float(tensor.sum()))


def torch_float8(opener):
    """Through torch.open_served(), for DLPack carries bytes; here in one process."""
    import torch
    import vmmshare.torch
    tensor = torch.ones(COUNT, device="cuda").to(torch.float8_e4m3fn)
    torch.cuda.synchronize()
    with vmmshare.torch.serve(tensor, copy=True) as served:
        theirs = vmmshare.torch.open_served(served.ticket)
        expect(theirs.dtype == tensor.dtype, theirs.dtype)
        expect(float(theirs.float().sum()) == COUNT, "copy")
    return {"copy": "sum right"}


def torch_expandable(opener):
    import torch
    tensor = torch.ones(COUNT, device="cuda")
    torch.cuda.synchronize()
    return by_consent_and_by_copy(opener, tensor, lambda: float(tensor.sum()), unasked=True)


def cupy_default(opener):
    import cupy
    array = cupy.ones(COUNT, "float32")
    return by_consent_and_by_copy(opener, array, lambda: float(array.sum()))


def cupy_async_pool(opener):
    import cupy
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        array = cupy.ones(COUNT, "float32")
        return by_consent_and_by_copy(opener, array, lambda: float(array.sum()), consent=False)


def exportable_pool(opener):
    import cupy
    from cuda.bindings import driver
    cupy.zeros(1)
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    fd = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    props.handleTypes, props.location.id = fd, 0
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    _, pool = driver.cuMemPoolCreate(props)
    _, at = driver.cuMemAllocFromPoolAsync(4 * COUNT, pool, 0)
    memory = cupy.cuda.UnownedMemory(int(at), 4 * COUNT, pool, 0)
    array = cupy.ndarray(COUNT, "float32", cupy.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    return by_consent_and_by_copy(opener, array, lambda: float(array.sum()))


def numba_default(opener):
    import numpy
    from numba import cuda
    array = cuda.to_device(numpy.ones(COUNT, "float32"))
    return by_consent_and_by_copy(opener, array, lambda: float(array.copy_to_host().sum()))


def jax_default(opener):
    import jax
    array = jax.device_put(jax.numpy.ones(COUNT, "float32"), jax.devices("gpu")[0])
    array.block_until_ready()
    # JAX takes it that nobody writes to its arrays, and may have the sum already.
    import cupy
    return by_consent_and_by_copy(opener, array,
                                  lambda: float(cupy.from_dlpack(array).sum()),
                                  unasked=True)


def with_rmm(opener, resource, consent=True):
    import cupy
    buffer = resource.allocate(4 * COUNT)
    memory = cupy.cuda.UnownedMemory(buffer, 4 * COUNT, resource, 0)
    array = cupy.ndarray(COUNT, "float32", cupy.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    try:
        return by_consent_and_by_copy(opener, array, lambda: float(array.sum()), consent=consent)
    finally:
        cupy.cuda.Device().synchronize()
        resource.deallocate(buffer, 4 * COUNT)


def rmm_default(opener):
    import rmm
    return with_rmm(opener, rmm.mr.CudaMemoryResource())


def rmm_pool(opener):
    """All of the pool is disclosed, and it says so."""
    import rmm
    size = 32 << 20
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=size)
    found = with_rmm(opener, pool)
    expect(str(size) in found["legacy"], found["legacy"])
    return found


def rmm_async(opener):
    """The driver's default pool, which it does not export."""
    import rmm
    found = with_rmm(opener, rmm.mr.CudaAsyncMemoryResource(), consent=False)
    expect("pool" in found["legacy"], found["legacy"])
    return found


def cuda_core_default(opener):
    import cupy
    from cuda.core import Device
    device = Device()
    device.set_current()
    buffer = device.allocate(4 * COUNT, stream=device.default_stream)
    memory = cupy.cuda.UnownedMemory(int(buffer.handle), 4 * COUNT, buffer, 0)
    array = cupy.ndarray(COUNT, "float32", cupy.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    return by_consent_and_by_copy(opener, array, lambda: float(array.sum()), consent=False)


def pinned_host(opener):
    import torch
    try:
        vs.serve_array(torch.ones(COUNT).pin_memory(), legacy=True)
    except ValueError as why:
        return {"legacy": str(why)}
    raise AssertionError("served")


def percentile(times, part):
    return round(sorted(times)[int(part * (len(times) - 1))] * 1e6, 1)


def times(opener):
    """us: serving one tensor of 64 KiB and opening it, and PyTorch's own way."""
    import torch
    found = {}
    for how in ({"legacy": True}, {"copy": True}):
        serve, open_ = [], []
        for _ in range(60):
            tensor = torch.ones(16384, device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            served = vs.serve_array(tensor, **how)
            serve.append(time.perf_counter() - start)
            open_.append(opener(served.ticket, "legacy" in how)[1])
            opener("close")
            served.close()
        name = next(iter(how))
        found[name] = {"serve_p50": percentile(serve, .5), "serve_p99": percentile(serve, .99),
                       "open_p50": percentile(open_, .5), "open_p99": percentile(open_, .99)}
    return found


CHECKS = {f.__name__: f for f in (
    torch_default, pool_and_importer, torch_view_with_gaps, torch_parameter, torch_float8,
    cupy_default, cupy_async_pool, exportable_pool, numba_default, jax_default, rmm_default, rmm_pool, rmm_async,
    cuda_core_default, pinned_host, times)}


def main():
    names = sys.argv[1:] or [*CHECKS, "torch_expandable"]
    results, failed = {}, False
    if "torch_expandable" in names and len(names) > 1:
        # PyTorch reads its setting once.
        names.remove("torch_expandable")
        run = subprocess.run([sys.executable, __file__, "torch_expandable"], text=True,
                             stdout=subprocess.PIPE, timeout=120, env={
                                 **os.environ,
                                 "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        failed |= run.returncode != 0
        results.update(json.loads(run.stdout or "{}"))
    other = Opener()
    for name in names:
        check = CHECKS.get(name, torch_expandable)
        try:
            results[name] = check(other)
        except ImportError as error:
            results[name] = {"skipped": str(error)}
        except Exception:
            failed = True
            results[name] = {"failed": traceback.format_exc()[-1500:]}
    other.close()
    print(json.dumps(results, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
