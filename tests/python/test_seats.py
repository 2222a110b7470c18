"""The classes of docs/examples/python/seats, each with a stand-in of its caller in two processes.

Nobody of those whose interfaces they have runs here. Tensors are of a stand-in of PyTorch's
interface, and of PyTorch where it is installed.
"""

import ctypes
import json
import os
import pathlib
import shutil
import socket
import struct
import sys
import tempfile

import numpy as np
import pytest

import conftest
import fake_torch
import fake_torch_memory
import raw_import
import vmmshare as vs
import vmmshare.broker
import vmmshare.torch
import vmmshare.weights

SEATS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "python" / "seats"
sys.path.append(str(SEATS))

import lmcache_fd_resolver  # noqa: E402
import ray_tensor_transport  # noqa: E402
import sglang_weight_cache  # noqa: E402
import vllm_sleep_mode  # noqa: E402
import vllm_weight_transfer  # noqa: E402


@pytest.fixture(params=["a stand-in", "PyTorch"])
def torch(request, monkeypatch):
    if request.param == "PyTorch":
        yield pytest.importorskip("torch")
        return
    for name, module in fake_torch.modules(fake_torch.HostTensor).items():
        monkeypatch.setitem(sys.modules, name, module)
    yield sys.modules["torch"]


@pytest.fixture
def peer(driver, torch):
    other = seated(isinstance(torch.Tensor, type(fake_torch.Tensor))
                   and issubclass(torch.Tensor, fake_torch.Tensor))
    yield other
    if other.process.returncode is None:
        other.close()


def seated(is_stand_in):
    """A Peer that has the seats and, as this process, PyTorch or its stand-in."""
    other = conftest.Peer()
    other(f"import sys; sys.path.append({str(SEATS)!r})")
    if is_stand_in:
        other("import fake_torch")
        other("sys.modules.update(fake_torch.modules(fake_torch.HostTensor))")
    other("import torch, vmmshare.weights, vmmshare.broker, raw_import, test_seats, gc")
    return other


@pytest.fixture
def folder(driver):
    made = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
    yield made
    shutil.rmtree(made)


def arrays_of(seed):
    random = np.random.default_rng(seed)
    embed = random.standard_normal((50, 8)).astype(np.float32)
    return {"embed": embed, "head": embed,
            "norm": random.standard_normal(8).astype(np.float16), "scale": np.array([float(seed)])}


def tensors_of(seed):
    import torch
    return {name: torch.from_dlpack(array) for name, array in arrays_of(seed).items()}


def differs(tensors, seed):
    """Names of what has other values; a peer's way to say that all is right: []."""
    wanted = arrays_of(seed)
    assert set(tensors) == set(wanted)
    return [name for name, tensor in tensors.items()
            if not np.array_equal(array_of(tensor), wanted[name])]


def array_of(tensor):
    return tensor.array if isinstance(tensor, fake_torch.Tensor) else tensor.numpy()


# --- SGLang's weight cache

def send_msg(conn, message):
    text = json.dumps(message).encode()  # Plain data, or this raises.
    conn.sendall(struct.pack("<Q", len(text)) + text)


def recv_msg(sock):
    with sock.makefile("rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


class Daemon:
    """The daemon's side: loads, exports, and answers who connects."""

    def __init__(self, path, seed, **more):
        self.backend = sglang_weight_cache.VmmFdTransportBackend(send_msg, host_node=0, **more)
        state = {name: (tensor, name != "scale") for name, tensor in tensors_of(seed).items()}
        assert self.backend.can_export_state(state, address=more["address"])
        self.entries = self.backend.prepare_export(state)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()

    def answer(self):
        conn, _ = self.listener.accept()
        with conn:
            self.backend.send_fetch_state_response(conn, config={"tp": 1}, entries=self.entries,
                                                   preloaded_weights_bytes=7)


class Engine:
    """The engine's side, up to its parameters."""

    def __init__(self, path, **more):
        self.backend = sglang_weight_cache.VmmFdTransportBackend(**more)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)

    def load(self):
        with self.sock:
            result = recv_msg(self.sock)
        self.entries = self.backend.recv_fetch_state_response(self.sock, result)["entries"]
        self.tensors = {name: self.backend.import_tensor(entry)
                        for name, entry in self.entries.items()}
        self.parameters = [name for name, entry in self.entries.items() if entry["is_param"]]


