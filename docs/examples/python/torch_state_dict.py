"""A model's weights, which another process uses where they lie.

Shows vmmshare.torch.use_pool(), within which PyTorch's tensors are in the pool, share_all(),
which makes one bytes object of a state_dict, and open_all(). Needs a GPU and torch 2.8 or
newer. Run it by itself: it starts the other process.
"""

import support
import vmmshare as vs
import vmmshare.torch


def make_model(torch):
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def checksum(torch, model):
    with torch.no_grad():
        return float(model(torch.ones(1, 64, device="cuda")).sum())


def use(text, weights):
    """In the other process: a model without memory takes theirs, read-only."""
    import torch
    state = vmmshare.torch.open_all(vs.connect(text, timeout=10), weights)
    with torch.device("meta"):
        model = make_model(torch)
    model.load_state_dict(state, assign=True)
    return checksum(torch, model)


def main():
    support.arguments(__doc__)
    torch = support.library("torch", "torch")
    support.gpu()
    if not torch.cuda.is_available():
        support.skip("this torch sees no GPU: install one that is built for CUDA")
    pool = vs.Pool(device=0)
    with vmmshare.torch.use_pool(pool):
        model = make_model(torch).cuda()
    torch.cuda.synchronize()
    share = vs.serve(pool)
    weights = vmmshare.torch.share_all(model.state_dict())
    here, there = checksum(torch, model), support.elsewhere(use, str(share), weights)
    assert abs(here - there) < 1e-3, (here, there)
    print(f"{len(model.state_dict())} tensors, {len(weights)} bytes sent; the outputs are equal")


if __name__ == "__main__":
    main()
