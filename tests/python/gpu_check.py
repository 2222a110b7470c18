#!/usr/bin/env python3
"""Checks of the Python package that need a GPU. Prints one JSON object.

usage: gpu_check.py [--quick] [NAME...]     NAME: a check, as the output has it
exit code 0: every check that could run passed

Wants the wheel installed, and torch, cupy, jax, numba and cuda.core: a check whose library
is missing is "skipped", with the reason. No pytest. See docs/python.md.
"""

import os
import sys
import time
import traceback

# JAX would take most of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import multiprocessing as mp

import vmmshare as vs
from gpu_report import run_checks

QUICK = "--quick" in sys.argv
CYCLES = 500 if QUICK else 10_000
ROUNDS = {20: 2, 200: 2} if QUICK else {200: 100, 2_000: 40, 20_000: 6}  # By tensors.
KIB64 = 64 << 10


def serve_and_ask(target, *arguments):
    """What `target` returns in a process of its own, which spawn starts."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_child, args=(theirs, target, arguments))
    child.start()
    theirs.close()
    try:
        if not ours.poll(240):
            raise TimeoutError("the other process did not answer")
        kind, value = ours.recv()
    finally:
        ours.close()
        child.join(60)
        if child.is_alive():
            child.kill()
    if kind == "failed":
        raise RuntimeError(value)
    return value


def in_child(pipe, target, arguments):
    try:
        pipe.send(("value", target(*arguments)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def pattern(xp, count=1 << 20):
    return (xp.arange(count, dtype="int32") * 7919) % 65521


# --- one block, seen by every library of another process ----------------------------------


def sum_of(library, text, ticket):
    """The sum of the array, computed by `library`."""
    array = vs.connect(text).open(ticket)
    if library == "torch":
        import torch
        return int(torch.from_dlpack(array).sum())
    if library == "cupy":
        import vmmshare.cupy
        return int(vmmshare.cupy.array(array).sum(dtype="int64"))
    if library == "jax":
        import vmmshare.jax
        import jax.numpy as jnp
        part = vmmshare.jax.array(array).reshape(-1, 1024)
        return sum(int(one) for one in jnp.sum(part, axis=1))
    if library == "numba":
        import numba.cuda
        import vmmshare.numba
        return int(vmmshare.numba.array(array).copy_to_host().astype("int64").sum())
    import cupy
    import vmmshare.cuda_core
    view = vmmshare.cuda_core.view(array)
    buffer = vmmshare.cuda_core.buffer(array, readonly=True)
    assert view.ptr == array.ptr and int(buffer.handle) == array.ptr, "another address"
    assert tuple(view.shape) == array.shape and view.readonly
    memory = cupy.cuda.UnownedMemory(view.ptr, array.nbytes, view)
    again = cupy.ndarray(array.shape, "int32", cupy.cuda.MemoryPointer(memory, 0))
    return int(again.sum(dtype="int64"))


def check_library(library):
    import numpy as np
    import torch
    with vs.Pool() as pool:
        array = pool.empty(1 << 20, "int32")
        torch.from_dlpack(array).copy_(torch.from_numpy(pattern(np)))
        torch.cuda.synchronize()
        expected = int(pattern(np).astype("int64").sum())
        share = vs.serve(pool)
        got = serve_and_ask(sum_of, library, str(share), array.ticket())
        assert got == expected, f"sum {got}, expected {expected}"
        pool.wait_returned(timeout=30)
        return {"sum": got}


# --- nothing is left ----------------------------------------------------------------------


def check_cycles():
    import torch
    with vs.Pool() as pool:
        share = vs.serve(pool)
        own = pool.empty((64, 64), "float32")
        remote = vs.connect(str(share))
        ticket = own.ticket()
        tensor = torch.from_dlpack(remote.open(ticket))
        del tensor
        torch.cuda.synchronize()
        pool.wait_returned(timeout=30)
        before, free = pool.statistics(), torch.cuda.mem_get_info()[0]
        began = time.perf_counter()
        for _ in range(CYCLES):
            torch.from_dlpack(remote.open(ticket))
        took = time.perf_counter() - began
        torch.cuda.synchronize()
        pool.wait_returned(timeout=30)
        assert pool.leases() == [], pool.leases()
        assert pool.statistics() == before, (pool.statistics(), before)
        assert abs(torch.cuda.mem_get_info()[0] - free) <= 2 << 20
        remote.close()
        share.close()
        return {"cycles": CYCLES, "us_each": took / CYCLES * 1e6}


# --- streams are honoured -----------------------------------------------------------------


def late_sum(text, ticket, fences_text, fence_ticket):
    """Takes an array whose contents come later, without waiting on the host."""
    import torch
    fences = vs.connect_fences(fences_text)
    fence = fences.open(fence_ticket)
    array = vs.connect(text).open(ticket, fence=fence, value=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.from_dlpack(array)
        total = tensor.sum()
    torch.cuda.synchronize()
    return int(total)


def check_stream_order():
    import torch
    with vs.Pool() as pool, vs.FencePool() as fences:
        array = pool.empty(1 << 20, "int32")
        tensor = torch.from_dlpack(array)
        tensor.zero_()
        torch.cuda.synchronize()
        share, fences_share, fence = vs.serve(pool), vs.serve(fences), fences.new()
        stream = torch.cuda.Stream()
        # The other process takes a second and more to start; the writes come after.
        with torch.cuda.stream(stream):
            for _ in range(20 if QUICK else 40):
                torch.cuda._sleep(1_000_000_000)
            tensor.fill_(3)
        fence.signal(stream.cuda_stream, 1)
        asked = time.perf_counter()
        got = serve_and_ask(late_sum, str(share), array.ticket(), str(fences_share),
                            fence.ticket())
        assert got == 3 << 20, f"sum {got}, expected {3 << 20}: it saw old bytes"
        return {"seconds": time.perf_counter() - asked}


FENCED = 200  # Round trips: a stream takes about 1,000 commands ahead.


def answer_fences(text, ticket):
    """Adds 1 to each value that it is told of, on a stream, and tells of that."""
    import torch
    memory = vs.connect(text, writable=True).open(ticket)
    fences = vs.FenceArray(vs.connect(text, writable=True).open(ticket))
    value = torch.from_dlpack(memory)[2 * vs.FENCE_BYTES:].view(torch.int64)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number in range(1, FENCED + 1):
            fences[0].wait(stream.cuda_stream, number)
            value.add_(1)
            fences[1].signal(stream.cuda_stream, number)
    stream.synchronize()
    return int(value[0])


def check_fence_array():
    """Two processes' streams take turns, by fences in device memory; no host in between."""
    import torch
    with vs.Pool() as pool:
        memory = pool.empty(3 * vs.FENCE_BYTES, "uint8")
        tensor = torch.from_dlpack(memory)
        tensor.zero_()
        torch.cuda.synchronize()
        fences = vs.FenceArray(memory)
        fences.clear()
        value = tensor[2 * vs.FENCE_BYTES:].view(torch.int64)
        share, stream = vs.serve(pool), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for number in range(1, FENCED + 1):
                value.add_(1)
                fences[0].signal(stream.cuda_stream, number)
                fences[1].wait(stream.cuda_stream, number)
        got = serve_and_ask(answer_fences, str(share), memory.ticket())
        stream.synchronize()
        assert got == int(value[0]) == 2 * FENCED, f"{got}, {int(value[0])}: turns were lost"
        return {"turns": FENCED}


