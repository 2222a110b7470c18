"""What docs/ shows in Python, run on the host-memory driver."""

import ctypes
import functools
import json
import os
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import textwrap
import threading
import types

import numpy as np

import fake_torch
import vmmshare as vs
import vmmshare.broker
import vmmshare.testing
import vmmshare.weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
import snippets  # noqa: E402

SNIPPETS = snippets.named(ROOT, "python")


class OnTheHost:
    """vmmshare, whose pools are of memory that NumPy can look at."""

    def __getattr__(self, name):
        return getattr(vs, name)

    @staticmethod
    def Pool(device=0, host_node=0):
        return vs.Pool(host_node=host_node)

    @staticmethod
    def RingHome(device):
        return vs.RingHome(host_node=0)


def run(name, **names):
    """Runs a snippet; what it had, by name."""
    one = SNIPPETS[name]
    text = one.text.replace("import vmmshare as vs\n", "\n")
    space = {"vs": OnTheHost(), "vmmshare": vmmshare, **names}
    exec(compile("\n" * (one.line - 1) + text, str(ROOT / one.page), "exec"), space)
    return space


def numpy_as_torch():
    """What the pages call of torch, on NumPy."""
    class Tensor(np.ndarray):
        def fill_(self, value):
            self[:] = value

    return types.SimpleNamespace(
        from_dlpack=lambda array: np.from_dlpack(array).view(Tensor),
        cuda=types.SimpleNamespace(synchronize=lambda: None))


def test_an_array_is_shared_and_opened(driver, capsys):
    ours = run("python.share")
    text, ticket = capsys.readouterr().out.split()
    np.from_dlpack(ours["array"])[:] = 3
    theirs = run("python.open", text=text, ticket=ticket, torch=numpy_as_torch())
    assert theirs["tensor"].shape == (1024, 1024) and (theirs["tensor"] == 3).all()


def test_a_tensor_is_sent_and_received(driver):
    torch = numpy_as_torch()
    ours = run("pytorch.send", torch=torch)
    theirs = run("pytorch.receive", torch=torch, message=ours["message"])
    assert (theirs["tensor"] == 1).all() and not theirs["tensor"].flags.writeable


def test_a_test_of_ones_own_runs(driver):
    for name in "python.conftest", "testing.pytest":
        # By itself, as in files of one's own: it has the names that it imports.
        space = {}
        exec(compile(SNIPPETS[name].text, SNIPPETS[name].page, "exec"), space)
        assert space["pytest_plugins"] == ["vmmshare.testing"]
        space["test_sharing"](driver)


def test_a_ring_brings_its_frames(cuda):
    streams = [ctypes.c_void_p() for _ in range(2)]  # One for each end.
    for stream in streams:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    got = []

    def use(array):
        got.append(int(np.from_dlpack(array)[0]))

    def fill(array, frame):
        # It is given no buffer, so as to wait() for it.
        assert cuda.cuStreamSynchronize(streams[0]) == 0
        np.from_dlpack(array)[:] = frame

    def read():
        assert cuda.cuCtxSetCurrent(cuda.context) == 0
        run("pipeline.reader", connection=theirs, stream=streams[1].value, use=use)

    reader = threading.Thread(target=read)
    reader.start()
    run("pipeline.writer", connection=ours, stream=streams[0].value, frames=20,
        fill=fill)["home"].close()
    reader.join(60)
    assert got == list(range(20))
    for stream in streams:
        assert cuda.cuStreamDestroy_v2(stream) == 0


