#!/usr/bin/env python3
"""Weights on a GPU with PyTorch: what it takes, and that it is right. Prints one JSON object.

usage: gpu_weights.py [--quick] [--gb=14] [--tensors=20000] [--gpus=1] [NAME...]
NAME: a check, as the output has it. --gpus: readers and engines take turns on so many; who
puts and trains is on the first.
exit code 0: every check passed

Wants the wheel installed, torch and safetensors. See docs/benchmarks.md.
"""

import collections
import contextlib
import ctypes
import multiprocessing as mp
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import vmmshare as vs
import vmmshare.weights
from gpu_report import run_checks

QUICK = "--quick" in sys.argv


def option(name, default):
    for word in sys.argv[1:]:
        if word.startswith(f"--{name}="):
            return float(word.partition("=")[2])
    return default


GB = option("gb", 0.2 if QUICK else 14)
TENSORS = int(option("tensors", 200 if QUICK else 20_000))
GPUS = int(option("gpus", 1))
ROUNDS = 3 if QUICK else 7
CONTEXT = mp.get_context("spawn")


def model_of(torch, value=None):
    """A state_dict of TENSORS tensors in bfloat16, GB in all; one is tied to the first."""
    each = int(GB * 1e9 / 2 / TENSORS) // 64 * 64
    state = {}
    for i in range(TENSORS):
        state[f"layers.{i}.weight"] = torch.full((64, each // 64), float((value or i) % 251),
                                                 device="cuda", dtype=torch.bfloat16)
    state["tied.weight"] = state["layers.0.weight"]
    return state


def check_values(state, value=None):
    """A word of each fiftieth tensor."""
    for i in range(0, TENSORS, 50):
        got = float(state[f"layers.{i}.weight"][-1, -1])
        assert got == float((value or i) % 251), (i, got, value)


def median(times):
    return sorted(times)[len(times) // 2]


@contextlib.contextmanager
def keeper():
    folder = tempfile.mkdtemp(dir="/tmp")
    process = subprocess.Popen([sys.executable, "-m", "vmmshare", "keep", f"--address={folder}/k"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout.readline().strip() == f"{folder}/k", "the keeper did not start"
        yield f"{folder}/k"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(folder)


class Child:
    """A process of spawn, which runs target(pipe, *arguments)."""

    def __init__(self, target, *arguments):
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=run_child, args=(theirs, target, arguments))
        self.process.start()
        theirs.close()

    def get(self, timeout=120):
        assert self.pipe.poll(timeout), "the other process said nothing"
        kind, value = self.pipe.recv()
        if kind == "failed":
            raise RuntimeError(value)
        return value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipe.close()
        self.process.join(60)
        if self.process.is_alive():
            self.process.kill()


def run_child(pipe, target, arguments):
    try:
        target(lambda value: pipe.send(("value", value)), pipe.recv, *arguments)
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


# --- a set of a keeper --------------------------------------------------------------------


def copy_rate(torch, nbytes=4 << 30):
    """GB/s of one copy within the device."""
    source = torch.empty(min(nbytes, int(GB * 1e9)), dtype=torch.uint8, device="cuda")
    to, times = torch.empty_like(source), []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        to.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return source.nbytes / median(times[2:]) / 1e6


def attach(say, hear, address, device):
    import torch
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    weights = vs.weights.open("model", address=address, device=device)
    opened = time.perf_counter()
    tensors = weights.torch()
    done = time.perf_counter()
    check_values(tensors)
    assert tensors["tied.weight"].data_ptr() == tensors["layers.0.weight"].data_ptr()
    say(((opened - began) * 1e3, (done - began) * 1e3))


def check_put_and_attach():
    import torch
    state = model_of(torch)
    torch.cuda.synchronize()
    figures = {"tensors": TENSORS, "GB": GB, "copy_GB_s": copy_rate(torch)}
    with keeper() as address:
        for checksum in (False, True):
            times = []
            for _ in range(1 if checksum else 4):
                began = time.perf_counter()
                vs.weights.put("model", state, checksum=checksum, address=address)
                times.append(time.perf_counter() - began)
            figures[f"put_s_checksum_{checksum}"] = times
        for device in range(GPUS):
            opened = []
            for _ in range(ROUNDS):
                with Child(attach, address, device) as child:
                    opened.append(child.get())
            on = f"_on_gpu_{device}" if device else ""
            figures[f"open_ms{on}"] = [round(one, 3) for one, _ in opened]
            figures[f"open_and_torch_ms{on}"] = [round(both, 3) for _, both in opened]
        del state
        torch.cuda.empty_cache()
        began = time.perf_counter()
        figures["verified"] = vs.weights.verify("model", address=address)
        figures["verify_s"] = time.perf_counter() - began
    return figures


def read_swaps(say, hear, address, device):
    import torch
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    weights = vs.weights.open("swapped", address=address, device=device)
    say("ready")
    while True:
        began = hear()
        if began is None:
            return
        newer = vs.weights.open("swapped", address=address, device=device)
        tensors = newer.torch()
        say((time.monotonic() - began, newer.generation, float(tensors["a"][0])))
        del tensors
        weights.close()
        weights = newer


def check_swap():
    """From the call that puts a new generation, of one tensor, until four readers have mapped it."""
    import torch
    with keeper() as address:
        made = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]
        vs.weights.put("swapped", {"a": made[0]}, checksum=False, address=address)
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(Child(read_swaps, address, i % GPUS)) for i in range(4)]
            for reader in readers:
                assert reader.get() == "ready"
            last, put, swap = [], [], []
            for i, one in enumerate(made):
                with vs.weights.draft({"a": one}) as draft:
                    draft.torch()["a"].copy_(one)
                    torch.cuda.synchronize()
                    began = time.monotonic()
                    generation = draft.put("swapped", checksum=False, address=address)
                    done = time.monotonic()
                    for reader in readers:
                        reader.pipe.send(done)
                    got = [reader.get() for reader in readers]
                assert all(one[1:] == (generation, float(i)) for one in got), got
                put.append(done - began)
                swap.append(max(one[0] for one in got))
                last.append(put[-1] + swap[-1])
            for reader in readers:
                reader.pipe.send(None)
    return {name: round(median(times[2:]) * 1e3, 3) for name, times in
            (("put_ms", put), ("slowest_reader_ms", swap), ("both_ms", last))}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(run):
    """What a run took, and what of the CPU."""
    cpu, began = cpu_seconds(), time.perf_counter()
    run()
    took = time.perf_counter() - began
    return took, cpu_seconds() - cpu


class BareReads:
    """All of a folder by threads that only read, each into 4 MiB of pinned memory of its own."""

    PIECE = 4 << 20

    def __init__(self, folder, threads):
        self.cu, self.must = cuda_calls()
        self.at = [self.must(self.cu.cuMemHostAlloc(self.PIECE, 0)) for _ in range(threads)]
        self.pieces = [(ctypes.c_char * self.PIECE).from_address(int(at)) for at in self.at]
        self.files = [os.open(os.path.join(folder, one), os.O_RDONLY) for one in os.listdir(folder)]
        self.jobs = [(file, offset) for file in self.files
                     for offset in range(0, os.fstat(file).st_size, self.PIECE)]

    def run(self):
        left = iter(self.jobs)  # next() of it is one step, by the interpreter's lock.
        def read(piece):
            for file, offset in left:
                os.preadv(file, [piece], offset)
        threads = [threading.Thread(target=read, args=(piece,)) for piece in self.pieces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self):
        for file in self.files:
            os.close(file)
        for at in self.at:
            self.must(self.cu.cuMemFreeHost(at))


def check_files():
    """From safetensors files in the page cache, beside reads that go nowhere, in turn."""
    import torch
    from safetensors.torch import save_file
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        state, per = model_of(torch), (TENSORS + 3) // 4
        names = list(state)[:-1]
        for part in range(4):
            save_file({name: state[name].cpu() for name in names[part * per:(part + 1) * per]},
                      f"{folder}/{part}.safetensors")
        del state
        torch.cuda.empty_cache()
        counts = (1, 2, 4, 8, 16)
        loads, reads = ({threads: [] for threads in counts} for _ in range(2))
        with keeper() as address:
            for _ in range(1 if QUICK else 7):
                for threads in counts:
                    loads[threads].append(timed(lambda: vs.weights.load(
                        "model", folder, threads=threads, address=address)))
                    bare = BareReads(folder, threads)
                    reads[threads].append(timed(bare.run))
                    bare.close()
            with Child(attach_without_tie, address) as child:
                child.get()
            assert vs.weights.verify("model", address=address) == TENSORS
        def rates(times):
            return {"GB_s": round(GB / median([took for took, _ in times]), 2),
                    "GB_per_cpu_s": [round(GB / cpu, 2)
                                     for cpu in sorted(cpu for _, cpu in times)][::-1]}
        return [{"threads": threads, "load": rates(loads[threads]),
                 "bare_reads": rates(reads[threads])} for threads in counts]
    finally:
        shutil.rmtree(folder)


def attach_without_tie(say, hear, address):
    weights = vs.weights.open("model", address=address)
    check_values(weights.torch())
    say("right")


# --- sleep and wake -----------------------------------------------------------------------


def sleeper(say, hear, text):
    """An importer with a captured graph over the memory."""
    import torch
    theirs = vs.connect_restorable(text)
    tensor = torch.from_dlpack(theirs.array(1 << 20, "float32"))
    total = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.copy_(tensor.sum().reshape(1))
    graph.replay()
    torch.cuda.synchronize()
    say(float(total))
    while True:
        if hear() is None:
            return
        while theirs.recalled_in is None:
            time.sleep(0.0005)
        torch.cuda.synchronize()
        began = time.perf_counter()
        theirs.release()
        away = time.perf_counter() - began
        began = time.perf_counter()
        theirs.restore(timeout=60)
        back = time.perf_counter() - began
        graph.replay()
        torch.cuda.synchronize()
        say((away, back, float(total)))


def cuda_calls():
    """cuda.bindings.driver, and what returns a call's results, or ends the check."""
    from cuda.bindings import driver as cu

    def must(result):
        assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
        return result[1] if len(result) == 2 else result[1:]

    return cu, must


def fill(address, nbytes=0):
    """A program's own: the first MiB of float32 are 2, when it returns."""
    cu, must = cuda_calls()
    must(cu.cuMemsetD32(address, 0x40000000, 1 << 20))
    must(cu.cuCtxSynchronize())


class BareCalls:
    """Memory of `size` bytes that is given back, and comes back at the same address to be shared as
    before, by the driver's calls alone."""

    def __init__(self, size):
        cu, must = cuda_calls()
        self.size, self.must, self.cu = size, must, cu
        self.kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.properties = cu.CUmemAllocationProp()
        self.properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.properties.location.id = 0
        self.properties.requestedHandleTypes = self.kind
        self.access = cu.CUmemAccessDesc()
        self.access.location = self.properties.location
        self.access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.ptr = must(cu.cuMemAddressReserve(size, 0, 0, 0))
        self.make()

    def make(self):
        cu, must = self.cu, self.must
        self.handle = must(cu.cuMemCreate(self.size, self.properties, 0))
        must(cu.cuMemMap(self.ptr, self.size, 0, self.handle, 0))
        must(cu.cuMemSetAccess(self.ptr, self.size, [self.access], 1))
        self.descriptor = int(must(cu.cuMemExportToShareableHandle(self.handle, self.kind, 0)))

    def release(self, keep):
        cu, must = self.cu, self.must
        if keep:
            self.host = must(cu.cuMemHostAlloc(self.size, 0))
            must(cu.cuMemcpyDtoH(self.host, self.ptr, self.size))
        os.close(self.descriptor)
        must(cu.cuMemUnmap(self.ptr, self.size))
        must(cu.cuMemRelease(self.handle))

    def restore(self, fill):
        self.make()
        if fill is not None:
            fill(self.ptr, self.size)
            return
        self.must(self.cu.cuMemcpyHtoD(self.ptr, self.host, self.size))
        self.must(self.cu.cuMemFreeHost(self.host))

    def close(self):
        self.release(False)
        self.must(self.cu.cuMemAddressFree(self.ptr, self.size))


def sleep_and_wake(memory, size, kept, took):
    """One round; adds the seconds to `took`."""
    cu, must = cuda_calls()
    full = must(cu.cuMemGetInfo())[0]
    began = time.perf_counter()
    memory.release(keep=kept)
    took["release_s"].append(time.perf_counter() - began)
    # All but tables for what is pinned.
    took["device_has_it_after_s"].append(wait_free(full + size - (64 << 20)))
    began = time.perf_counter()
    memory.restore(fill=None if kept else fill)
    took["restore_s"].append(time.perf_counter() - began)


def wait_free(least):
    """Seconds until the device has so many bytes free."""
    cu, must = cuda_calls()
    began = time.perf_counter()
    while (free := must(cu.cuMemGetInfo())[0]) < least:
        assert time.perf_counter() < began + 5, f"{free} bytes are free, {least} were to be"
        time.sleep(0.0002)
    return time.perf_counter() - began


def check_sleep_and_wake():
    import torch
    torch.zeros(1, device="cuda")
    size = (1 if QUICK else 8) << 30
    figures = {}
    for kept in (True, False):
        memory, bare = vs.restorable(nbytes=size), BareCalls(size)
        tensor = torch.from_dlpack(memory.array(1 << 20, "float32"))
        tensor.fill_(2.0)
        scaled = torch.zeros_like(tensor)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scaled.copy_(tensor * 3)
        torch.cuda.synchronize()
        address = memory.ptr
        ours, theirs = collections.defaultdict(list), collections.defaultdict(list)
        # Either comes first as often: the driver's own time depends on what was freed before.
        for i in range(ROUNDS + 1 if kept else 4 * ROUNDS):
            pair = [(bare, theirs), (memory, ours)]
            for which, took in pair if i % 2 == 0 else reversed(pair):
                sleep_and_wake(which, size, kept, took)
            scaled.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert memory.ptr == address and float(scaled.min()) == 6.0 == float(scaled.max())
        ours, theirs = ({key: median(times) for key, times in took.items()}
                        for took in (ours, theirs))
        figures["kept on the host" if kept else "filled anew"] = {
            "GiB": size >> 30, **ours, "bare": theirs,
            "ratio": (ours["release_s"] + ours["restore_s"])
                     / (theirs["release_s"] + theirs["restore_s"])}
        del tensor, scaled, graph
        memory.close()
        bare.close()
    memory = vs.restorable(nbytes=size)
    tensor = torch.from_dlpack(memory.array(1 << 20, "float32"))
    tensor.fill_(0.5)
    torch.cuda.synchronize()
    times = []
    with Child(sleeper, memory.text) as child:
        assert child.get() == 0.5 * (1 << 20)
        for _ in range(ROUNDS):
            child.pipe.send("go")
            began = time.perf_counter()
            memory.release(timeout=60)
            asleep = time.perf_counter() - began
            memory.restore()
            away, back, total = child.get()
            assert total == 0.5 * (1 << 20), total
            times.append((asleep, away, back))
        child.pipe.send(None)
    figures["with an importer"] = {
        "release_s": median([one[0] for one in times]),
        "importer_release_ms": median([one[1] for one in times]) * 1e3,
        "importer_waits_and_restores_s": median([one[2] for one in times])}
    return figures


# --- a trainer and engines ----------------------------------------------------------------


def engine(say, hear, path, device):
    import torch
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    stream = torch.cuda.Stream()
    with vs.weights.follow(connection, device=device, timeout=60) as follower, \
            torch.cuda.stream(stream):
        say("ready")
        seen, switched, mixed = 0, [], torch.zeros(1, device="cuda", dtype=torch.int64)
        probes = None
        while not follower.finished:
            before = follower.number
            began = time.perf_counter()
            try:
                follower.latest(stream.cuda_stream, timeout=60)
            except vs.errors.OutOfRange:
                break
            if follower.number == before:
                continue
            tensors = follower.torch()
            switched.append((time.monotonic(), follower.number,
                             (time.perf_counter() - began) * 1e6))
            # Of one update all words are the same: on the device, without a wait.
            probes = torch.stack([tensors[f"layers.{i}.weight"][-1, -1]
                                  for i in range(0, TENSORS, max(TENSORS // 64, 1))])
            mixed += (probes != probes[0]).sum()
            mixed += (probes[0] != follower.number % 251).long()
            seen += 1
        follower.release(stream.cuda_stream)
        stream.synchronize()
        say((seen, int(mixed), switched))


def check_sync():
    """A trainer that writes all of its weights each step, and four engines."""
    import torch
    updates = 10 if QUICK else 40
    state = model_of(torch, 1)
    figures = {"tensors": TENSORS, "GB": GB, "copy_GB_s": copy_rate(torch)}
    folder = tempfile.mkdtemp(dir="/tmp")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{folder}/l")
    listener.listen()
    stream = torch.cuda.Stream()
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(vs.weights.publisher(state))
        engines = [stack.enter_context(Child(engine, f"{folder}/l", i % GPUS)) for i in range(4)]
        for place in range(4):
            publisher.add(listener.accept()[0], f"engine {place}", timeout=60)
        for one in engines:
            assert one.get() == "ready"
        own = list(state.values())[:-1]
        hosts, gpu, sent, slots = [], [], {}, {}
        with torch.cuda.stream(stream):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for number in range(1, updates + 1):
                torch._foreach_zero_(own)
                torch._foreach_add_(own, float(number % 251))
                stream.synchronize()
                start.record()
                began = time.perf_counter()
                update = publisher.copy(state, timeout=60)
                hosts.append(time.perf_counter() - began)
                end.record()
                end.synchronize()
                gpu.append(start.elapsed_time(end))
                assert update == (number, {}), update
            # Of the swap alone: what is in the slot is there already.
            for number in range(updates + 1, updates + 101):
                draft = publisher.acquire(stream.cuda_stream, timeout=60)
                place = number % 2
                if place not in slots:
                    tensors = draft.torch()
                    slots[place] = [tensors[name] for name in draft.own]
                torch._foreach_zero_(slots[place])
                torch._foreach_add_(slots[place], float(number % 251))
                stream.synchronize()
                sent[number] = time.monotonic()
                publisher.publish(stream.cuda_stream)
                time.sleep(0.005)  # Nothing is to be in its way.
        publisher.finish(timeout=60)
        seen = [one.get() for one in engines]
    shutil.rmtree(folder)
    assert all(mixed == 0 for _, mixed, _ in seen), [one[:2] for one in seen]
    last = updates + 100
    assert all(one[2][-1][1] == last for one in seen), [one[2][-1] for one in seen]
    swaps = {}
    for _, _, switched in seen:
        for when, number, _ in switched:
            if number in sent:
                swaps.setdefault(number, []).append(when - sent[number])
    slowest = sorted(max(times) for times in swaps.values() if len(times) == 4)
    calls = [took for _, _, switched in seen for _, number, took in switched if number > updates]
    figures |= {"updates": last, "seen_by_each": [one[0] for one in seen],
                "copy_host_ms": round(median(hosts[2:]) * 1e3, 3),
                "copy_on_device_ms": round(median(gpu[2:]), 3),
                "copy_on_device_GB_s": round(GB / median(gpu[2:]) * 1e3, 1),
                "swap_all_four_ms_p50": round(median(slowest) * 1e3, 3),
                "swap_all_four_ms_p99": round(slowest[int(len(slowest) * 0.99)] * 1e3, 3),
                "engine_latest_us_p50": round(median(calls), 1)}
    return figures


def empty_cache():
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def main():
    checks = {"put and attach": check_put_and_attach, "swap": check_swap, "files": check_files,
              "sleep and wake": check_sleep_and_wake, "sync": check_sync}
    return run_checks(checks, [word for word in sys.argv[1:] if not word.startswith("--")],
                      empty_cache)


if __name__ == "__main__":
    sys.exit(main())
