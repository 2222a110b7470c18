"""Tensors of pools in torch.multiprocessing's queues: vmmshare.torch.enable_multiprocessing()."""

import contextlib
import importlib
import os
import threading
from multiprocessing.reduction import ForkingPickler

from . import FencePool, _served, connect, connect_fences, errors, serve
from . import torch as adapter

_senders: list = []  # Of this process.
_remotes: dict = {}  # By process, text and access.
_receipts: dict = {}  # Pools of fences, by process, text and device.


class _Sent:
    """A tensor that was put into a queue."""

    def __init__(self, tensor, block, receipt):
        # PyTorch puts other memory into a tensor that it changes in place.
        self.tensor, self.block, self.receipt = tensor.detach(), block, receipt
        self.was_received = False

    def look(self, held):
        """held: the blocks that others have, for what comes without a receipt."""
        if self.receipt is None:
            self.was_received = self.was_received or self.block in held
            return
        with contextlib.suppress(errors.VmmshareError):  # As of one that was abandoned there.
            if self.receipt.value == 0:
                return
        self.was_received, self.receipt = True, None


class _OnTheWay:
    """What was sent of a pool, and is with a receiver or on its way there.

    PyTorch cuts a block of the pool into many tensors, and uses the memory of one anew as soon as
    it has gone here, whoever has the block elsewhere. So each is kept: until its receiver has said
    by a fence that it has it, and then until nobody has the block any more.
    """

    def __init__(self, pool):
        self._pool, self._turn = pool, threading.Lock()
        self._sent, self._owner, self._is_watched = [], None, False

    def add(self, sent):
        with self._turn:
            self._owner = self._owner or self._pool._kept()  # Which has leases() after close().
            self._sent.append(sent)
            was_watched, self._is_watched = self._is_watched, True
        if not was_watched:
            _served._keep(self, None)

    def leases(self):
        """Lets go of what has come back; what is kept. For the watch of _served."""
        # The garbage collector may call this in the middle of add(), and of this.
        if not self._turn.acquire(blocking=False):
            return [self]
        gone = []
        try:
            if self._sent:
                # First what was received, and then who has what: a receiver has it before it
                # says so. Of a pool that was closed nothing more is received.
                was_closed = self._pool.closed
                received = [was_closed or one.was_received for one in self._sent]
                held = {lease["block"] for lease in self._owner.leases()}
                kept = []
                for one, was_received in zip(self._sent, received):
                    one.look(held)
                    (gone if was_received and one.block not in held else kept).append(one)
                self._sent = kept
            if not self._sent:
                self._owner, self._is_watched = None, False
            return list(self._sent)
        finally:
            self._turn.release()
            gone.clear()  # Tensors end here, which may call anything.


class _Sender:
    """A pool whose tensors are sent."""

    def __init__(self, pool, writable):
        self.pool, self.share, self.writable = pool, serve(pool), writable
        self.on_the_way = _OnTheWay(pool)
        self._fences = self._fences_share = None
        with contextlib.suppress(errors.VmmshareError):  # Not every device has them.
            self._fences = FencePool(adapter._device_of(pool))
            self._fences_share = serve(self._fences)

    def send(self, torch, tensor):
        """What _rebuild() takes."""
        # The receiver may read it at once, on a stream that knows of none here.
        torch.cuda.current_stream(tensor.device).synchronize()
        ticket, receipt = adapter.share(tensor), None
        if self._fences_share is not None:
            with contextlib.suppress(errors.VmmshareError):
                receipt = self._fences.new()
        said = receipt and (str(self._fences_share), receipt.ticket())
        self.on_the_way.add(_Sent(tensor, self.pool.find(tensor.data_ptr())[0], receipt))
        return (type(tensor), str(self.share), ticket, tensor.requires_grad, self.writable, said)


def enable(torch, pool, writable):
    _senders[:] = [one for one in _senders if one.pool is not pool and not one.pool.closed]
    _senders.append(_Sender(pool, writable))
    reductions = importlib.import_module("torch.multiprocessing.reductions")

    def reduce(tensor):
        # PyTorch refuses what has a history, and knows all other kinds of memory.
        if tensor.device.type == "cuda" and (tensor.is_leaf or not tensor.requires_grad):
            for sender in _senders:
                if not sender.pool.closed and _holds(sender.pool, tensor):
                    return _rebuild, sender.send(torch, tensor)
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


def _connected(known, text, how, make):
    """What make() connects to, once for each process."""
    key = os.getpid(), text, how
    try:
        known[key].check()
    except (KeyError, errors.VmmshareError):
        _forget_ended(known, key[0])
        known[key] = make()
    return known[key]


def _forget_ended(known, process):
    """Of producers that are gone: their arrays keep what they need."""
    for key, remote in list(known.items()):
        if key[0] == process:  # Others are a parent's.
            try:
                remote.check()
            except errors.VmmshareError:
                known.pop(key, None)


def _rebuild(kind, text, ticket, requires_grad, writable, receipt):
    remote = _connected(_remotes, text, writable, lambda: connect(text, writable=writable))
    tensor = adapter.open(remote, ticket)
    if receipt is not None:
        # Its sender may have ended, or the bytes are unpickled once more: the tensor is here.
        with contextlib.suppress(errors.VmmshareError):
            _say_received(*receipt, tensor.get_device())
    if kind.__name__ == "Parameter":
        return kind(tensor, requires_grad)
    tensor.requires_grad = requires_grad
    return tensor


def _say_received(text, ticket, device):
    fences = _connected(_receipts, text, device, lambda: connect_fences(text, device))
    fences.open(ticket).signal(1)
