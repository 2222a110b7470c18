"""Jobs: memory of both ranks, mapped by both. From the call until it returns, on the slower
rank. This file has vmmshare's ways."""

import time
from datetime import timedelta

from times import summary

MIB = 1 << 20
SIZES = [(2 * MIB, 30), (16 * MIB, 30), (64 * MIB, 30), (1024 * MIB, 8)]
QUICK = [(2 * MIB, 4), (64 * MIB, 4)]
DEADLINE = timedelta(seconds=30)


class Job:
    """A way to have symmetric memory: load(), prepare(), start(), allocate(), addresses(),
    free()."""

    def load(self):
        raise NotImplementedError

    def prepare(self, side):
        """Not timed: a context on the device, as the library wants it."""
        side.use_device(side.device)

    def start(self, side):
        """Finds the other rank."""
        raise NotImplementedError

    def free(self, side, memory):
        """What is left to do once both have dropped theirs."""

    def run(self, side):
        self.prepare(side)
        side.meet()
        began = time.perf_counter()
        self.start(side)
        started = time.perf_counter()
        memory = self.allocate(side, 2 * MIB)
        ended = time.perf_counter()
        self.check(side, memory)
        self.give_back(side, memory)
        del memory
        start, first, both = side.slower([started - began, ended - started, ended - began])
        side.emit(kind="start", start_ms=start * 1e3, first_ms=first * 1e3, both_ms=both * 1e3)
        for nbytes, rounds in QUICK if side.quick else SIZES:
            times = side.slower([self._round(side, nbytes, number == 0)
                                 for number in range(rounds + 1)])
            side.emit(kind="size", nbytes=nbytes, first_ms=times[0] * 1e3,
                      ms=summary(times[1:], 1e-3))
        side.meet()

    def _round(self, side, nbytes, look):
        side.meet()
        began = time.perf_counter()
        memory = self.allocate(side, nbytes)
        took = time.perf_counter() - began
        if look:
            self.check(side, memory)
        self.give_back(side, memory)
        return took

    def give_back(self, side, memory):
        side.meet()
        self.free(side, memory)

    def check(self, side, memory):
        """Each rank reads in the other's part what the other wrote there."""
        own, theirs = self.addresses(side, memory)
        word = 0xBAD if side.options["corrupt"] and side.rank == 1 else 100 + side.rank
        side.cuda.fill(own, word, 4096)
        side.cuda.synchronize()
        side.meet()
        found = side.cuda.word(theirs)
        if side.rank == 0 and found != 101:
            raise ValueError(f"rank 0 read {found} in rank 1's memory; expected 101")
        side.meet()


class Symmetric(Job):
    """vmmshare's SymmetricMemory, over the pipe between the two processes."""

    def load(self):
        import vmmshare
        import vmmshare.job
        self.vs, self.job = vmmshare, vmmshare.job

    def start(self, side):
        def all_gather(own):
            side.pipe.send(own)
            theirs = side.pipe.recv()
            return [own, theirs] if side.rank == 0 else [theirs, own]
        self.exchange = self.job.AllGather(side.rank, 2, all_gather)

    def allocate(self, side, nbytes):
        return self.vs.SymmetricMemory(side.device, nbytes, self.exchange, timeout=20)

    def addresses(self, side, memory):
        return memory.ptr(side.rank), memory.ptr(side.peer)

    def free(self, side, memory):
        memory.close()


def tcp_store(side, dist):
    """PyTorch's store, which rank 0 has."""
    if side.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, DEADLINE, wait_for_workers=False)
        side.pipe.send(store.port)
        return store
    return dist.TCPStore("127.0.0.1", side.pipe.recv(), 2, False, DEADLINE)


class SymmetricOverStore(Symmetric):
    """The same, over PyTorch's TCPStore."""

    def load(self):
        super().load()
        import torch.distributed
        self.dist = torch.distributed

    def start(self, side):
        self.store = tcp_store(side, self.dist)
        self.exchange = self.job.store(self.store, side.rank, 2)


class SymmetricOverDistributed(SymmetricOverStore):
    """The same, over a process group of torch.distributed's, on the CPU (gloo)."""

    def start(self, side):
        self.dist.init_process_group("gloo", store=tcp_store(side, self.dist), rank=side.rank,
                                     world_size=2, timeout=DEADLINE)
        self.exchange = self.job.torch_distributed()


class SymmetricHeap(Symmetric):
    """The same, cut from memory that is made once, at the start."""

    def start(self, side):
        super().start(side)
        largest = max(nbytes for nbytes, _ in (QUICK if side.quick else SIZES))
        self.memory = super().allocate(side, largest + 256 * MIB)

    def allocate(self, side, nbytes):
        return self.memory.allocate(nbytes)

    def addresses(self, side, memory):
        return self.memory.ptr(side.rank) + memory, self.memory.ptr(side.peer) + memory

    def free(self, side, memory):
        self.memory.free(memory)
