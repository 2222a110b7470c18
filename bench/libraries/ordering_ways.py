"""The ways to order two ranks' streams."""

from jobs import DEADLINE, Symmetric, tcp_store
from jobs_others import NvshmemHeap
from ordering import Ordering

MEETING, SIGNAL = 0, 256  # Where the words are: apart, each in a line of its own.


class Counts:
    """How far a rank has come: rounds of the barrier, signals, waits."""

    def __init__(self):
        self.round = self.signalled = self.waited = 0


class Fences(Ordering):
    """vmmshare's fences, in memory of the host. A barrier is a signal to the peer and a wait for
    its, as the barrier of the C++ library puts them on a stream."""

    def load(self):
        import vmmshare
        self.vs = vmmshare

    def prepare(self, side):
        super().prepare(side)
        self.counts = Counts()
        if side.rank == 0:
            self.pool = self.vs.FencePool(side.device)
            self.share = self.vs.serve(self.pool)
            # Of each rank: one for the barrier, one for its signals.
            fences = [self.pool.new() for _ in range(4)]
            side.pipe.send((str(self.share), [fence.ticket() for fence in fences]))
        else:
            text, tickets = side.pipe.recv()
            self.pool = self.vs.connect_fences(text, side.device, timeout=20)
            fences = [self.pool.open(ticket) for ticket in tickets]
        self.meetings, self.signals = fences[:2], fences[2:]

    def barrier(self, side):
        self.counts.round += 1
        self.meetings[side.rank].signal(self.stream, self.counts.round)
        self.meetings[side.peer].wait(self.stream, self.counts.round)

    def signal(self, side):
        self.counts.signalled += 1
        self.signals[side.rank].signal(self.stream, self.counts.signalled)

    def wait(self, side):
        self.counts.waited += 1
        self.signals[side.peer].wait(self.stream, self.counts.waited)


class Ring(Ordering):
    """vmmshare's ring: an item is acquired, published, acquired and released, and has a message.
    The host takes part in each, so nothing stands behind a gate."""

    has_barrier, round_trips, gated = False, False, False

    def load(self):
        import vmmshare
        self.vs = vmmshare

    def prepare(self, side):
        super().prepare(side)
        if side.rank == 0:
            self.home = self.vs.RingHome(side.device)
            self.ring = self.home.open(side.link, buffers=8, nbytes=2 << 20, timeout=20)
        else:
            self.ring = self.vs.open_ring(side.link, device=side.device, timeout=20)

    def signal(self, side):
        buffer = self.ring.acquire(self.stream)
        self.ring.publish(buffer, self.stream)

    def wait(self, side):
        buffer = self.ring.acquire(self.stream)
        self.ring.release(buffer, self.stream)


class StreamMemoryOperations(Ordering):
    """cuStreamWriteValue64 and cuStreamWaitValue64 by hand, on words of vmmshare's
    SymmetricMemory, each in the memory of who waits for it. Nothing is less."""

    def load(self):
        self.job = Symmetric()
        self.job.load()

    def prepare(self, side):
        super().prepare(side)
        self.counts = Counts()
        self.job.start(side)
        self.memory = self.job.allocate(side, 2 << 20)
        self.own, self.theirs = self.job.addresses(side, self.memory)
        side.cuda.fill(self.own, 0, 4096)
        side.cuda.synchronize()
        side.meet()

    def barrier(self, side):
        self.counts.round += 1
        side.cuda.write_value(self.stream, self.theirs + MEETING, self.counts.round)
        side.cuda.wait_value(self.stream, self.own + MEETING, self.counts.round)

    def signal(self, side):
        self.counts.signalled += 1
        side.cuda.write_value(self.stream, self.theirs + SIGNAL, self.counts.signalled)

    def wait(self, side):
        self.counts.waited += 1
        side.cuda.wait_value(self.stream, self.own + SIGNAL, self.counts.waited)