def test_a_daemons_weights_are_there_after_it_was_killed(torch, keeper, peer, folder):
    path = f"{folder}/s"
    peer(f"daemon = test_seats.Daemon({path!r}, 1, address={keeper.address!r}, fingerprint='m')")
    first, late = (Engine(path, address=keeper.address, fingerprint="m") for _ in range(2))
    peer("daemon.answer(); daemon.answer()")
    first.load()
    assert differs(first.tensors, 1) == [] and first.parameters == ["embed", "head", "norm"]
    assert first.tensors["embed"].data_ptr() == first.tensors["head"].data_ptr()  # Tied.
    peer.kill()
    late.load()  # The answer is there still, and what it names.
    assert differs(late.tensors, 1) == [] and differs(first.tensors, 1) == []
    late.backend.close()
    first.backend.close()
    assert differs(first.tensors, 1) == []  # Tensors keep the memory.


def test_an_engine_is_killed_and_comes_back(torch, keeper, peer, folder):
    daemon = Daemon(f"{folder}/s", 2, address=keeper.address)
    start = (f"engine = test_seats.Engine({folder + '/s'!r}, address={keeper.address!r})")
    peer(start)
    daemon.answer()
    peer("engine.load()")
    assert peer("test_seats.differs(engine.tensors, 2)") == []
    peer.kill()
    other = seated(issubclass(torch.Tensor, fake_torch.Tensor))
    try:
        other(start)
        daemon.answer()
        other("engine.load()")
        assert other("test_seats.differs(engine.tensors, 2)") == []
    finally:
        other.close()
        daemon.listener.close()


def test_answers_that_no_longer_hold(torch, keeper, folder):
    make = {"address": keeper.address, "name_of_set": "w"}
    daemon = Daemon(f"{folder}/1", 1, fingerprint="m", **make)
    engine, late, other = (Engine(f"{folder}/1", fingerprint=one, **make)
                           for one in ("m", "m", "another model"))
    for _ in range(3):
        daemon.answer()
    engine.load()
    with pytest.raises(vs.errors.FailedPrecondition, match="fingerprint 'm'; *expected 'another"):
        other.load()
    with pytest.raises(vs.errors.FailedPrecondition, match="no answer was received"):
        other.backend.import_tensor(engine.entries["norm"])
    second = Daemon(f"{folder}/2", 2, fingerprint="m", **make)
    with pytest.raises(vs.errors.Aborted, match="generation 2 by now; the answer is of 1"):
        late.load()
    # Who has the first generation goes on with it, and with the second when it asks.
    assert differs(engine.tensors, 1) == []
    old = engine.tensors, engine.entries
    again = Engine(f"{folder}/2", fingerprint="m", **make)
    second.answer()
    again.load()
    assert differs(again.tensors, 2) == [] and differs(old[0], 1) == []
    with pytest.raises(vs.errors.FailedPrecondition, match="generation 1; the last answer was of"):
        again.backend.import_tensor(old[1]["norm"])
    gone = Engine(f"{folder}/2", fingerprint="m", **make)
    second.answer()
    vs.weights.drop("w", address=keeper.address)
    with pytest.raises(vs.errors.NotFound):
        gone.load()
    assert differs(again.tensors, 2) == []
    daemon.listener.close()
    second.listener.close()


def test_answers_that_make_no_sense(torch, keeper, folder):
    daemon = Daemon(f"{folder}/s", 1, address=keeper.address)
    backend = sglang_weight_cache.VmmFdTransportBackend(address=keeper.address)
    for answer in ({"transport_backend": "torch_ipc", "entries": daemon.entries},
                   {"transport_backend": "vmm_fd", "entries": {}}, {},
                   {"transport_backend": "vmm_fd",
                    "entries": {**daemon.entries, "x": {"set": "other", "generation": 1}}}):
        with pytest.raises(vs.errors.InvalidArgument):
            backend.recv_fetch_state_response(None, answer)
    backend.recv_fetch_state_response(
        None, {"transport_backend": "vmm_fd", "entries": daemon.entries})
    for change in ({"tensor": "other"}, {"shape": [1]}, {"dtype": "int8"}):
        with pytest.raises(vs.errors.DataLoss, match="no tensor"):
            backend.import_tensor({**daemon.entries["norm"], **change})
    assert not backend.can_export_state({"a": (1, True)}, address=f"{folder}/nobody")
    daemon.listener.close()