# --- speed, against torch.multiprocessing -------------------------------------------------


def receive_ours(connection, rounds, text):
    import torch

    import vmmshare.torch
    torch.zeros(1, device="cuda")
    remote = vs.connect(text)
    for _ in range(rounds + 1):  # Once to warm up.
        connection.send("ready")
        data = connection.recv()
        began = time.perf_counter()
        tensors = vmmshare.torch.open_all(remote, data)
        opened = time.perf_counter() - began
        connection.send((opened, float(tensors["0"][0]), float(list(tensors.values())[-1][0])))
        connection.recv()
        del tensors


def receive_theirs(connection, rounds):
    import torch
    torch.zeros(1, device="cuda")
    for _ in range(rounds + 1):
        connection.send("ready")
        tensors = connection.recv()
        connection.send((0.0, float(tensors[0][0]), float(tensors[-1][0])))
        connection.recv()
        del tensors


def median(times):
    return sorted(times)[len(times) // 2] * 1e3


def measure(context, target, rounds, arguments, send):
    """Milliseconds until the other process has read a word of the first and the last."""
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(theirs, rounds, *arguments))
    child.start()
    times = []
    for _ in range(rounds + 1):
        assert ours.recv() == "ready"
        began = time.perf_counter()
        sent = send(ours)
        opened, first, last = ours.recv()
        times.append((time.perf_counter() - began, sent, opened))
        ours.send("done")
    child.join(60)
    whole, sent, opened = zip(*times[1:])
    p99 = sorted(whole)[min(len(whole) - 1, round(len(whole) * 0.99))]
    return {"ms": median(whole), "p99_ms": p99 * 1e3, "share_ms": median(sent),
            "open_ms": median(opened), "rounds": rounds}, first, last


