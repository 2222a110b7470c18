"""A transport of the shape of SGLang's weight cache, over a tensor set in a keeper.

There a daemon that has a model loaded answers engines that start with an entry for each tensor,
and a transport says what an entry is. Here the daemon puts the tensors once, as a set under a
name; an entry names set, generation and tensor, in plain data. No descriptor goes over the
daemon's socket and no handle is pickled, and the memory is the keeper's: a daemon that is killed
takes nothing from the engines, nor from those that have its answer and import after that.

Written from the signatures alone: it has not run within SGLang. tests/python/test_seats.py runs it
with a stand-in of the caller, in two processes. Needs `vmmshare keep`.
"""

import os

import vmmshare as vs
import vmmshare.weights


class VmmFdTransportBackend:
    """In the daemon: can_export_state(), prepare_export(), send_fetch_state_response(). In an
    engine: recv_fetch_state_response(), import_tensor().

    send_msg(conn, message): the caller's own way to send a dict. name_of_set: one for each rank
    and device. fingerprint: what the model is called; an engine that expects another is refused.
    Everything here is for one thread at a time.
    """

    name = "vmm_fd"

    def __init__(self, send_msg=None, *, name_of_set="sglang/rank0", fingerprint="", device=0,
                 host_node=None, address="", timeout=60.0):
        self._send_msg, self._set, self._fingerprint = send_msg, name_of_set, fingerprint
        self._where = {"device": device, "host_node": host_node}
        self._keeper = {"address": address, "timeout": timeout}
        self._opened = None   # (generation, TensorSet, its tensors by name)

    @classmethod
    def can_export_state(cls, state_tensors, *, address=""):
        """Whether a keeper is there to hold them."""
        try:
            with vs.Keeper(address, timeout=5):
                return bool(state_tensors)
        except vs.errors.VmmshareError:
            return False

    def prepare_export(self, state_tensors):
        """Copies the tensors into shared memory, once, and publishes them in place of the set that
        is there; returns an entry for each. Views and tied weights stay such. Errors as
        vmmshare.weights.put()."""
        generation = vs.weights.put(
            self._set, {name: tensor for name, (tensor, _) in state_tensors.items()},
            fingerprint=self._fingerprint, **self._where, **self._keeper)
        return {name: {"set": self._set, "generation": generation, "tensor": name,
                       "fingerprint": self._fingerprint, "shape": list(tensor.shape),
                       "dtype": str(tensor.dtype).removeprefix("torch."), "is_param": is_param}
                for name, (tensor, is_param) in state_tensors.items()}

    def send_fetch_state_response(self, conn, *, config, entries, pid=None,
                                  preloaded_weights_bytes=0):
        self._send_msg(conn, {
            "status": "ok", "config": config, "entries": entries,
            "pid": os.getpid() if pid is None else pid, "transport_backend": self.name,
            "preloaded_weights_bytes": preloaded_weights_bytes})

    def recv_fetch_state_response(self, sock, result):
        """Maps the set of the answer, read-only: all of its tensors, or none.

        InvalidArgument for an answer of another transport, NotFound when the set was dropped or no
        keeper is there, FailedPrecondition for a set of another fingerprint than this engine
        expects, Aborted when another generation is there by now: ask the daemon anew.
        """
        entries = result.get("entries") or {}
        said = {(entry.get("set"), entry.get("generation")) for entry in entries.values()}
        if result.get("transport_backend") != self.name or len(said) != 1:
            raise vs.errors.InvalidArgument(
                f"an answer of the transport {result.get('transport_backend')!r} with entries of "
                f"{len(said)} sets; expected {self.name!r} and one")
        (name, generation), = said
        opened = vs.weights.open(name, fingerprint=self._fingerprint, **self._keeper)
        if opened.generation != generation:
            raise vs.errors.Aborted(f"the set {name!r} is of generation {opened.generation} by "
                                    f"now; the answer is of {generation}", "Ask anew.")
        self.close()
        self._opened = (generation, opened, opened.torch())
        return result

    def import_tensor(self, entry):
        """The tensor of an entry, where it lies: no copy, and no call of the driver. It keeps the
        memory. FailedPrecondition before recv_fetch_state_response(), or for an entry of an answer
        before the last one; DataLoss where the set has another tensor than the entry says."""
        if self._opened is None or self._opened[0] != entry["generation"]:
            raise vs.errors.FailedPrecondition(
                f"an entry of generation {entry['generation']}; "
                + ("no answer was received" if self._opened is None
                   else f"the last answer was of {self._opened[0]}"))
        tensor = self._opened[2].get(entry["tensor"])
        if (tensor is None or list(tensor.shape) != entry["shape"]
                or str(tensor.dtype).removeprefix("torch.") != entry["dtype"]):
            raise vs.errors.DataLoss(f"the set has no tensor {entry['tensor']!r} of shape "
                                     f"{entry['shape']} and dtype {entry['dtype']}")
        return tensor

    def close(self):
        """Lets go of the set; its tensors keep the memory."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()