# --- LMCache's resolver

class Wrapper:
    """What is pickled to the server, but for the pickling; it imports what a resolver has."""

    def __init__(self, export_id, offset, nbytes):
        self.export_id, self.offset, self.nbytes = export_id, offset, nbytes

    def read(self, resolver):
        descriptor = resolver(self.export_id)
        self.mapped = raw_import.Mapped(descriptor, os.fstat(descriptor).st_size)
        return self.mapped.read(self.offset, self.nbytes)

    def close(self, resolver):
        self.mapped.close()
        resolver.release(self.export_id)


@pytest.fixture
def cache(cuda):
    """A KV cache that a library made by cuMemCreate(), and its base."""
    with vs.Allocation(nbytes=4 << 20, host_node=0) as memory:
        array = np.from_dlpack(memory.array(4096, "uint8", offset=(2 << 20) + 64))
        array[:] = np.arange(4096) % 251
        yield array
        del array


KEY = bytes(range(16))
WRAPPER = f"wrapper = test_seats.Wrapper({KEY!r}, {(2 << 20) + 64}, 4096)"


@pytest.fixture
def resolving(driver, folder):
    """A server's process; no PyTorch is in this."""
    other = seated(True)
    other("import lmcache_fd_resolver; raw_import.use_device(0)")
    other(f"resolver = lmcache_fd_resolver.FdResolver(directory={folder!r})")
    other(WRAPPER)
    yield other
    if other.process.returncode is None:
        other.close()


def test_a_resolver_has_the_descriptor(cache, folder, resolving):
    exports = lmcache_fd_resolver.Exports(directory=folder)
    exports.publish(KEY, cache.ctypes.data, cache.nbytes)
    assert resolving("wrapper.read(resolver)") == cache.tobytes()
    cache[0] = 255
    assert resolving("wrapper.mapped.read(wrapper.offset, 1)") == b"\xff"  # The memory itself.
    holder, = exports.holders(KEY)
    assert holder["process"] == resolving.process.pid
    assert resolving("resolver.wanted_back()") == []
    with pytest.raises(vs.errors.DeadlineExceeded, match="is not returned"):
        exports.retire(KEY, within=60, timeout=0.01)
    assert resolving("resolver.wanted_back()") == [KEY]
    with pytest.raises(conftest.PeerRaised, match="NotFound"):
        resolving("resolver(wrapper.export_id)")  # Nobody gets it anew.
    resolving("wrapper.close(resolver)")
    exports.retire(KEY, within=60)
    exports.publish(KEY, cache.ctypes.data, cache.nbytes)  # As after a wake.
    assert resolving("wrapper.read(resolver)") == cache.tobytes()
    resolving("wrapper.close(resolver); resolver.close()")
    exports.close()


def test_the_server_is_killed_and_the_engine_goes_on(cache, folder, resolving):
    exports = lmcache_fd_resolver.Exports(directory=folder)
    exports.publish(KEY, cache.ctypes.data, cache.nbytes)
    resolving("wrapper.read(resolver)")
    resolving.kill()
    exports.retire(KEY)
    exports.close()


def test_the_engine_is_killed_and_the_server_is_told(cuda, folder, resolving):
    resolving("exports = lmcache_fd_resolver.Exports(directory=%r)" % folder)
    resolving("memory = vs.Allocation(nbytes=4 << 20, host_node=0)")
    resolving(f"exports.publish({KEY!r}, memory.ptr, 4 << 20)")
    resolver = lmcache_fd_resolver.FdResolver(directory=folder)
    descriptor = resolver(KEY)
    assert resolver.wanted_back() == []
    resolving.kill()
    assert resolver.wanted_back() == [KEY]
    assert raw_import.bytes_behind(descriptor, 4 << 20, 0, 8) == bytes(8)  # It is there still.
    with pytest.raises(vs.errors.NotFound, match="its owner has ended"):
        resolver(KEY)
    resolver.close()


