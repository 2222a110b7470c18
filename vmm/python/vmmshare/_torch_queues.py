"""Tensors of pools in torch.multiprocessing's queues: vmmshare.torch.enable_multiprocessing()."""

import importlib
import os
from multiprocessing.reduction import ForkingPickler

from . import connect, errors, serve
from . import torch as adapter

_shares: list = []  # Of this process: (pool, share, writable).
_remotes: dict = {}  # By process, text and access.


def enable(torch, pool, writable):
    _shares[:] = [one for one in _shares if one[0] is not pool and not one[0].closed]
    _shares.append((pool, serve(pool), writable))
    reductions = importlib.import_module("torch.multiprocessing.reductions")

    def reduce(tensor):
        # PyTorch refuses what has a history, and knows all other kinds of memory.
        if tensor.device.type == "cuda" and (tensor.is_leaf or not tensor.requires_grad):
            for pool, share, access in _shares:
                if not pool.closed and _holds(pool, tensor):
                    # The receiver may read it at once, on a stream that knows of none here.
                    torch.cuda.current_stream(tensor.device).synchronize()
                    return _rebuild, (type(tensor), str(share), adapter.share(tensor),
                                      tensor.requires_grad, access)
        return reductions.reduce_tensor(tensor)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def _holds(pool, tensor):
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # A sparse one has none: it is made of others.
        return False
    try:
        pool.find(address)
        return True
    except errors.NotFound:
        return False


def _remote(text, writable):
    key = os.getpid(), text, writable
    try:
        _remotes[key].check()
    except (KeyError, errors.VmmshareError):
        _forget_ended(key[0])
        _remotes[key] = connect(text, writable=writable)
    return _remotes[key]


def _forget_ended(process):
    """Of producers that are gone: their arrays keep what they need."""
    for key, remote in list(_remotes.items()):
        if key[0] == process:  # Others are a parent's.
            try:
                remote.check()
            except errors.VmmshareError:
                _remotes.pop(key, None)


def _rebuild(kind, text, ticket, requires_grad, writable):
    tensor = adapter.open(_remote(text, writable), ticket)
    if kind.__name__ == "Parameter":
        return kind(tensor, requires_grad)
    tensor.requires_grad = requires_grad
    return tensor
