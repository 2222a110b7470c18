"""A tensor through torch.multiprocessing's queue, by ticket.

Shows vmmshare.torch.enable_multiprocessing(): tensors of the pool pass by ticket, all others
as before. What the receiver writes is in the sender's tensor: both have the same memory. Needs
a GPU and torch 2.8 or newer. Run it by itself: it starts the other process.
"""

import sys

import support
import vmmshare as vs
import vmmshare.torch


def double(queue):
    """In the other process."""
    import torch
    tensor = queue.get(timeout=60)
    tensor.mul_(2)
    torch.cuda.synchronize()


def main():
    support.arguments(__doc__)
    torch = support.library("torch", "torch")
    support.gpu()
    if not torch.cuda.is_available():
        support.skip("this torch sees no GPU: install one that is built for CUDA")
    pool = vs.Pool(device=0)
    vmmshare.torch.enable_multiprocessing(pool)
    with vmmshare.torch.use_pool(pool):
        tensor = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    spawn = torch.multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    other = spawn.Process(target=double, args=(queue,), daemon=True)
    other.start()
    queue.put(tensor)
    other.join(120)
    if other.exitcode != 0:
        sys.exit(f"the other process: exit code {other.exitcode}")
    print(f"sum {int(tensor.sum())}")


if __name__ == "__main__":
    main()