def test_ids_that_are_none_and_memory_in_pieces(cuda, folder, driver):
    resolver = lmcache_fd_resolver.FdResolver(directory=folder)
    with pytest.raises(vs.errors.NotFound, match="nobody has published"):
        resolver(KEY)
    exports = lmcache_fd_resolver.Exports(directory=folder)
    with pytest.raises(vs.errors.FailedPrecondition):
        exports.publish(KEY, np.zeros(10).ctypes.data, 10)
    with pieces(cuda, 2) as at:
        exports.publish(KEY, at, 4 << 20)
        with pytest.raises(vs.errors.FailedPrecondition, match="2 pieces"):
            resolver(KEY)
        exports.retire(KEY)  # The lease of what was refused went back.
    exports.close()
    resolver.close()


class pieces:
    """An address with `count` of 2 MiB behind it, side by side."""

    def __init__(self, cuda, count):
        self.cuda, self.count, self.handles = cuda, count, []

    def __enter__(self):
        must, number = raw_import.must, raw_import.number
        self.at, self.size = ctypes.c_uint64(), number(self.count << 21)
        must(self.cuda.cuMemAddressReserve(ctypes.byref(self.at), self.size, number(0), number(0),
                                           number(0)))
        properties = (ctypes.c_int * 8)(1, 1, 1, 0)  # Pinned, a descriptor, of device 0.
        for place in range(self.count):
            handle = ctypes.c_uint64()
            must(self.cuda.cuMemCreate(ctypes.byref(handle), number(1 << 21), properties,
                                       number(0)))
            must(self.cuda.cuMemMap(number(self.at.value + (place << 21)), number(1 << 21),
                                    number(0), handle, number(0)))
            self.handles.append(handle)
        must(self.cuda.cuMemSetAccess(self.at, self.size, (ctypes.c_int * 3)(1, 0, 3), number(1)))
        return self.at.value

    def __exit__(self, *_):
        must = raw_import.must
        must(self.cuda.cuMemUnmap(self.at, self.size))
        must(self.cuda.cuMemAddressFree(self.at, self.size))
        for handle in self.handles:
            must(self.cuda.cuMemRelease(handle))


# --- vLLM's weight transfer

class Model:
    """Takes weights as vLLM's models do, and keeps them where they lie."""

    def __init__(self):
        self.tensors = {}

    def load_weights(self, weights):
        self.tensors = dict(weights)


class Client:
    """The inference side's four calls, for workers of whatever process."""

    def __init__(self, *workers):
        self.workers = workers

    def init_weight_transfer_engine(self, info):
        self._all("init_transfer_engine", f"engine.parse_init_info({info!r})")

    def start_weight_update(self):
        self._all("start_weight_update", "")

    def update_weights(self, info):
        self._all("update_weights", repr(info))

    def finish_weight_update(self):
        self._all("finish_weight_update", "")

    def _all(self, call, argument):
        for worker in self.workers:
            worker(f"engine.{call}({argument})")


WORKER = ("import vllm_weight_transfer; model = test_seats.Model(); "
          "engine = vllm_weight_transfer.SetTransferEngine(None, None, 'cpu', model)")


def trainer_of(address, client, seeds, fingerprint="m", rank=0):
    """A trainer whose weights are of the next of `seeds` at each step."""
    left = iter(seeds)

    class Source:
        def __iter__(self):
            return iter(tensors_of(next(left)).items())

    return vllm_weight_transfer.SetTransferTrainer.trainer_init(
        {"host_node": 0}, vllm_weight_transfer.InitInfo("w", fingerprint, address, rank),
        client=client, source=Source())


def here():
    """A worker in this process, to be told as one in a peer is."""
    model = Model()
    engine = vllm_weight_transfer.SetTransferEngine(None, None, "cpu", model)
    told = lambda text: eval(text, {"engine": engine})  # noqa: E731
    return engine, model, told