def torch_pool():
    """The one pool that serves PyTorch here."""
    if not hasattr(torch_pool, "pool"):
        torch_pool.pool = vs.Pool()
    return torch_pool.pool


def check_speed():
    import torch
    import torch.multiprocessing as tmp

    import vmmshare.torch
    table = []
    context = tmp.get_context("spawn")
    pool = torch_pool()
    share = vs.serve(pool)
    for count, rounds in ROUNDS.items():
        with vmmshare.torch.use_pool(pool):
            tensors = {str(i): torch.full((KIB64 // 4,), float(i), device="cuda")
                       for i in range(count)}
        plain = [torch.full((KIB64 // 4,), float(i), device="cuda") for i in range(count)]
        torch.cuda.synchronize()

        def send_ours(connection):
            began = time.perf_counter()
            data = vmmshare.torch.share_all(tensors)
            took = time.perf_counter() - began
            connection.send(data)
            return took

        def send_theirs(connection):
            connection.send(plain)
            return 0.0

        ours, first, last = measure(context, receive_ours, rounds, (str(share),), send_ours)
        assert (first, last) == (0.0, float(count - 1)), (first, last)
        theirs, first, last = measure(context, receive_theirs, rounds, (), send_theirs)
        assert (first, last) == (0.0, float(count - 1)), (first, last)
        table.append({"tensors": count, "vmmshare": ours, "torch.multiprocessing": theirs})
        del tensors, plain
    return table


def check_calls():
    """Microseconds of single calls."""
    import torch
    count = 100 if QUICK else 5_000

    def each(work):
        """The median of 9 rounds, after one to warm up."""
        times = []
        for _ in range(10):
            began = time.perf_counter()
            for _ in range(count):
                work()
            times.append((time.perf_counter() - began) / count * 1e6)
        return sorted(times[1:])[4]

    with vs.Pool() as pool:
        share = vs.serve(pool)
        remote = vs.connect(str(share))
        array = pool.empty(KIB64, "uint8")
        ticket = array.ticket()
        theirs = remote.open(ticket)
        figures = {
            "allocate_and_free": each(lambda: pool.empty(KIB64, "uint8")),
            "ticket": each(array.ticket),
            "open_and_close": each(lambda: remote.open(ticket).close()),
            "torch.from_dlpack": each(lambda: torch.from_dlpack(theirs)),
        }
        torch.cuda.synchronize()
        theirs.close()
        remote.close()
        share.close()
        return figures


def check_training():
    """A step on the pool against PyTorch's own allocator."""
    import torch

    import vmmshare.torch

    def steps(count):
        torch.manual_seed(1)
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.randn(256, 1024, device="cuda")
        for step in range(count + 10):
            if step == 10:
                torch.cuda.synchronize()
                began = time.perf_counter()
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    own, ours = [], []
    for _ in range(1 if QUICK else 7):  # By turns: clocks drift.
        own.append(steps(100))
        with vmmshare.torch.use_pool(torch_pool()):
            ours.append(steps(100))
    own, ours = sorted(own), sorted(ours)
    return {"seconds_vmmshare": ours[len(ours) // 2], "seconds_torch": own[len(own) // 2],
            "all_vmmshare": ours, "all_torch": own}


def check_regions():
    """Tensors, views and a captured graph of a region that is released and restored."""
    import torch

    import vmmshare.torch
    torch.cuda.init()
    region, other = vmmshare.torch.Region(), vmmshare.torch.Region()
    count = 64 << 20  # Of float32: 256 MiB.
    with region.use():
        a = torch.arange(count, dtype=torch.float32, device="cuda")
        b = torch.zeros_like(a)
        small = torch.full((10,), 7.0, device="cuda")
        try:
            with other.use():
                raise AssertionError("nested")
        except vs.errors.FailedPrecondition:
            pass
    with other.use():
        others = torch.full((1000,), 5.0, device="cuda")
    elsewhere = torch.full((1000,), 6.0, device="cuda")
    assert region.statistics()["bytes"] >= 2 * a.nbytes
    assert other.statistics()["allocations"] == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(a, 1.0, out=b)
    addresses, figures = (a.data_ptr(), b.data_ptr(), small.data_ptr()), []
    for _ in range(3):
        torch.cuda.synchronize()
        before, began = torch.cuda.mem_get_info()[0], time.perf_counter()
        region.release()
        released, there = time.perf_counter(), torch.cuda.mem_get_info()[0]
        assert there - before >= 2 * a.nbytes, (before, there)
        assert float(others.sum()) == 5000 and float(elsewhere.sum()) == 6000
        resumed = time.perf_counter()
        region.restore()
        figures.append({"release_s": released - began,
                        "restore_s": time.perf_counter() - resumed})
        assert (a.data_ptr(), b.data_ptr(), small.data_ptr()) == addresses
        assert float(a[12345]) == 12345 and float(small.sum()) == 70
        b.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(b[:100], torch.arange(1.0, 101.0, device="cuda"))
        assert float(b[count - 1]) == float(a[count - 1] + 1)
    with region.use():  # What is made later is in it, too.
        more = torch.full((32 << 20,), 1.0, device="cuda")
    del small
    region.release(keep=False)
    region.restore()
    more.fill_(2.0)
    assert float(more[-1]) == 2.0
    del a, b, more, graph
    region.close()
    other.close()
    torch.cuda.empty_cache()
    assert float(others.sum()) == 5000  # It outlives its region.
    return {"bytes": 2 * count * 4, "rounds": figures}


def copy_theirs(text, ticket):
    """GB/s of a copy from the owner's memory, and of one from memory of this process."""
    import torch
    array = vs.connect(text).open(ticket)
    theirs, ours = torch.from_dlpack(array), torch.zeros(array.shape[0], dtype=torch.uint8,
                                                         device="cuda")
    to = torch.empty_like(ours)

    def rate(source):
        times = []
        for _ in range(12):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            to.copy_(source)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return to.nbytes / sorted(times[2:])[5] / 1e6

    return {"theirs": rate(theirs), "local": rate(ours)}


def check_copies():
    with vs.Pool() as pool, vs.serve(pool) as share:
        array = pool.empty(1 << 30, "uint8")
        rates = serve_and_ask(copy_theirs, str(share), array.ticket())
    assert QUICK or rates["theirs"] >= 0.97 * rates["local"], rates
    return rates


def sum_theirs(text, ticket):
    import vmmshare.cupy
    return float(vmmshare.cupy.array(vs.connect(text).open(ticket)).sum())


def check_cupy_allocator():
    import cupy

    import vmmshare.cupy
    cupy.cuda.runtime.setDevice(0)
    with vs.Pool() as pool:
        with vmmshare.cupy.use_pool(pool):
            a = cupy.arange(1 << 20, dtype="float64")
            assert float(cupy.dot(a[:1000], a[:1000])) == sum(i * i for i in range(1000))
            assert pool.statistics()["live_blocks"] >= 1
            part = a[10:1000:3]
            cupy.cuda.get_current_stream().synchronize()
            with vs.serve(pool) as share:
                there = serve_and_ask(sum_theirs, str(share), vs.ticket(part))
            assert there == float(part.sum())
        live = pool.statistics()["live_blocks"]
    with vs.Pool(cap=64 << 20) as small:
        try:
            with vmmshare.cupy.use_pool(small):
                cupy.zeros(1 << 30, "u1")
            raise AssertionError("more than the pool may have was made")
        except cupy.cuda.memory.OutOfMemoryError as error:
            assert isinstance(error.__cause__, vs.errors.ResourceExhausted)
        with vmmshare.cupy.use_pool(small):
            assert int(cupy.arange(10).sum()) == 45
    return {"live_blocks": live}


def use_numba_on_pool():
    import numba.cuda
    import numpy

    import vmmshare.numba
    pool = vs.Pool()
    numba.cuda.set_memory_manager(vmmshare.numba.memory_manager(pool))
    ones = numba.cuda.to_device(numpy.ones(1 << 20, dtype="int32"))
    assert pool.statistics()["live_blocks"] == 1
    assert int(ones.copy_to_host().sum()) == 1 << 20
    assert numba.cuda.current_context().get_memory_info().total > 0
    del ones
    assert pool.statistics()["live_blocks"] == 0
    return {}


def check_numba_allocator():
    import numba.cuda  # noqa: F401: skipped without
    return serve_and_ask(use_numba_on_pool)


# --- memory that goes back, or is used first, while the GPU works --------------------------


SLOW = 40  # Products of large matrices: a second or less.


def check_first_use_on_another_stream():
    """Its stream comes after the work of who had the block before."""
    import torch
    side, matrix = torch.cuda.Stream(), torch.rand(8192, 8192, device="cuda")
    matrix = matrix @ matrix / 8192
    torch.zeros(16, dtype=torch.int32, device="cuda").fill_(3)
    torch.cuda.synchronize()  # A kernel's first use may wait for the GPU.
    with vs.Pool() as pool:
        first = torch.from_dlpack(pool.empty(1 << 20, "int32"))
        address = first.data_ptr()
        for _ in range(SLOW):
            matrix = matrix @ matrix / 8192
        first.fill_(1)
        del first
        second = pool.empty(1 << 20, "int32")
        assert second.ptr == address, "another block, so that this shows nothing"
        with torch.cuda.stream(side):
            filled = torch.from_dlpack(second)
            filled.fill_(2)
        busy = not torch.cuda.current_stream().query()
        torch.cuda.synchronize()
        assert busy, "the GPU was done too early, so that this shows nothing"
        assert bool((filled == 2).all()), "written to by who had the block before"
    return {}


def use_jax_while_its_memory_goes():
    import cupy
    import jax
    import jax.numpy as jnp

    import vmmshare.cupy
    import vmmshare.jax
    size = 32 << 20

    @jax.jit
    def slow(matrix, x):
        product = matrix
        for _ in range(SLOW):  # Without a loop of JAX's, for whose end the host would wait.
            product = product @ matrix / 16384
        begin = jnp.isnan(product[0, 0]).astype("int32")  # So that `x` is read after it.
        return jnp.sum(jax.lax.dynamic_slice(x, (begin,), (x.size - 1,)))

    matrix = jnp.full((16384, 16384), 0.5, "float32")
    slow(matrix, jnp.ones(size // 4, "int32")).block_until_ready()
    pool = vs.Pool(cap=size, first_segment=size)
    array = pool.empty(size // 4, "int32")
    vmmshare.cupy.array(array)[:] = 1
    cupy.cuda.get_current_stream().synchronize()
    read = vmmshare.jax.array(array)
    address = array.ptr
    total = slow(matrix, read)
    began = time.perf_counter()
    array.close()
    del read
    assert not total.is_ready(), "the GPU was done too early, so that this shows nothing"
    while True:
        try:
            again = pool.empty(size // 4, "int32")
            break
        except vs.errors.ResourceExhausted:
            assert time.perf_counter() - began < 60, "JAX's memory did not come back"
            time.sleep(0.001)
    took = time.perf_counter() - began
    assert again.ptr == address, "another block, so that this shows nothing"
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        vmmshare.cupy.array(again)[:] = 7
    stream.synchronize()
    assert int(total) == size // 4 - 1, f"JAX read {int(total)}, of memory that others had"
    pool.release_stream(stream.ptr)
    return {"back_after_s": took}


def check_jax_while_its_memory_goes():
    import jax  # noqa: F401: skipped without
    return serve_and_ask(use_jax_while_its_memory_goes)


def main():
    checks = {f"seen by {name}": (lambda name=name: check_library(name))
              for name in ("torch", "cupy", "jax", "numba", "cuda.core")}
    checks |= {"cycles leave nothing": check_cycles, "stream order": check_stream_order,
               "fence array": check_fence_array,
               "single calls, us": check_calls, "speed": check_speed, "copies, GB/s": check_copies,
               "training": check_training, "regions": check_regions,
               "cupy's allocator": check_cupy_allocator,
               "numba's allocator": check_numba_allocator,
               "first use on another stream": check_first_use_on_another_stream,
               "jax while its memory goes": check_jax_while_its_memory_goes}
    return run_checks(checks, [word for word in sys.argv[1:] if word != "--quick"])


if __name__ == "__main__":
    sys.exit(main())
