"""Memory of every rank of a job, which all ranks map, over torch.distributed.

Shows vs.SymmetricMemory and vmmshare.job.torch_distributed(): each rank fills its own part, and
reads the right neighbour's. Needs a GPU, which several ranks may share, and torch. Run it by
itself: it starts two ranks. Under torchrun init_process_group("gloo") is all that is needed.
"""

import os
import tempfile

import support
import vmmshare as vs
import vmmshare.job

COUNT, RANKS = 1 << 18, 2


def work(rank, meeting):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    device = rank % len(vs.devices())
    torch.cuda.set_device(device)
    memory = vs.SymmetricMemory(device, 4 * COUNT, vmmshare.job.torch_distributed())
    right = (rank + 1) % RANKS
    torch.from_dlpack(memory.array(rank, COUNT, "float32")).fill_(rank)
    torch.cuda.synchronize()
    dist.barrier()
    theirs = torch.from_dlpack(memory.array(right, COUNT, "float32"))
    assert bool((theirs == right).all())
    print(f"rank {rank}, device {device}: reads the number of rank {right}", flush=True)
    dist.barrier()  # Nobody's part goes while others read it.
    dist.destroy_process_group()


def main():
    support.arguments(__doc__)
    torch = support.library("torch", "torch")
    support.gpu()
    if not torch.cuda.is_available():
        support.skip("this torch sees no GPU: install one that is built for CUDA")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, args=(os.path.join(folder, "store"),), nprocs=RANKS)
    print(f"{RANKS} ranks")


if __name__ == "__main__":
    main()