def test_workers_switch_from_generation_to_generation(torch, keeper, peer):
    peer(WORKER)
    engine, model, told = here()
    trainer = trainer_of(keeper.address, Client(peer, told), [1, 2, 3])
    with pytest.raises(vs.errors.FailedPrecondition, match="init_transfer_engine"):
        vllm_weight_transfer.SetTransferEngine(None, None, "cpu", model).start_weight_update()
    before = None
    for step in (1, 2, 3):
        trainer.send_weights()
        assert peer("engine.generation") == engine.generation == step
        assert peer(f"test_seats.differs(model.tensors, {step})") == []
        assert differs(model.tensors, step) == []
        if before is not None:  # Who kept a tensor has it as it was.
            assert differs(before, step - 1) == []
        before = model.tensors
    trainer.shutdown()
    engine.shutdown()
    assert differs(model.tensors, 3) == []
    assert engine.generation == 0


def test_ranks_that_do_not_send_iterate_only(torch, keeper, driver):
    trainer = trainer_of(keeper.address, None, [1, 2], rank=1)
    trainer.send_weights()
    assert vs.weights.list(address=keeper.address) == []
    with pytest.raises(StopIteration):
        for _ in range(2):
            trainer.send_weights()  # It took its second, and has no third.


def test_the_trainer_dies_and_the_workers_go_on(torch, keeper, peer):
    peer("import fake_torch" if issubclass(torch.Tensor, fake_torch.Tensor) else "pass")
    peer("told = lambda text: None")
    peer(f"trainer = test_seats.trainer_of({keeper.address!r}, test_seats.Client(told), [1])")
    peer("trainer.send_weights()")
    engine, model, _ = here()
    engine.init_transfer_engine(engine.parse_init_info(
        {"name": "w", "fingerprint": "m", "address": keeper.address}))
    peer.kill()
    engine.update_weights({"generation": 1})  # Told before, received after.
    engine.finish_weight_update()
    assert differs(model.tensors, 1) == [] and engine.generation == 1
    engine.shutdown()


def test_updates_that_cannot_be_received_change_nothing(torch, keeper, driver):
    engine, model, told = here()
    trainer = trainer_of(keeper.address, Client(told), [1, 2])
    trainer.send_weights()
    vs.weights.put("w", tensors_of(5), fingerprint="another", host_node=0, address=keeper.address)
    with pytest.raises(vs.errors.FailedPrecondition, match="'another'; *expected 'm'"):
        engine.update_weights({"generation": 2})
    trainer.send_weights()  # As generation 3.
    assert engine.generation == 3
    with pytest.raises(vs.errors.Aborted, match="generation 3; the update is of 2"):
        engine.update_weights({"generation": 2})
    vs.weights.drop("w", address=keeper.address)
    with pytest.raises(vs.errors.NotFound):
        engine.update_weights({"generation": 3})
    engine.finish_weight_update()  # Nothing came: nothing changes.
    assert engine.generation == 3 and differs(model.tensors, 2) == []
    for bad in ({}, {"generation": 1, "handles": []}):
        with pytest.raises(ValueError, match="UpdateInfo"):
            engine.parse_update_info(bad)
    with pytest.raises(ValueError, match="InitInfo"):
        engine.parse_init_info({"port": 1})
    with pytest.raises(vs.errors.NotFound):
        engine.init_transfer_engine(vllm_weight_transfer.InitInfo("w", "", "/tmp/nobody/k"))
    engine.shutdown()


# --- vLLM's sleep mode

def sleeper(keeper_address, into, fingerprint="m"):
    """A backend that manages the set "w", whose tensors are into["w"]."""
    def assign(tensors):
        if tensors is None:
            into.pop("w", None)
        else:
            into["w"] = tensors

    backend = vllm_sleep_mode.SetSleepBackend()
    backend.manage("weights", "w", assign, fingerprint=fingerprint, host_node=0,
                   address=keeper_address)
    return backend


def kept(keeper):
    return [one["name"] for one in vs.weights.list(address=keeper.address)]


