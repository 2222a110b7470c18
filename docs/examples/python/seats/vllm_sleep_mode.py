"""A sleep-mode backend of the shape of vLLM's, for weights that are in a tensor set.

suspend() moves the set from the device to memory of the host and lets go; resume() brings it back
and gives the tensors to the model anew. What sleeps is kept by the keeper: it is there even after
the engine was killed asleep.

The tensors come back at other addresses: CUDA graphs that were captured over the old ones have to
be captured again. Tensors that come back where they were: torch_memory_saver.py, beside this.

Written from the signatures alone: it has not run within vLLM. tests/python/test_seats.py runs it
with a stand-in of the caller, in two processes. Needs `vmmshare keep`.
"""

import vmmshare as vs
import vmmshare.weights


class SetSleepBackend:
    """manage() what sleeps, by tag; then suspend() and resume() as the engine says. One thread at
    a time, and none of the tensors is in use meanwhile."""

    def __init__(self):
        self._state = "RUNNING"
        self._managed, self._asleep = {}, set()

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return True   # They are not touched.

    @classmethod
    def preserves_compiled_artifacts(cls):
        return False  # What has addresses compiled in has old ones.

    @classmethod
    def preserves_graphs_with_communicators(cls):
        return False  # The same.

    @classmethod
    def supports_durable_storage(cls):
        return False  # It ends with the keeper.

    def state(self):
        return self._state

    def manage(self, tag, name, assign, *, fingerprint="", device=0, host_node=None, address=""):
        """Opens the set `name` and calls assign(tensors by name); assign(None) is called before it
        sleeps, and drops them all. Where an engine was killed asleep, it is woken first. NotFound
        when there is no such set, awake or asleep; FailedPrecondition for another fingerprint."""
        managed = {"name": name, "assign": assign, "fingerprint": fingerprint,
                              "where": {"device": device, "host_node": host_node},
                              "address": address, "opened": None}
        self._wake(managed)
        self._managed[tag] = managed

    def suspend(self, level=1):
        """Level 1: the weights go to memory of the host. Level 2: they go, and whoever resumes has
        put the set again before. Engines that have the set open keep the device's memory. When it
        fails, what it says is awake is awake as before."""
        for tag, one in self._managed.items():
            if tag in self._asleep:
                continue
            keeper = {"address": one["address"]}
            if level == 1:
                vs.weights.put(_asleep(one["name"]), one["opened"].torch(), host_node=0,
                               fingerprint=one["fingerprint"], **keeper)
            one["assign"](None)
            one["opened"].close()
            one["opened"] = None
            self._asleep.add(tag)
            self._state = "SUSPENDED"
            _drop(one["name"], **keeper)
            if level != 1:
                _drop(_asleep(one["name"]), **keeper)

    def resume(self, tags=None):
        """Wakes what has these tags, or all. FailedPrecondition for a tag that is not managed;
        NotFound after level 2 when the set was not put again. What could not wake sleeps on."""
        unknown = set(tags or ()) - set(self._managed)
        if unknown:
            raise vs.errors.FailedPrecondition(f"{sorted(unknown)} are not managed; there are "
                                               f"{sorted(self._managed)}")
        self._state = "RESUMING"
        try:
            for tag in list(self._asleep):
                if tags is None or tag in tags:
                    self._wake(self._managed[tag])
                    self._asleep.remove(tag)
        finally:
            self._state = "SUSPENDED" if self._asleep else "RUNNING"

    def _wake(self, one):
        keeper = {"address": one["address"]}
        known = {"fingerprint": one["fingerprint"], **keeper}
        try:
            opened = vs.weights.open(one["name"], **known)  # Put again, or woken by another engine.
        except vs.errors.NotFound:
            with vs.weights.open(_asleep(one["name"]), **known) as asleep:
                vs.weights.put(one["name"], asleep.torch(), **known, **one["where"])
            # Killed here, it leaves both; the one that is awake counts.
            _drop(_asleep(one["name"]), **keeper)
            opened = vs.weights.open(one["name"], **known)
        one["opened"] = opened
        one["assign"](opened.torch())


def _asleep(name):
    return f"{name}.asleep"


def _drop(name, **keeper):
    try:
        vs.weights.drop(name, **keeper)
    except vs.errors.NotFound:
        pass  # Another engine did.
