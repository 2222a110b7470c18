#!/usr/bin/env python3
"""Memory of one GPU, mapped for another one and where the first is hidden, on two real GPUs.

usage: gpu_devices.py [NAME...]   NAME: a check, as the output has it
exit code 0: every check passed

Wants the wheel installed, and the libraries whose checks run; prints one JSON object.
"""

import contextlib
import os
import statistics
import sys
import time

import vmmshare as vs
from gpu_check import pattern, serve_and_ask
from gpu_report import run_checks

COUNT = 1 << 20
LIBRARIES = ("torch", "cupy", "numba", "jax")
# How the importer sees the two GPUs, and what it calls the second.
SEEN = {"both seen": ("0,1", 1), "owner's hidden": ("1", 0)}


@contextlib.contextmanager
def seen_by_children(devices):
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def opened(text, ticket, device, writable=False):
    """The array, and how many milliseconds it took to connect and to open it."""
    began = time.perf_counter()
    remote = vs.connect(text, device=device, writable=writable)
    array = remote.open(ticket) if ticket is not None else remote.array(COUNT, "int32")
    return array, (time.perf_counter() - began) * 1e3


def sum_on(library, text, ticket, device):
    """(sum, where the library says that it is, ms) of the array, computed on `device`."""
    array, took = opened(text, ticket, device)
    assert array.__dlpack_device__() == (2, device), array.__dlpack_device__()
    if library == "torch":
        import torch
        with torch.cuda.device(device):
            tensor = torch.from_dlpack(array)
            return int(tensor.sum()), str(tensor.device), took
    if library == "cupy":
        import cupy
        import vmmshare.cupy
        with cupy.cuda.Device(device):
            view = vmmshare.cupy.array(array)
            return int(view.sum(dtype="int64")), f"cuda:{view.device.id}", took
    if library == "numba":
        import numba.cuda
        import vmmshare.numba
        with numba.cuda.gpus[device]:
            view = vmmshare.numba.array(array)
            return int(view.copy_to_host().astype("int64").sum()), f"cuda:{device}", took
    import jax
    import jax.numpy as jnp
    import vmmshare.jax
    with jax.default_device(jax.devices()[device]):
        part = vmmshare.jax.array(array).reshape(-1, 1024)
        rows = jnp.sum(part, axis=1)
        return sum(int(one) for one in rows), f"cuda:{list(part.devices())[0].id}", took


def write_on(text, device):
    """A kernel of `device` doubles what is there."""
    import torch
    array, _ = opened(text, None, device, writable=True)
    with torch.cuda.device(device):
        torch.from_dlpack(array).mul_(2)
        torch.cuda.synchronize()


def open_served_on(ticket, device):
    import torch
    import vmmshare.torch
    with torch.cuda.device(device):
        tensor = vmmshare.torch.open_served(ticket, writable=True, device=device)
        tensor.add_(1)
        torch.cuda.synchronize()
        return int(tensor.sum()), str(tensor.device)


def first_numbers(xp):
    return int(pattern(xp).astype("int64").sum())


def check_library(library, how):
    import numpy as np
    import torch
    devices, device = SEEN[how]
    with vs.Pool(0) as pool, vs.Allocation(0, nbytes=4 * COUNT) as memory:
        block, whole = pool.empty(COUNT, "int32"), memory.array(COUNT, "int32")
        for array in (block, whole):
            torch.from_dlpack(array).copy_(torch.from_numpy(pattern(np)))
        torch.cuda.synchronize()
        of_pool, of_memory = vs.serve(pool), vs.serve(memory)
        figures = {}
        for name, text, ticket in (("pool", str(of_pool), block.ticket()),
                                   ("allocation", str(of_memory), None)):
            with seen_by_children(devices):
                got, where, took = serve_and_ask(sum_on, library, text, ticket, device)
            assert got == first_numbers(np), (name, got, where)
            assert where == f"cuda:{device}", (name, where)
            figures[f"{name}, ms to connect and open"] = round(took, 2)
        if library == "torch":
            with seen_by_children(devices):
                serve_and_ask(write_on, str(of_memory), device)
            got = int(torch.from_dlpack(whole).sum(dtype=torch.int64))
            assert got == 2 * first_numbers(np), got
        pool.wait_returned(timeout=30)
        return figures


def check_legacy():
    """PyTorch's own memory, by consent and as a copy, opened on the other GPU."""
    import torch
    import vmmshare.torch
    figures = {}
    for owner in (0, 1):
        tensor = torch.ones(COUNT, device=f"cuda:{owner}", dtype=torch.int32)
        torch.cuda.synchronize(owner)
        for name, words in (("legacy", {"legacy": True}), ("copy", {"copy": True})):
            with vmmshare.torch.serve(tensor, **words) as served:
                got, where = serve_and_ask(open_served_on, served.ticket, 1 - owner)
                assert where == f"cuda:{1 - owner}", where
                figures[f"{name}, of GPU {owner}"] = got
        # Written in place by consent alone.
        assert int(tensor.sum()) == 2 * COUNT, int(tensor.sum())
    assert set(figures.values()) == {2 * COUNT, 3 * COUNT}, figures
    return figures


def copy_rate_on(text, device):
    """GB/s of copies from the array into own memory of `device`."""
    import torch
    memory = vs.connect(text, device=device)
    with torch.cuda.device(device):
        theirs = torch.from_dlpack(memory.array(memory.nbytes, "uint8"))
        own, times = torch.empty_like(theirs), []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            own.copy_(theirs)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return memory.nbytes / statistics.median(times[2:]) / 1e6


def check_copies():
    figures = {}
    with vs.Allocation(0, nbytes=1 << 30) as memory:
        share = vs.serve(memory)
        for how, (devices, device) in SEEN.items():
            with seen_by_children(devices):
                figures[f"{how}, GB/s"] = round(serve_and_ask(copy_rate_on, str(share), device), 1)
    return figures


def main():
    if len(vs.devices()) < 2:
        print("gpu_devices.py needs two GPUs", file=sys.stderr)
        return 77
    checks = {f"{library}, {how}": (lambda library=library, how=how: check_library(library, how))
              for library in LIBRARIES for how in SEEN
              # JAX 0.11 answers INVALID_VALUE for some kernels on another GPU's memory while it
              # sees that GPU (measured on two H100).
              if (library, how) != ("jax", "both seen")}
    checks |= {"other allocators": check_legacy, "copies": check_copies}
    return run_checks(checks, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