def test_weights_sleep_and_wake(torch, keeper, driver):
    vs.weights.put("w", tensors_of(1), fingerprint="m", host_node=0, address=keeper.address)
    model = {}
    backend = sleeper(keeper.address, model)
    assert backend.state() == "RUNNING" and differs(model["w"], 1) == []
    for _ in range(3):
        backend.suspend(1)
        assert (backend.state(), model, kept(keeper)) == ("SUSPENDED", {}, ["w.asleep"])
        backend.suspend(1)  # It sleeps already.
        backend.resume(["weights"])
        assert (backend.state(), kept(keeper)) == ("RUNNING", ["w"])
        assert differs(model["w"], 1) == []
    backend.suspend(2)
    assert kept(keeper) == []
    with pytest.raises(vs.errors.NotFound):
        backend.resume()
    assert backend.state() == "SUSPENDED" and model == {}
    vs.weights.put("w", tensors_of(2), fingerprint="m", host_node=0, address=keeper.address)
    backend.resume()
    assert backend.state() == "RUNNING" and differs(model["w"], 2) == []
    with pytest.raises(vs.errors.FailedPrecondition, match="kv_cache"):
        backend.resume(["kv_cache"])
    for flag in ("compiled_artifacts", "graphs_with_communicators"):
        assert not getattr(backend, f"preserves_{flag}")()  # The addresses are others.


def test_an_engine_that_was_killed_asleep_is_woken_by_the_next(torch, keeper, peer):
    vs.weights.put("w", tensors_of(4), fingerprint="m", host_node=0, address=keeper.address)
    other = {}
    also = sleeper(keeper.address, other)  # Of an engine that shares the set.
    peer(f"backend = test_seats.sleeper({keeper.address!r}, globals())")
    peer("backend.suspend()")
    peer.kill()
    assert differs(other["w"], 4) == []  # It has not let go.
    model = {}
    with pytest.raises(vs.errors.FailedPrecondition, match="expected 'another'"):
        sleeper(keeper.address, model, "another")
    assert model == {} and kept(keeper) == ["w.asleep"]
    third = sleeper(keeper.address, model)
    assert differs(model["w"], 4) == [] and kept(keeper) == ["w"]
    # Of two that sleep the second one that wakes has what the first one woke.
    also.suspend()
    third.suspend()
    assert kept(keeper) == ["w.asleep"] and (model, other) == ({}, {})
    third.resume()
    also.resume()
    assert kept(keeper) == ["w"] and differs(model["w"], 4) == differs(other["w"], 4) == []
    # Level 2 leaves nothing that was asleep, either.
    vs.weights.put("w.asleep", tensors_of(5), host_node=0, address=keeper.address)
    third.suspend(2)
    assert kept(keeper) == []
    with pytest.raises(vs.errors.NotFound):
        backend = vllm_sleep_mode.SetSleepBackend()
        backend.manage("weights", "none", model.update, address=keeper.address)


# --- Ray's tensor transport

def test_an_actors_tensors_are_received_where_they_lie(torch, pool, peer):
    ours = ray_tensor_transport.PoolTransport(pool)
    assert (ours.tensor_transport_backend(), ours.is_one_sided()) == ("VMMSHARE", True)
    inside = torch.from_dlpack(pool.empty((4, 6), "float32"))
    array_of(inside)[...] = np.arange(24).reshape(4, 6)
    outside = torch.from_dlpack(np.arange(9, dtype=np.int64))
    metadata = ours.extract_tensor_transport_metadata("a", [inside, outside])
    assert metadata.tensor_meta == [((4, 6), inside.dtype), ((9,), outside.dtype)]
    peer("import ray_tensor_transport; theirs = ray_tensor_transport.PoolTransport()")
    receive(peer, metadata)
    assert peer("[test_seats.array_of(one).tolist() for one in tensors]") == [
        np.arange(24).reshape(4, 6).tolist(), list(range(9))]
    array_of(inside)[0, 0] = 77  # Not a copy.
    assert peer("float(test_seats.array_of(tensors[0])[0, 0])") == 77
    peer("into = [torch.from_dlpack(np.zeros((4, 6), 'float32')), "
         "torch.from_dlpack(np.zeros(9, 'int64'))]")
    peer("came = theirs.recv_multiple_tensors('a', metadata, None, into)")
    assert peer("float(test_seats.array_of(into[0])[0, 0]), int(test_seats.array_of(into[1])[8])"
                ) == (77, 8)
    assert {one["process"] for one in ours.holders()} == {peer.process.pid}
    ours.garbage_collect("a", metadata, [])
    del inside
    pool.recall(60)
    with pytest.raises(vs.errors.DeadlineExceeded):
        pool.wait_returned(timeout=0.01)
    peer("del tensors; gc.collect()")
    pool.wait_returned()
    with pytest.raises(conftest.PeerRaised, match="FailedPrecondition the owner has freed"):
        peer("theirs.recv_multiple_tensors('a', metadata, None)")
    with pytest.raises(NotImplementedError):
        ours.send_multiple_tensors([], metadata, None)


