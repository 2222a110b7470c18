"""A weight transfer engine and its trainer, of the shape of vLLM's, over generations of a set.

There a trainer sends its weights after each step, and each inference worker receives them by an
engine of its own. Here the trainer publishes a generation of a tensor set, one copy for all workers
of the device, and the update itself is a number: each worker maps the generation that it says.
Workers that are in the middle of something keep the old one until they have switched.

Written from the signatures alone: it has not run within vLLM. tests/python/test_seats.py runs it
with a stand-in of the caller, in two processes. Needs `vmmshare keep`.
"""

import dataclasses

import vmmshare as vs
import vmmshare.weights


@dataclasses.dataclass
class InitInfo:
    """Where the sets are, and of which model. The caller makes it of a plain dict."""

    name: str
    fingerprint: str = ""
    address: str = ""
    rank: int = 0   # Of the trainer's process; 0 sends.


@dataclasses.dataclass
class UpdateInfo:
    """Of which generation the weights are."""

    generation: int


def _parse(cls, what):
    try:
        return cls(**what)
    except TypeError as why:
        raise vs.errors.InvalidArgument(f"no {cls.__name__}: {why}") from why


class SetTransferEngine:
    """In a worker. `model` has load_weights(pairs of name and tensor), as vLLM's models have. One
    thread at a time."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config = config, vllm_config
        self.device, self.model = device, model
        self._init = self._current = self._next = None

    def parse_init_info(self, init_dict):
        """InvalidArgument, which is a ValueError, for a dict that is none."""
        return _parse(self.init_info_cls, init_dict)

    def parse_update_info(self, update_dict):
        return _parse(self.update_info_cls, update_dict)

    def init_transfer_engine(self, init_info):
        """NotFound when no keeper is there."""
        vs.Keeper(init_info.address).close()
        self._init = init_info

    def start_weight_update(self):
        if self._init is None:
            raise vs.errors.FailedPrecondition("init_transfer_engine() was not called")

    def update_weights(self, update_info):
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info):
        """Maps the generation and gives its tensors to the model, which may keep them where they
        lie: they are read-only.

        FailedPrecondition for weights of another model, Aborted when the trainer has published a
        later generation meanwhile, NotFound when the set was dropped. The model has what it had,
        then.
        """
        self.start_weight_update()
        opened = vs.weights.open(self._init.name, fingerprint=self._init.fingerprint,
                                 address=self._init.address)
        if opened.generation != update_info.generation:
            raise vs.errors.Aborted(
                f"the set {self._init.name!r} is of generation {opened.generation}; the update is "
                f"of {update_info.generation}", "Wait for the trainer's next update.")
        self.model.load_weights(opened.torch().items())
        self._next = opened

    def finish_weight_update(self):
        """The generation before goes with its last tensor."""
        if self._next is not None:
            current, self._current, self._next = self._current, self._next, None
            if current is not None:
                current.close()

    @property
    def generation(self):
        """Of the last update that was finished; 0 before the first."""
        return 0 if self._current is None else self._current.generation

    def shutdown(self):
        for opened in (self._current, self._next):
            if opened is not None:
                opened.close()
        self._current = self._next = None


class SetTransferTrainer:
    """In the trainer. client: the four calls of the inference side; source: iterates over pairs of
    name and tensor, which every rank does, for that may be a collective."""

    init_info_cls = InitInfo

    def __init__(self, config, *, client, source, init_info, is_sender=True):
        self.config, self.client, self.source = config, client, source
        self.init_info, self.is_sender = init_info, is_sender

    @classmethod
    def trainer_init(cls, config, init_info, *, client, source):
        made = cls(config, client=client, source=source, init_info=init_info,
                   is_sender=init_info.rank == 0)
        if made.is_sender:
            client.init_weight_transfer_engine(dataclasses.asdict(init_info))
        return made

    def send_weights(self):
        """Publishes the next generation and tells the workers. `config` has what put() is told of
        where memory is made. Errors as vmmshare.weights.put(), after which they have the old one,
        and whatever the client raises."""
        tensors = dict(iter(self.source))
        if not self.is_sender:
            return
        generation = vs.weights.put(self.init_info.name, tensors,
                                    fingerprint=self.init_info.fingerprint,
                                    address=self.init_info.address, **(self.config or {}))
        self.client.start_weight_update()
        self.client.update_weights({"generation": generation})
        self.client.finish_weight_update()

    def shutdown(self):
        """The last generation stays: a worker that starts later maps it."""
