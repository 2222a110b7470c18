"""Symmetric memory as people have it without vmmshare."""

from jobs import DEADLINE, Job, tcp_store


class TorchSymmetric(Job):
    """torch.distributed._symmetric_memory: empty() and rendezvous(), backend CUDA."""

    backend = None  # CUDA, which set_backend() refuses to name: it is there already.

    def load(self):
        import torch
        import torch.distributed
        import torch.distributed._symmetric_memory as symmetric
        self.torch, self.dist, self.symmetric = torch, torch.distributed, symmetric

    def prepare(self, side):
        super().prepare(side)
        self.torch.cuda.set_device(side.device)
        self.torch.zeros(1, device="cuda")
        self.torch.cuda.synchronize()

    def start(self, side):
        # Without device_id NCCL makes its communicator when it is used first, here never.
        self.dist.init_process_group("nccl", store=tcp_store(side, self.dist), rank=side.rank,
                                     world_size=2, timeout=DEADLINE)
        if self.backend is not None:
            self.symmetric.set_backend(self.backend)

    def allocate(self, side, nbytes):
        tensor = self.symmetric.empty(nbytes // 4, dtype=self.torch.int32,
                                      device=self.torch.device("cuda", side.device))
        return tensor, self.symmetric.rendezvous(tensor, self.dist.group.WORLD)

    def addresses(self, side, memory):
        tensor, handle = memory
        theirs = handle.get_buffer(side.peer, tensor.shape, tensor.dtype)
        return tensor.data_ptr(), theirs.data_ptr()


class TorchNvshmem(TorchSymmetric):
    """The same with the backend NVSHMEM."""

    backend = "NVSHMEM"

    def load(self):
        super().load()
        if not self.symmetric.is_nvshmem_available():
            raise ImportError("this PyTorch has no NVSHMEM")


class NvshmemHeap(Job):
    """nvshmem_malloc, of NVSHMEM's host library."""

    def load(self):
        from nvshmem import Nvshmem
        self.nvshmem = Nvshmem()

    def start(self, side):
        self.nvshmem.start(side)

    def allocate(self, side, nbytes):
        return self.nvshmem.allocate(nbytes)

    def addresses(self, side, memory):
        return memory, self.nvshmem.address_at(memory, side.peer)

    def free(self, side, memory):
        self.nvshmem.free(memory)