def receive(peer, metadata):
    tensor_meta = [(shape, str(dtype)) for shape, dtype in metadata.tensor_meta]
    peer(f"metadata = ray_tensor_transport.Metadata({tensor_meta!r}, "
         f"{metadata.tensor_device!r}, {metadata.text!r}, {metadata.tickets!r})")
    peer("tensors = theirs.recv_multiple_tensors('a', metadata, None)")


def owner_of(pool_size):
    """In a peer: a transport that has sent 'a', and its metadata's plain parts."""
    import torch
    transport = ray_tensor_transport.PoolTransport(vs.Pool(host_node=0,
                                                           first_segment=pool_size))
    tensor = torch.from_dlpack(np.arange(6, dtype=np.int32))
    return transport, transport.extract_tensor_transport_metadata("a", [tensor])


def test_an_actor_dies(torch, driver, peer):
    peer("import ray_tensor_transport")
    peer("transport, metadata = test_seats.owner_of(8 << 20)")
    metadata = ray_tensor_transport.Metadata([((6,), None)], "cpu",
                                             *peer("(metadata.text, metadata.tickets)"))
    ours = ray_tensor_transport.PoolTransport(timeout=5)
    got, = ours.recv_multiple_tensors("a", metadata, ours.get_communicator_metadata(None, None))
    noticed = vs.on_recall(ours._remotes[metadata.text], print)  # Ends with its actor.
    peer.kill()
    assert array_of(got).tolist() == list(range(6))  # What was received stays.
    noticed.join(60)
    with pytest.raises(vs.errors.NotFound):
        ours.recv_multiple_tensors("a", metadata, None)
    assert ours._remotes == {} and array_of(got).tolist() == list(range(6))
    with pytest.raises(vs.errors.NotFound):
        ray_tensor_transport.PoolTransport().recv_multiple_tensors("a", metadata, None)
    with pytest.raises(vs.errors.FailedPrecondition, match="no pool"):
        ours.extract_tensor_transport_metadata("b", [got])


def test_a_receiver_dies(torch, pool, peer):
    ours = ray_tensor_transport.PoolTransport(pool)
    metadata = ours.extract_tensor_transport_metadata("a", [torch.from_dlpack(np.arange(5))])
    peer("import ray_tensor_transport; theirs = ray_tensor_transport.PoolTransport()")
    receive(peer, metadata)
    ours.garbage_collect("a", metadata, [])
    assert pool.statistics()["live_blocks"] == 0 and len(ours.holders()) == 1
    peer.kill()
    pool.wait_returned()


def test_objects_that_are_aborted_or_damaged(torch, pool):
    ours = ray_tensor_transport.PoolTransport(pool)
    theirs = ray_tensor_transport.PoolTransport()
    metadata = ours.extract_tensor_transport_metadata("a", [torch.from_dlpack(np.arange(5))])
    theirs.abort_transport("a", None)
    with pytest.raises(vs.errors.Cancelled):
        theirs.recv_multiple_tensors("a", metadata, None)
    got, = theirs.recv_multiple_tensors("a", metadata, None)
    assert array_of(got).tolist() == list(range(5))
    for tickets in (metadata.tickets[:-1], b"", metadata.tickets + b"x"):
        metadata.tickets, good = tickets, metadata.tickets
        with pytest.raises(vs.errors.InvalidArgument):
            theirs.recv_multiple_tensors("a", metadata, None)
        metadata.tickets = good
    metadata.tensor_meta = [((6,), None)]
    with pytest.raises(vs.errors.InvalidArgument, match="other shapes"):
        theirs.recv_multiple_tensors("a", metadata, None)
    ours.garbage_collect("a", metadata, [])