def test_ranks_load_their_parts(keeper, tmp_path):
    header = json.dumps({"0.q_proj.weight": {"dtype": "U8", "shape": [4, 2],
                                             "data_offsets": [0, 8]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(8)))
    where = {"address": keeper.address, "host_node": 0}
    weights = types.SimpleNamespace(Shard=vs.weights.Shard,
                                    load=functools.partial(vs.weights.load, **where))
    model = types.SimpleNamespace(
        state_dict=lambda: {"0.o_proj.weight": np.arange(8).reshape(2, 4)})

    def part(rank, name):
        with vs.weights.open(f"llama/tp{rank}", address=keeper.address) as opened:
            return np.from_dlpack(opened[name]).tolist()

    for rank, loaded, put in ((0, [[0, 1], [2, 3]], [[0, 1], [4, 5]]),
                              (1, [[4, 5], [6, 7]], [[2, 3], [6, 7]])):
        seen = []  # When it is put, what was loaded is there.
        weights.put = lambda *words, **more: (
            seen.append(part(rank, "0.q_proj.weight")),
            vs.weights.put(*words, **more, **where))
        run("weights.ranks", vs=types.SimpleNamespace(weights=weights), files=[file], model=model,
            rank=rank, ranks=2)
        assert seen == [loaded] and part(rank, "0.o_proj.weight") == put


class Model:
    """As much of a module as the pages use; its parameters are what it was given."""

    def __init__(self, arrays):
        self.arrays = arrays

    def state_dict(self):
        return dict(self.arrays)

    def load_state_dict(self, arrays, assign):
        assert assign
        self.arrays = arrays


def test_a_model_is_made_where_it_will_be_read(keeper, monkeypatch):
    for name, module in fake_torch.modules(fake_torch.HostTensor).items():
        monkeypatch.setitem(sys.modules, name, module)

    def draft(like, **more):
        made = vs.weights.draft(like, host_node=0, **more)
        made.put = functools.partial(made.put, address=keeper.address)
        return made

    def fill(model):
        for tensor in model.arrays.values():
            tensor.array[...] = 5

    model = Model({"a": np.zeros((3, 2), "float32"), "b": np.zeros(4, "int16")})
    run("weights.draft", vs=types.SimpleNamespace(weights=types.SimpleNamespace(draft=draft)),
        model=model, fill=fill)
    with vs.weights.open("llama/tp0", address=keeper.address) as weights:
        assert weights.fingerprint == "sha256:..."
        assert all((np.from_dlpack(one) == 5).all() for one in weights.values())


def test_engines_follow_a_trainer(cuda):
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    model, seen, published = Model({"a": np.zeros((3, 2), "float32")}), [], []

    class Publisher(vs.weights.Publisher):
        def copy(self, arrays):
            slot = self.acquire(streams[0].value, timeout=60)
            assert cuda.cuStreamSynchronize(streams[0]) == 0
            np.from_dlpack(slot["a"])[...] = arrays["a"]
            return self.publish(streams[0].value)

    def publisher(like):
        made = vs.weights.publisher(like, host_node=0)
        made.__class__ = Publisher
        published.append(made)
        return made

    def train(model, batch):
        model.arrays["a"] += 1

    def use(weights, slot):
        followed[0].wait(timeout=60)
        values = set(np.from_dlpack(weights["a"]).ravel().tolist())
        assert values == {float(followed[0].number)} and slot == followed[0].number % 2
        seen.append(followed[0].number)

    followed = []

    def follow(connection):
        followed.append(vs.weights.follow(connection, timeout=60))
        return followed[0]

    def engine():
        assert cuda.cuCtxSetCurrent(cuda.context) == 0
        run("weights.follow",
            vs=types.SimpleNamespace(weights=types.SimpleNamespace(follow=follow)),
            connection=theirs, stream=streams[1].value, use=use)

    thread = threading.Thread(target=engine)
    thread.start()
    had = run("weights.publish",
              vs=types.SimpleNamespace(weights=types.SimpleNamespace(publisher=publisher)),
              connection=ours, model=model, data=range(9), train=train)
    assert had["number"] == 9 and had["lost"] == {}
    published[0].finish(timeout=60)
    thread.join(60)
    published[0].close()
    assert seen[-1] == 9 and seen == sorted(seen)
    for stream in streams:
        assert cuda.cuStreamDestroy_v2(stream) == 0


def test_memory_of_others_is_found_by_a_name(cuda, monkeypatch):
    folder = tempfile.mkdtemp(dir="/tmp")  # A socket's path is short.
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.delenv("NVIDIA_DRA_LOCAL_IPC_DIR", raising=False)
    with vs.Allocation(nbytes=1 << 21, host_node=0) as memory:
        np.from_dlpack(memory.array((8, 128), "float16"))[:] = 3
        had = run("weights.broker", ptr=memory.ptr, nbytes=memory.nbytes)
        assert (np.from_dlpack(had["array"]) == 3).all() and had["size"] == 1 << 21
        assert os.fstat(had["descriptor"]).st_size == 1 << 21
        os.close(had["descriptor"])
        had["handles"].close()
        had["published"].close()
    shutil.rmtree(folder)


def test_arrays_of_others_are_served(cuda):
    with vs.Allocation(nbytes=1 << 20) as memory:
        had = run("any_memory.any_memory", array=memory.array((64,), "float32"))
        assert had["theirs"].shape == (64,) and had["served"].weakness == ""
        had["theirs"].close()
        had["served"].close()


def test_an_importer_sleeps_and_wakes_with_the_owner(driver):
    connected = threading.Event()

    def connect(text):
        theirs = vs.connect_restorable(text)
        connected.set()
        return theirs

    def sleep(text):
        slept.append(run("sleep.importer", text=text, vs=types.SimpleNamespace(
            connect_restorable=connect, on_recall=vs.on_recall)))

    def restorable(nbytes):
        made = vs.restorable(nbytes=1 << 20, host_node=0)
        np.from_dlpack(made.array(8, "uint8"))[:] = 3
        importer.append(threading.Thread(target=sleep, args=(made.text,), daemon=True))
        importer[0].start()
        assert connected.wait(60)
        # Not for ever where nobody lets go.
        return types.SimpleNamespace(made=made, array=made.array, restore=made.restore,
                                     release=functools.partial(made.release, timeout=60))

    importer, slept = [], []
    had = run("sleep.owner", shape=(4, 4), vs=types.SimpleNamespace(restorable=restorable))
    importer[0].join(60)
    theirs = slept[0]["theirs"]  # Which restored it, or this is not there.
    assert slept[0]["asleep"].is_set() and not theirs.released
    assert (np.from_dlpack(theirs.array(8, "uint8")) == 3).all()
    theirs.close()
    had["array"].close()
    had["weights"].made.close()


def test_no_snippet_is_left_out():
    text = pathlib.Path(__file__).read_text()
    assert [name for name in SNIPPETS if f'"{name}"' not in text] == []
    assert textwrap.dedent(SNIPPETS["python.share"].text) == SNIPPETS["python.share"].text


def test_memory_for_network_cards_is_described_part_by_part(driver, capsys):
    had = run("sharing.dma_bufs")
    descriptor, address, nbytes = map(int, capsys.readouterr().out.split())
    assert descriptor >= 0 and nbytes == 64 << 20
    assert address == had["memory"].ptr
