#!/usr/bin/env python3
"""Replays traces on PyTorch's caching allocator, for the table of bench_trace.

usage: replay_torch.py TRACE ...        (needs a GPU and PyTorch)

Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for its other way. Times include what a
call from Python costs; reserved memory is what the allocator held at its peak.
"""

import os
import sys
import time

import torch


def read(path):
    lines = open(path, encoding="utf-8").read().split("\n")
    if lines[0] != "vmmshare-trace 1" or lines[-2:] != ["end", ""]:
        raise ValueError(f"{path} is no whole trace")
    return [line.split(" ") for line in lines[4:-2]], int(lines[3].split(" ")[2])


def replay(events, streams):
    """Peak of live bytes, peak of reserved bytes, nanoseconds an event."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    handles = [torch.cuda.Stream() for _ in range(streams)]
    blocks, sizes, live, peak, spent = [], [], 0, 0, 0
    for what, number, stream in events:
        if what == "+":
            size, handle = int(number), handles[int(stream)].cuda_stream
            start = time.perf_counter_ns()
            block = torch.cuda.caching_allocator_alloc(size, stream=handle)
            spent += time.perf_counter_ns() - start
            blocks.append(block)
            sizes.append(size)
            live += size
            peak = max(peak, live)
        else:
            at = int(number)
            start = time.perf_counter_ns()
            torch.cuda.caching_allocator_delete(blocks[at])
            spent += time.perf_counter_ns() - start
            live -= sizes[at]
            blocks[at] = None
    for block in blocks:
        if block is not None:
            torch.cuda.caching_allocator_delete(block)
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    return peak, reserved, spent / max(1, len(events))


def main():
    way = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default")
    for path in sys.argv[1:]:
        events, streams = read(path)
        replay(events, streams)
        peak, reserved, each = replay(events, streams)
        print(f"{os.path.basename(path)}  PyTorch {way}  live {peak / 2**20:.1f} MiB"
              f"  reserved {reserved / 2**20:.1f} MiB  {reserved / peak:.3f} x  {each:.0f} ns",
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
