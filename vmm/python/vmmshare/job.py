"""How the ranks of a job find each other, for SymmetricMemory.

    memory = vs.SymmetricMemory(0, 1 << 30, vmmshare.job.mpi(MPI.COMM_WORLD))
    right = memory.array((memory.rank + 1) % memory.size, 1 << 28, "float32")
"""

from __future__ import annotations

import typing

__all__ = ["AllGather", "mpi", "torch_distributed"]


class AllGather:
    """An exchange over a call that gives every rank what all ranks have."""

    def __init__(self, rank: int, size: int,
                 all_gather: "typing.Callable[[dict[str, bytes]], list[dict[str, bytes]]]"):
        self.rank, self.size, self._all_gather = rank, size, all_gather
        self._own: "dict[str, bytes]" = {}
        self._all: "list[dict[str, bytes]]" = [{} for _ in range(size)]

    def put(self, key: str, value: bytes) -> None:
        self._own[key] = value

    def fence(self, timeout: float) -> None:
        """The medium waits as long as it is made to, whatever `timeout` says."""
        self._all = self._all_gather(self._own)

    def get(self, rank: int, key: str) -> bytes:
        return self._all[rank][key]


def mpi(communicator) -> AllGather:
    """Over a communicator of mpi4py. A rank that does not come is waited for by MPI."""
    return AllGather(communicator.Get_rank(), communicator.Get_size(), communicator.allgather)


def torch_distributed(group=None) -> AllGather:
    """Over torch.distributed, with the group's own timeout."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise ImportError("torch_distributed() needs torch: pip install torch") from error

    def all_gather(own):
        gathered = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, own, group=group)
        return gathered

    return AllGather(dist.get_rank(group), dist.get_world_size(group), all_gather)