class FenceArrays(StreamMemoryOperations):
    """vmmshare's fences in device memory: the same words, as fences."""

    kernels = False

    def load(self):
        import vmmshare
        self.vs = vmmshare
        super().load()

    def prepare(self, side):
        super().prepare(side)
        arrays = [self.vs.FenceArray(self.memory.array(rank, 2 * self.vs.FENCE_BYTES, "uint8"),
                                     kernels=self.kernels) for rank in range(2)]
        arrays[side.rank].clear()
        side.meet()
        self.own, self.theirs = ([arrays[rank][index] for index in range(2)]
                                 for rank in (side.rank, side.peer))

    def barrier(self, side):
        self.counts.round += 1
        self.theirs[0].signal(self.stream, self.counts.round)
        self.own[0].wait(self.stream, self.counts.round)

    def signal(self, side):
        self.counts.signalled += 1
        self.theirs[1].signal(self.stream, self.counts.signalled)

    def wait(self, side):
        self.counts.waited += 1
        self.own[1].wait(self.stream, self.counts.waited)


class FenceKernels(FenceArrays):
    """The same, of which streams wait by kernels; a barrier is one kernel."""

    kernels = True

    def barrier(self, side):
        self.counts.round += 1
        self.vs.meet(self.theirs[:1], self.own[:1], self.stream, self.counts.round)


class TorchStream(Ordering):
    """What runs on a stream of PyTorch's."""

    def load(self):
        import torch
        import torch.distributed
        self.torch, self.dist = torch, torch.distributed

    def prepare(self, side):
        side.use_device(side.device)
        self.torch.cuda.set_device(side.device)
        self.torch_stream = self.torch.cuda.Stream()
        self.stream = self.torch_stream.cuda_stream
        self.dist.init_process_group("nccl", store=tcp_store(side, self.dist), rank=side.rank,
                                     world_size=2, timeout=DEADLINE,
                                     device_id=self.torch.device("cuda", side.device))

    def on_stream(self):
        return self.torch.cuda.stream(self.torch_stream)


class Nccl(TorchStream):
    """NCCL through torch.distributed: all_reduce of one element, send and receive of one."""

    def prepare(self, side):
        super().prepare(side)
        self.one = self.torch.zeros(1, device="cuda")
        self.torch.cuda.synchronize()

    def barrier(self, side):
        self.dist.all_reduce(self.one)

    def signal(self, side):
        self.dist.send(self.one, side.peer)

    def wait(self, side):
        self.dist.recv(self.one, side.peer)


class TorchSymmetricBarrier(TorchStream):
    """barrier(), put_signal() and wait_signal() of PyTorch's symmetric memory, backend CUDA."""

    def load(self):
        super().load()
        import torch.distributed._symmetric_memory as symmetric
        self.symmetric = symmetric

    def prepare(self, side):
        super().prepare(side)
        self.tensor = self.symmetric.empty(1 << 20, dtype=self.torch.int32,
                                           device=self.torch.device("cuda", side.device))
        self.handle = self.symmetric.rendezvous(self.tensor, self.dist.group.WORLD)
        self.torch.cuda.synchronize()

    def barrier(self, side):
        self.handle.barrier(channel=0)

    def signal(self, side):
        self.handle.put_signal(dst_rank=side.peer, channel=1)

    def wait(self, side):
        self.handle.wait_signal(src_rank=side.peer, channel=1)


class Nvshmem(Ordering):
    """nvshmemx_barrier_all_on_stream, nvshmemx_signal_op_on_stream and
    nvshmemx_signal_wait_until_on_stream."""

    def load(self):
        self.job = NvshmemHeap()
        self.job.load()
        self.nvshmem = self.job.nvshmem

    def prepare(self, side):
        super().prepare(side)
        self.counts = Counts()
        self.job.start(side)
        self.word = self.nvshmem.allocate(4096)
        side.cuda.fill(self.word, 0, 4096)
        side.cuda.synchronize()
        side.meet()

    def barrier(self, side):
        self.nvshmem.barrier(self.stream)

    def signal(self, side):
        self.counts.signalled += 1
        self.nvshmem.signal(self.word, self.counts.signalled, side.peer, self.stream)

    def wait(self, side):
        self.counts.waited += 1
        self.nvshmem.wait(self.word, self.counts.waited, self.stream)