# --- torch_memory_saver

@pytest.fixture
def saver(cuda, monkeypatch):
    """Of a stand-in of PyTorch's memory; PyTorch itself would want a GPU."""
    modules = fake_torch.modules(fake_torch.HostTensor)
    modules["torch"].cuda = fake_torch_memory.Cuda(cuda)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vs._torch_memory, "_hooks", {})
    monkeypatch.delitem(sys.modules, "torch_memory_saver", raising=False)
    import torch_memory_saver
    made = torch_memory_saver.RegionMemorySaver()
    made.empty = modules["torch"].cuda.empty
    yield made
    for region in made._regions.values():
        region.close()


def free_memory(cuda):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def engine_of(saver):
    """What an engine has: weights, which are kept, and a cache, which is not."""
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = [saver.empty(3 << 20).fill_(n) for n in (1, 2)]
    with saver.region(tag="kv_cache"):
        cache = saver.empty(8 << 20).fill_(3)
    return weights, cache


def test_an_engine_pauses_and_resumes(saver, cuda):
    before = free_memory(cuda)
    weights, cache = engine_of(saver)
    addresses = [tensor.data_ptr() for tensor in (*weights, cache)]
    for _ in range(2):
        saver.pause()
        assert free_memory(cuda) == before
        saver.pause()  # It is paused.
        saver.pause("cuda_graph")  # Nothing has that tag.
        saver.resume("weights")  # As an engine does that gets new weights before its cache.
        assert free_memory(cuda) == before - (8 << 20)
        assert [tensor.bytes() for tensor in weights] == [b"\1" * (3 << 20), b"\2" * (3 << 20)]
        saver.resume()
        assert [tensor.data_ptr() for tensor in (*weights, cache)] == addresses
        assert cache.fill_(3).bytes() == b"\3" * (8 << 20)
    with saver.region("weights", True):  # More of the same.
        more = saver.empty(100).fill_(4)
    saver.pause("weights")
    with pytest.raises(vs.errors.FailedPrecondition, match="restore"):
        with saver.region("weights", True):
            raise AssertionError
    assert cache.bytes() == b"\3" * (8 << 20)
    saver.resume("weights")
    assert more.bytes() == b"\4" * 100
    del weights, cache, more


def test_a_device_without_room_leaves_all_paused(saver, cuda):
    weights, cache = engine_of(saver)
    saver.pause()
    with vs.Allocation(nbytes=free_memory(cuda) - (10 << 20)):
        with pytest.raises(vs.errors.ResourceExhausted):
            saver.resume()
        assert free_memory(cuda) == 10 << 20  # The weights would have had room.
    saver.resume()
    assert [tensor.bytes() for tensor in weights] == [b"\1" * (3 << 20), b"\2" * (3 << 20)]
    del weights, cache


def test_regions_that_are_in_use_are_not_paused(saver, cuda):
    weights, cache = engine_of(saver)
    before = free_memory(cuda)
    with saver.region("kv_cache"):
        with pytest.raises(vs.errors.FailedPrecondition, match="in use"):
            saver.pause()
        with pytest.raises(vs.errors.FailedPrecondition, match="outer"):
            with saver.region("weights", True):
                raise AssertionError
    assert free_memory(cuda) == before  # The weights were paused, and resumed.
    assert weights[1].bytes() == b"\2" * (3 << 20)
    del weights, cache


def test_what_is_not_backed_up_is_lost_only_when_all_else_went_well(saver, cuda):
    with saver.region("kv_cache"):
        cache = saver.empty(100).fill_(3)
    with saver.region("weights", True), pytest.raises(vs.errors.FailedPrecondition):
        saver.pause()
    assert cache.bytes() == b"\3" * 100
    del cache
