"""A tensor transport of the shape of Ray's, over a pool.

There an actor's tensors stay with it, and another actor receives them by a transport when it needs
them. Here they lie in a pool of the actor that made them; its metadata are a share's text and
tickets, a few bytes each, and the receiver maps the memory: of any GPU that it reaches, without a
copy. The receiver's last tensor gives the memory back, and the owner sees who still has some.

Written from the signatures alone: it has not run within Ray. tests/python/test_seats.py runs it
with a stand-in of the caller, in two processes.
"""

import dataclasses

import vmmshare as vs
import vmmshare.torch


@dataclasses.dataclass
class Communicator:
    """Nothing: who receives needs the metadata alone."""


@dataclasses.dataclass
class Metadata:
    """tensor_meta and tensor_device as the caller has them; text and tickets are vmmshare's. The
    text is a key: whoever of this user has it can have all of the pool."""

    tensor_meta: list
    tensor_device: "str | None" = None
    text: str = ""
    tickets: bytes = b""


class PoolTransport:
    """One for each process. pool: where it lays out what it sends; may be None in a process that
    only receives. One thread at a time."""

    def __init__(self, pool=None, *, timeout=10.0):
        self._pool, self._timeout = pool, timeout
        self._share = None
        self._kept = {}      # The tensors' memory, by id of the object.
        self._remotes = {}   # Pools of others, by text.
        self._aborted = set()

    def tensor_transport_backend(self):
        return "VMMSHARE"

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        """Whether it can be imported there; who wants to know more asks the actor."""
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        """In the actor that made the tensors. Those in the pool are shared where they lie; others
        are copied into it, once. ResourceExhausted when they do not fit."""
        import torch
        if self._pool is None:
            raise vs.errors.FailedPrecondition("this process has no pool to send from",
                                               "Make PoolTransport(pool).")
        if self._share is None:
            self._share = vs.serve(self._pool)
        kept = []
        for tensor in rdt_object:
            if not self._has(tensor):
                copy = torch.from_dlpack(self._pool.empty(tuple(tensor.shape),
                                                          str(tensor.dtype).split(".")[-1]))
                copy.copy_(tensor)
                tensor = copy
            kept.append(tensor)
        if any(tensor.is_cuda for tensor in kept):
            torch.cuda.synchronize()  # The receiver's streams are no streams of ours.
        tickets = vmmshare.torch.share_all({str(i): one for i, one in enumerate(kept)})
        self._kept[obj_id] = kept
        return Metadata([(tuple(one.shape), one.dtype) for one in kept],
                        kept[0].device.type if kept else None, str(self._share), tickets)

    def _has(self, tensor):
        if tensor.data_ptr() == 0:
            return True  # It is empty, and needs no memory.
        try:
            self._pool.find(tensor.data_ptr())
        except vs.errors.NotFound:
            return False
        return True

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return Communicator()

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata,
                              target_buffers=None):
        """Maps the tensors, read-only, or copies them into target_buffers.

        NotFound when the actor has ended, or Unavailable when it does so meanwhile,
        FailedPrecondition when it has collected them, InvalidArgument for metadata that were
        damaged, Cancelled after abort_transport().
        """
        if obj_id in self._aborted:
            self._aborted.remove(obj_id)
            raise vs.errors.Cancelled(f"the transport of {obj_id!r} was aborted")
        by_place = vmmshare.torch.open_all(self._remote(tensor_transport_metadata.text),
                                           tensor_transport_metadata.tickets,
                                           timeout=self._timeout)
        tensors = [by_place[str(i)] for i in range(len(by_place))]
        expected = [tuple(shape) for shape, _ in tensor_transport_metadata.tensor_meta]
        if [tuple(one.shape) for one in tensors] != expected:
            raise vs.errors.InvalidArgument(f"tensors of {obj_id!r} have other shapes than the "
                                            f"metadata say: {expected}")
        if target_buffers:
            for buffer, tensor in zip(target_buffers, tensors, strict=True):
                buffer.copy_(tensor)
            return target_buffers
        return tensors

    def _remote(self, text):
        remote = self._remotes.get(text)
        if remote is not None:
            try:
                remote.check()
                return remote
            except vs.errors.Unavailable:  # Its actor has ended.
                self._remotes.pop(text).close()
        self._remotes[text] = vs.connect(text, timeout=self._timeout)
        return self._remotes[text]

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("the transport is one-sided: the receiver maps the memory")

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        """In the actor that made them. The pool has the memory again when the last receiver has let
        go of it, too."""
        self._kept.pop(obj_id, None)

    def abort_transport(self, obj_id, communicator_metadata):
        """Receiving it, from now on, raises Cancelled once. What waits does so up to `timeout`."""
        self._aborted.add(obj_id)

    def holders(self):
        """Who has memory of this process's pool: a list of dicts."""
        return self._pool.leases()
