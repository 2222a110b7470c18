"""Tensor sets: put, opened by other processes, replaced; safetensors files, good and bad."""

import collections.abc
import ctypes
import gc
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

import fake_torch
import vmmshare as vs
import vmmshare._names
import vmmshare._publisher
import vmmshare._reads
import vmmshare._sets
import vmmshare.weights

HOST = {"host_node": 0}


def arrays_of(seed):
    random = np.random.default_rng(seed)
    embed = random.standard_normal((100, 16)).astype(np.float16)
    return {
        "embed.weight": embed,
        "lm_head.weight": embed,  # Tied.
        "embed.rows": embed[10:20],
        "norm": random.standard_normal(16).astype(np.float32),
        "conv": np.asfortranarray(random.standard_normal((3, 4, 5)).astype(np.float32)),
        "columns": embed[:, ::2],
        "scale": np.array(float(seed)),
        "empty": np.zeros((0, 7), np.int64),
        "mask": np.arange(9) % 2 == 0,
    }


def expect(weights, seed):
    wanted = arrays_of(seed)
    assert set(weights) == set(wanted)
    for name, array in wanted.items():
        seen = np.from_dlpack(weights[name])
        assert seen.dtype == array.dtype and seen.shape == array.shape, name
        assert np.array_equal(seen, array), name


def put(keeper, seed, **more):
    return vs.weights.put("model/tp0", arrays_of(seed), address=keeper.address, **HOST, **more)


def opened(keeper, **more):
    return vs.weights.open("model/tp0", address=keeper.address, **more)


def test_a_dict_of_arrays_comes_back(keeper):
    assert put(keeper, 1, fingerprint="sha256:1", metadata={"step": "7"}) == 1
    with opened(keeper, fingerprint="sha256:1") as weights:
        expect(weights, 1)
        assert weights.generation == 1 and weights.metadata == {"step": "7"}
        assert weights.verify() == 6  # All that are no aliases.
        table = {row["name"]: row for row in weights.tensors()}
        assert table["lm_head.weight"]["alias_of"] == "embed.weight"
        assert table["embed.rows"]["alias_of"] == "embed.weight"
        assert table["columns"]["alias_of"] == "embed.weight"
        assert table["conv"]["strides"] == (1, 3, 12)  # As it lay.
        assert all(row["offset"] % 256 == 0 for row in table.values() if row["alias_of"] is None)
        # Without a copy, and read-only.
        embed, tied = (np.from_dlpack(weights[name]) for name in ("embed.weight", "lm_head.weight"))
        assert embed.ctypes.data == tied.ctypes.data
        with pytest.raises(ValueError):
            embed[0] = 1
    assert np.array_equal(embed, arrays_of(1)["embed.weight"])  # It keeps the memory.


def test_an_array_that_is_not_dense_is_copied(keeper):
    array = np.arange(24).reshape(4, 6)
    sets = {"columns": array[:, ::2], "back": array[::-1].copy()[:, 1:3], "one": array[1:2, 2:3]}
    vs.weights.put("loose", sets, address=keeper.address, **HOST)
    with vs.weights.open("loose", address=keeper.address) as weights:
        for name, wanted in sets.items():
            assert np.array_equal(np.from_dlpack(weights[name]), wanted), name
        assert all(row["alias_of"] is None for row in weights.tensors())
        # Without the gaps between its elements.
        assert {row["name"]: row["nbytes"] for row in weights.tensors()} == {
            name: array.nbytes for name, array in sets.items()}


def test_arrays_that_go_backwards_are_copied(keeper):
    array = np.arange(24).reshape(4, 6)
    sets = {"back": array[::-1], "tied": array[::-1], "both": array[::-1, ::-2],
            "one": array[:1][::-1], "none": array[:0][::-1], "whole": array}
    vs.weights.put("back", sets, address=keeper.address, **HOST)
    with vs.weights.open("back", address=keeper.address) as weights:
        for name, wanted in sets.items():
            assert np.array_equal(np.from_dlpack(weights[name]), wanted), name
        assert {row["name"]: row["alias_of"] for row in weights.tensors() if row["alias_of"]} == {
            "tied": "back", "one": "whole"}
    cut = {"back": array[::-1], "both": array[::-1, ::-1]}
    for rank in range(2):
        shard = vs.weights.Shard(rank, 2, {"back": 1, "both": vs.weights.Fused(1, (2, 4))})
        vs.weights.put("cut", cut, shard=shard, address=keeper.address, **HOST)
        with vs.weights.open("cut", address=keeper.address) as weights:
            seen = {name: np.from_dlpack(weights[name]) for name in cut}
            assert np.array_equal(seen["back"], np.split(cut["back"], 2, axis=1)[rank])
            columns = [rank, 2 + 2 * rank, 3 + 2 * rank]
            assert np.array_equal(seen["both"], cut["both"][:, columns])


def test_a_draft_is_like_arrays_that_go_backwards(driver):
    array = np.ones((4, 6), "float32")
    like = {"back": array[::-1], "tied": array[::-1], "both": array[::-1, ::-2], "whole": array}
    with vs.weights.draft(like, **HOST) as draft:
        assert {name: one.shape for name, one in draft.items()} == {
            name: one.shape for name, one in like.items()}
        views = {name: np.from_dlpack(one) for name, one in draft.items()}
        assert all(one.dtype == "float32" and one.flags.c_contiguous for one in views.values())
        # As put() has them.
        assert views["tied"].ctypes.data == views["back"].ctypes.data
        assert len({one.ctypes.data for one in views.values()}) == 3
    with pytest.raises(TypeError, match="'a'"):
        vs.weights.draft({"a": array.astype(">f4")[::-1]}, **HOST)


def test_an_array_of_no_known_library_that_is_not_dense(keeper):
    with vs.Allocation(nbytes=1 << 20, **HOST) as memory:
        np.from_dlpack(memory.array(24, "int32"))[...] = range(24)
        gaps = memory._strided((4, 3), (6, 2), "int32", 0)
        vs.weights.put("gaps", {"a": gaps}, address=keeper.address, **HOST)
    with vs.weights.open("gaps", address=keeper.address) as weights:
        assert np.from_dlpack(weights["a"]).tolist() == np.arange(24).reshape(4, 6)[:, ::2].tolist()
    with vs.Allocation(nbytes=1 << 20) as memory:  # Of a device: NumPy cannot look at it.
        gaps = memory._strided((4, 3), (6, 2), "int32", 0)
        with pytest.raises(ValueError, match="'a' do not lie side by side.*ascontiguousarray"):
            vs.weights.put("gaps", {"a": gaps}, address=keeper.address, **HOST)


def test_a_tensor_without_elements_has_any_lengths_beside():
    reads = vs._core._Reads(None)
    reads.say("none", 1, 0, "float32", (1 << 40, 1 << 40, 0), (0, 1 << 40, 1))
    assert vs._reads.Read(*reads.rows()[0], reads).nbytes == 0


def test_a_new_set_replaces_the_old_one_and_readers_keep_it(keeper):
    put(keeper, 1)
    with opened(keeper) as old:
        assert put(keeper, 2) == 2
        with opened(keeper) as new:
            expect(old, 1)
            expect(new, 2)
            assert (old.generation, new.generation) == (1, 2)
    entry, = vs.weights.list(address=keeper.address)
    assert (entry["name"], entry["generation"], entry["count"]) == ("model/tp0", 2, 9)


def test_it_outlives_the_process_that_put_it(keeper, peer):
    peer("import vmmshare.weights")
    peer(f"vs.weights.put('model/tp0', {{'a': np.arange(1000)}}, host_node=0, "
         f"address={keeper.address!r})")
    peer.kill()
    with opened(keeper) as weights:
        assert np.array_equal(np.from_dlpack(weights["a"]), np.arange(1000))


def test_many_tensors(keeper):
    count = 5000
    tensors = {f"layers.{i}.weight": np.full(8, i, np.int32) for i in range(count)}
    vs.weights.put("many", tensors, address=keeper.address, **HOST)
    with vs.weights.open("many", address=keeper.address) as weights:
        assert len(weights) == count
        assert all(np.from_dlpack(weights[f"layers.{i}.weight"])[7] == i
                   for i in range(0, count, 97))


def test_what_is_no_set_is_refused(keeper):
    with pytest.raises(vs.errors.NotFound):
        opened(keeper)
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        vs.keeper.put("model/tp0", memory, address=keeper.address, seal=True)
    with pytest.raises(vs.errors.FailedPrecondition, match="no sealed tensor set"):
        opened(keeper)
    with pytest.raises(vs.errors.FailedPrecondition, match="no sealed tensor set"):
        put(keeper, 1)
    assert vs.weights.list(address=keeper.address) == []
    vs.weights.drop("model/tp0", address=keeper.address)
    put(keeper, 1)
    with pytest.raises(vs.errors.FailedPrecondition, match="'' *; expected 'b'"):
        opened(keeper, fingerprint="b")


def test_what_is_no_tensor_is_refused_and_changes_nothing(keeper):
    put(keeper, 1)
    for bad, error in (({"a": 1}, TypeError), ({1: np.zeros(1)}, TypeError), ([], TypeError),
                       ({"": np.zeros(1)}, vs.errors.InvalidArgument),
                       ({"a\n": np.zeros(1)}, vs.errors.InvalidArgument),
                       ({"a\0": np.zeros(1)}, vs.errors.InvalidArgument),
                       ({"a": np.zeros(1, "M8[s]")}, (TypeError, BufferError)),
                       ({"x" * 600: np.zeros(1)}, vs.errors.InvalidArgument)):
        with pytest.raises(error):
            vs.weights.put("model/tp0", bad, address=keeper.address, **HOST)
    with opened(keeper) as weights:
        expect(weights, 1)
        assert weights.generation == 1
        with pytest.raises(KeyError):
            weights["other"]


class Raises:
    """An array whose library refuses to share it."""

    def __init__(self, error):
        self.error = error

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise self.error


def interface(**has):
    return types.SimpleNamespace(__cuda_array_interface__=has)


class OfTheLibrary(ValueError):
    pass


@pytest.mark.parametrize("take", [
    lambda arrays, address: vs.weights.put("y", arrays, address=address, **HOST),
    lambda arrays, address: vs.share_all(arrays)], ids=["put", "share_all"])
@pytest.mark.parametrize("array, error, says, why", [
    (np.ones(3, ">f4"), BufferError, "DLPack only supports native byte order", BufferError),
    (Raises(BufferError("why")), BufferError, "why$", BufferError),
    (Raises(ValueError("%s 100%")), ValueError, "%s 100%$", ValueError),
    (Raises(TypeError("why")), TypeError, "why$", TypeError),
    (interface(), KeyError, "'typestr'", KeyError),
    (interface(typestr="<f4", shape=(1.5,)), TypeError, "'float' object", TypeError),
    (interface(typestr=3), TypeError, "another type than expected", type(None)),
    (interface(typestr="<f4", shape=(1,), data=(-1, False)), TypeError, "out of range", type(None))],
    ids=["byte order", "buffer", "value", "type", "no typestr", "shape", "typestr", "data"])
def test_an_array_that_its_library_does_not_share_is_named(keeper, take, array, error, says, why):
    with pytest.raises(error, match=f"array 'layer.1.w': .*{says}") as raised:
        take({"layer.1.w": array}, keeper.address)
    assert type(raised.value) is error and type(raised.value.__cause__) is why


@pytest.mark.parametrize("error", [OfTheLibrary("why"), RuntimeError("why"), MemoryError("why")],
                         ids=repr)
def test_an_error_of_the_librarys_own_type_passes_as_it_is(driver, error):
    with pytest.raises(type(error)) as raised:
        vs.share_all({"layer.1.w": Raises(error)})
    assert raised.value is error


def test_verify_finds_what_was_written_afterwards(keeper):
    put(keeper, 1)
    with vs.keeper.attach("model/tp0", address=keeper.address) as memory:
        # The keeper's own descriptor is whole access: the maker's mapping, in effect.
        with opened(keeper) as weights:
            offset = {row["name"]: row for row in weights.tensors()}["norm"]["offset"]
        assert memory.readonly and offset % 256 == 0
    assert vs.weights.verify("model/tp0", address=keeper.address) == 6


def test_a_closed_set_says_so(keeper):
    put(keeper, 1)
    weights = opened(keeper)
    assert "9 tensors" in repr(weights)
    weights.close()
    assert "closed" in repr(weights)
    with pytest.raises(vs.errors.FailedPrecondition):
        weights.verify()


def test_readers_see_whole_generations_while_writers_replace(keeper):
    put(keeper, 0)
    stop, seen, failed = threading.Event(), set(), []

    def read():
        last = 0
        while not stop.is_set():
            with opened(keeper) as weights:
                seed = int(np.from_dlpack(weights["scale"]))
                if weights.generation < last or weights.verify() != 6:
                    failed.append(weights.generation)
                last = weights.generation
                seen.add(seed)
                expect(weights, seed)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for seed in range(1, 6):
        assert put(keeper, seed) == seed + 1
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed and len(seen) > 1


# --- safetensors

TYPES = {"BOOL": np.bool_, "I64": np.int64, "F32": np.float32, "F16": np.float16}


def safetensors(path, tensors, metadata=None, header=None, length=None, tail=b""):
    said, data = {}, b""
    if metadata is not None:
        said["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        said[name] = {"dtype": dtype, "shape": list(array.shape),
                      "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(said).encode() if header is None else header
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data
                     + tail)
    return path


def some(seed=1):
    random = np.random.default_rng(seed)
    return {"a": ("F32", random.standard_normal((300, 7)).astype(np.float32)),
            "b.c": ("F16", random.standard_normal(11).astype(np.float16)),
            "none": ("I64", np.zeros((0, 3), np.int64)),
            "one": ("BOOL", np.array(True))}


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_files_are_read_into_shared_memory(keeper, tmp_path, threads):
    first = safetensors(tmp_path / "1.safetensors", some(), {"format": "pt"})
    second = safetensors(tmp_path / "2.safetensors",
                         {"bf": ("BF16", np.arange(10, dtype=np.uint16)),
                          "f8": ("F8_E4M3", np.arange(10, dtype=np.uint8)),
                          "scale": ("F8_E8M0", np.arange(10, dtype=np.uint8))})
    told = []
    for paths in (tmp_path, [first, second]):
        generation = vs.weights.load("files", paths, threads=threads, address=keeper.address,
                                     progress=lambda *what: told.append(what), **HOST)
    assert generation == 2
    total = 300 * 7 * 4 + 11 * 2 + 1 + 20 + 10 + 10
    assert told[-1] == (total, total) and told.count(told[-1]) == 2
    with vs.weights.open("files", address=keeper.address) as weights:
        for name, (_, wanted) in some().items():
            assert np.array_equal(np.from_dlpack(weights[name]), wanted), name
        assert [row["dtype"] for row in weights.tensors()][-3:] == [
            "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"]
        assert np.array_equal(np.from_dlpack(weights["bf"].view(10, "uint16")), np.arange(10))
        assert weights.metadata == {"format": "pt"}
        assert weights.verify() == 7


def test_some_of_a_files_tensors(keeper, tmp_path):
    path = safetensors(tmp_path / "1.safetensors", some())
    vs.weights.load("files", path, select=lambda name: name.startswith("b"),
                    address=keeper.address, **HOST)
    with vs.weights.open("files", address=keeper.address) as weights:
        assert list(weights) == ["b.c"]


def test_a_selection_of_nothing_replaces_nothing(keeper, tmp_path):
    """As a prefix with a slip of the pen takes."""
    files = [safetensors(tmp_path / f"{one}.safetensors", ones(one)) for one in ("q", "v")]
    vs.weights.load("files", files, address=keeper.address, **HOST)
    for paths in (files, tmp_path, files[0]):
        with pytest.raises(ValueError, match="`select` takes none of the [12] tensors in .*'q'"):
            vs.weights.load("files", paths, select=lambda name: name == "qq",
                            address=keeper.address, **HOST)
    with vs.weights.open("files", address=keeper.address) as weights:
        assert list(weights) == ["q", "v"] and weights.generation == 1


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets,
                             **more}}).encode()


@pytest.mark.parametrize("what, how", {
    "length past the end": {"length": 1 << 20, "says": "and the file has"},
    "length of 2^63": {"length": 1 << 63, "says": "and the file has"},
    "length of 2^64-1": {"length": (1 << 64) - 1, "says": "and the file has"},
    "length 0": {"length": 0},
    "length cut": {"length": 20},
    "a byte behind the data": {"tail": b"x"},
    "no JSON": {"header": b"{" * 10},
    "deep JSON": {"header": b"[" * 200_000},
    "no object": {"header": b"[1]"},
    "no UTF-8": {"header": b'{"\xff": 1}'},
    "names twice": {"header": entry()[:-1] + b", " + entry()[1:], "tail": bytes(4)},
    "no shape": {"header": b'{"a": {"dtype": "F32", "data_offsets": [0, 4]}}'},
    "one word more": {"header": entry(more=1)},
    "shape below 0": {"header": entry(shape=(-1,), offsets=(0, 0))},
    "shape that overflows": {"header": entry(shape=(2**32, 2**32), offsets=(0, 0)),
                             "says": "than fit 63 bits"},
    "shape of 2^64": {"header": entry(shape=(2**64,), offsets=(0, 0))},
    "shape of text": {"header": entry(shape="1")},
    "many dimensions": {"header": entry(shape=(2**62,) * 100_000),
                        "says": "more than 32 dimensions"},
    "shape of true": {"header": entry(shape=(True,))},
    "another size": {"header": entry(shape=(2,)), "says": "expected 8"},
    "offsets outside": {"header": entry(offsets=(4, 8)), "says": "4 bytes of data"},
    "two in the same bytes": {"header": entry()[:-1] + b", " + entry()[1:].replace(b"a", b"b", 1),
                              "tail": bytes(8), "says": "the one before it ends at 4"},
    "a gap": {"header": entry(offsets=(4, 8)), "tail": bytes(8), "says": "begins at 4"},
    "offsets backwards": {"header": entry(offsets=(4, 0))},
    "one offset": {"header": entry(offsets=(4,))},
    "offset below 0": {"header": entry(offsets=(-4, 0))},
    "metadata of numbers": {"header": b'{"__metadata__": {"a": 1}}'},
}.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_damaged_file_is_refused_before_anything_is_made(keeper, tmp_path, monkeypatch,
                                                           what, how):
    how = dict(how)
    says = how.pop("says", "")
    # With a header of its own the file has only the data that it should.
    path = safetensors(tmp_path / "x.safetensors", {} if "header" in how else some(),
                       **({"tail": bytes(4), **how} if "header" in how else how))
    monkeypatch.setattr(vs.weights, "Allocation", None)
    with pytest.raises(vs.errors.InvalidArgument, match=f"x.safetensors.*{says}"):
        vs.weights.load("files", path, address=keeper.address, **HOST)


def test_a_good_header_of_ones_own_is_taken(keeper, tmp_path):
    # Or the ones above were refused for want of data.
    path = safetensors(tmp_path / "x.safetensors", {}, header=entry(), tail=bytes(4))
    assert vs.weights.load("files", path, address=keeper.address, **HOST) == 1


@pytest.mark.parametrize("metadata", [{"schlüssel": "x"}, {"": "x"}, {"k" * 513: "x"}],
                         ids=["other", "empty", "long"])
def test_a_file_whose_metadata_no_set_has_is_named_before_anything_is_made(keeper, tmp_path,
                                                                           monkeypatch, metadata):
    good = safetensors(tmp_path / "1.safetensors", {}, {"format": "pt"})
    bad = safetensors(tmp_path / "2.safetensors", {"a": ("F32", np.zeros(2, np.float32))}, metadata)
    monkeypatch.setattr(vs.weights, "Allocation", None)
    with pytest.raises(vs.errors.InvalidArgument,
                       match=r"2\.safetensors: metadata .*a key of 1 to 512 of printable ASCII"):
        vs.weights.load("files", [good, bad], address=keeper.address, **HOST)


@pytest.mark.parametrize("shard", [None, vs.weights.Shard(0, 1, {})], ids=["whole", "a part"])
def test_a_file_with_a_name_that_no_set_has_is_named(keeper, tmp_path, shard):
    files = [safetensors(tmp_path / f"{i}.safetensors", {name: ("F32", np.zeros(2, np.float32))})
             for i, name in enumerate(("a", "größe"))]
    with pytest.raises(vs.errors.InvalidArgument,
                       match=r"1\.safetensors: a tensor's name .*printable ASCII"):
        vs.weights.load("files", files, shard=shard, address=keeper.address, **HOST)


def test_what_metadata_a_load_keeps(keeper, tmp_path):
    files = [safetensors(tmp_path / f"{i}.safetensors", {}, {"both": f"{i}", f"own {i}": "x"})
             for i in range(2)]
    vs.weights.load("files", files, metadata={"own 0": "given"}, address=keeper.address, **HOST)
    with vs.weights.open("files", address=keeper.address) as weights:
        assert weights.metadata == {"both": "1", "own 0": "given", "own 1": "x"}


def test_other_files_that_cannot_be_loaded(keeper, tmp_path):
    def load(paths):
        return vs.weights.load("files", paths, address=keeper.address, **HOST)

    path = safetensors(tmp_path / "x.safetensors", {}, header=entry("F4"), tail=bytes(4))
    with pytest.raises(vs.errors.Unimplemented, match="F4"):
        load(path)
    with pytest.raises(vs.errors.NotFound):
        load(tmp_path / "missing")
    (tmp_path / "short").write_bytes(b"1234567")
    with pytest.raises(vs.errors.InvalidArgument):
        load(tmp_path / "short")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(vs.errors.InvalidArgument, match="no safetensors file"):
        load([tmp_path / "fifo"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError):
        load(tmp_path / "empty")
    with pytest.raises(vs.errors.AlreadyExists, match="'a'"):
        load([safetensors(tmp_path / f"{i}.safetensors", some()) for i in range(2)])


def index(folder, assigned, name="model.safetensors.index.json"):
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": assigned}))
    return path


def ones(*names):
    return {name: ("F32", np.full(3, number, np.float32)) for number, name in enumerate(names)}


def test_a_folder_is_what_its_index_says(keeper, tmp_path):
    # As PyTorch's libraries save a model, with the same weights in one file beside it, and with a
    # file that has more than its part, of which the index says that it is elsewhere.
    safetensors(tmp_path / "model-1.safetensors", ones("a", "b", "c"))
    safetensors(tmp_path / "model-2.safetensors", ones("c", "d", "e"))
    safetensors(tmp_path / "consolidated.safetensors", ones("a", "layers.0"))
    assigned = {"a": "model-1.safetensors", "b": "model-1.safetensors",
                "c": "model-2.safetensors", "e": "model-2.safetensors"}
    written = index(tmp_path, assigned)
    index(tmp_path, {"layers.0": "consolidated.safetensors"}, "consolidated.safetensors.index.json")
    for paths in (tmp_path, str(tmp_path), written, os.fsencode(written)):
        vs.weights.load("indexed", paths, address=keeper.address, **HOST)
        with vs.weights.open("indexed", address=keeper.address) as weights:
            values = {name: np.from_dlpack(weights[name])[0] for name in weights}
            assert values == {"a": 0, "b": 1, "c": 0, "e": 2}
    vs.weights.load("indexed", tmp_path, select=lambda name: name in "cd", address=keeper.address,
                    **HOST)
    with vs.weights.open("indexed", address=keeper.address) as weights:
        assert list(weights) == ["c"]


def test_a_folder_of_which_a_file_is_missing_is_refused(keeper, tmp_path, monkeypatch):
    safetensors(tmp_path / "1.safetensors", ones("a"))
    index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"}, "other.safetensors.index.json")
    monkeypatch.setattr(vs.weights, "Allocation", None)
    with pytest.raises(vs.errors.NotFound, match="2.safetensors"):
        vs.weights.load("files", tmp_path, address=keeper.address, **HOST)
    safetensors(tmp_path / "2.safetensors", ones("c"))
    with pytest.raises(vs.errors.InvalidArgument, match="2.safetensors has no tensor 'b'"):
        vs.weights.load("files", tmp_path, address=keeper.address, **HOST)
    with pytest.raises(ValueError, match="`select` takes none of the tensors in the index"):
        vs.weights.load("files", tmp_path, select=lambda name: False, address=keeper.address, **HOST)


def test_of_files_of_which_nothing_is_selected_none_need_be_there(keeper, tmp_path):
    """As where a rank fetched only those with its layers."""
    safetensors(tmp_path / "1.safetensors", ones("a"))
    index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    vs.weights.load("files", tmp_path, select=lambda name: name == "a", address=keeper.address, **HOST)
    with vs.weights.open("files", address=keeper.address) as weights:
        assert list(weights) == ["a"]


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}',
    '{"weight_map": {"a": "../1.safetensors"}}', '{"weight_map": {"a": "/1.safetensors"}}',
    '{"weight_map": {"a": "1.bin"}}', '{"weight_map": {"a": ""}}',
    '{"weight_map": {"a": "\\ud800.safetensors"}}', "[" * 200_000, "\xff",
    '{"weight_map": {"a": "1\\u0000.safetensors"}}',
    '{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}'],
    ids=lambda text: text[:40] or "nothing")
def test_an_index_that_is_none_is_named(keeper, tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(vs.errors.InvalidArgument, match="model.safetensors.index.json: no index"):
        vs.weights.load("files", tmp_path, address=keeper.address, **HOST)


def test_an_index_that_cannot_be_read_says_why(keeper, tmp_path):
    path = tmp_path / "model.safetensors.index.json"

    def load():
        vs.weights.load("files", tmp_path, address=keeper.address, **HOST)

    os.mkfifo(path)
    with pytest.raises(vs.errors.InvalidArgument, match="is no file"):
        load()
    path.unlink()
    with open(path, "wb") as large:
        large.truncate(100_000_001)
    with pytest.raises(vs.errors.InvalidArgument, match="100000001 bytes"):
        load()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(vs.errors.NotFound, match="index.json cannot be read"):
        load()


def test_which_index_of_several_is_the_callers_word(keeper, tmp_path):
    safetensors(tmp_path / "1.safetensors", ones("a"))
    paths = [index(tmp_path, {"a": "1.safetensors"}, f"{name}.safetensors.index.json")
             for name in ("x", "y")]
    with pytest.raises(ValueError, match="several indexes.* x.safetensors.index.json, y.safet"):
        vs.weights.load("files", tmp_path, address=keeper.address, **HOST)
    assert vs.weights.load("files", paths[1], address=keeper.address, **HOST) == 1
    with pytest.raises(vs.errors.NotFound, match="z.safetensors.index.json cannot be read"):
        vs.weights.load("files", tmp_path / "z.safetensors.index.json", address=keeper.address,
                        **HOST)


def cut_after_the_header(monkeypatch, path, nbytes):
    """The file is cut to so many bytes once its own header was read."""
    read_header = vs.weights.read_header

    def cut(one):
        known = read_header(one)
        if os.path.samefile(one, path):
            os.truncate(path, nbytes)
        return known

    monkeypatch.setattr(vs.weights, "read_header", cut)


def test_a_file_that_is_cut_while_it_is_read(keeper, tmp_path, monkeypatch):
    put(keeper, 1)
    path = safetensors(tmp_path / "x.safetensors", some())
    cut_after_the_header(monkeypatch, path, 100)
    with pytest.raises(vs.errors.DataLoss, match="ends within tensor"):
        vs.weights.load("model/tp0", path, address=keeper.address, **HOST)
    with opened(keeper) as weights:
        expect(weights, 1)


@pytest.mark.parametrize("name", [b"caf\xe9", "caf\xe9".encode()])
def test_names_of_files_as_the_system_has_them(keeper, tmp_path, name):
    """Also those that are no UTF-8."""
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    file = os.path.join(folder, name + b".safetensors")
    wanted = some(3)
    safetensors(pathlib.Path(os.fsdecode(file)), wanted)
    shown = name.decode(errors="backslashreplace")
    for paths in (file, [file], os.fsdecode(file), pathlib.Path(os.fsdecode(file)), folder,
                  [os.fsdecode(file)], os.fsdecode(folder)):
        vs.weights.load("named", paths, address=keeper.address, **HOST)
        with vs.weights.open("named", address=keeper.address) as weights:
            assert set(weights) == set(wanted)
    with pytest.raises(vs.errors.AlreadyExists, match=re.escape(shown)):
        vs.weights.load("named", [file, file], address=keeper.address, **HOST)
    with pytest.raises(vs.errors.NotFound, match=re.escape(shown)):
        vs.weights.load("named", file + b".gone", address=keeper.address, **HOST)


def several(folder, files=4, each=50):
    """Files of tensors of several sizes, side by side and not; and what they are."""
    random, whole = np.random.default_rng(9), {}
    for file in range(files):
        tensors = {f"{file}.{i}": random.integers(0, 255, (64 + i % 3 * 7) * (1 + i // 10 * 9),
                                                  np.uint8) for i in range(each)}
        model_file(folder, f"{file}.safetensors", tensors)
        whole.update(tensors)
    return whole


@pytest.mark.parametrize("where", [HOST, {}], ids=["host", "device"])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_progress_goes_up_to_the_total(keeper, tmp_path, threads, where):
    whole, told = several(tmp_path), []
    assert vs.weights.load("files", tmp_path, threads=threads, address=keeper.address,
                           progress=lambda *what: told.append((*what, threading.get_ident())),
                           **where) == 1
    total = sum(array.nbytes for array in whole.values())
    done = [one[0] for one in told]
    assert done == sorted(set(done)) and done[-1] == total
    assert {one[1:] for one in told} == {(total, threading.get_ident())}
    with vs.weights.open("files", address=keeper.address) as weights:
        assert list(weights) == list(whole) and weights.verify() == len(whole)
        if where is HOST:
            for name, array in whole.items():
                assert np.array_equal(np.from_dlpack(weights[name]), array), name


def running_threads():
    return len(os.listdir("/proc/self/task"))


def test_progress_within_a_tensor(keeper, tmp_path):
    """And what it raises there ends the load before the tensor is read."""
    def tell(done, total):
        if 0 < done < total:
            raise LookupError("enough")

    nbytes, path = 1 << 30, tmp_path / "big.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}})
    with open(path, "wb") as file:  # A hole, which takes no disk.
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(file.tell() + nbytes)
    with pytest.raises(LookupError):
        vs.weights.load("big", path, threads=1, progress=tell, address=keeper.address, **HOST)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_file_of_several_that_is_cut_in_the_middle(keeper, tmp_path, monkeypatch, threads):
    put(keeper, 1)
    several(tmp_path)
    path = tmp_path / "2.safetensors"
    cut_after_the_header(monkeypatch, path, os.path.getsize(path) - 10_000)
    before = running_threads()
    with pytest.raises(vs.errors.DataLoss, match=r'2.safetensors ends within tensor "2\.\d+"'):
        vs.weights.load("model/tp0", tmp_path, threads=threads, address=keeper.address, **HOST)
    assert running_threads() <= before
    with opened(keeper) as weights:
        expect(weights, 1)
        assert weights.generation == 1


def press_ctrl_c(done, total):
    signal.raise_signal(signal.SIGINT)


def fail(done, total):
    raise LookupError("enough")


@pytest.mark.parametrize("progress, error", [(fail, LookupError), (press_ctrl_c, KeyboardInterrupt)])
def test_what_progress_raises_ends_the_load(keeper, tmp_path, monkeypatch, progress, error):
    put(keeper, 1)
    several(tmp_path)
    before = running_threads()
    with pytest.raises(error):
        vs.weights.load("model/tp0", tmp_path, threads=3, progress=progress,
                        address=keeper.address, **HOST)
    assert running_threads() <= before
    with opened(keeper) as weights:
        expect(weights, 1)
    monkeypatch.setattr(vs.weights, "Allocation", None)  # Before anything is made.
    for threads in (-1, 0, 2**32):
        with pytest.raises(ValueError, match=f"{threads} threads; expected 1 to"):
            vs.weights.load("model/tp0", tmp_path, threads=threads, address=keeper.address, **HOST)


def free_memory(cuda):
    gc.collect()  # Of tests before.
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def test_what_failed_keeps_no_memory_while_its_exception_is_handled(keeper, cuda, tmp_path,
                                                                    monkeypatch):
    several(tmp_path)
    state, before = {"a": np.zeros(1000, np.float32)}, free_memory(cuda)

    def refused(*_):
        assert free_memory(cuda) < before
        raise LookupError("enough")

    def first_of_two(*given):
        monkeypatch.setattr(vmmshare._sets, "Draft", refused)
        return vs.weights.Draft(*given)

    monkeypatch.setattr(vmmshare._sets, "Draft", first_of_two)
    monkeypatch.setattr(vmmshare.weights, "put_written", refused)
    for call in (lambda: vs.weights.publisher(state), lambda: vs.weights.draft(state),
                 lambda: vs.weights.load("a", tmp_path, address=keeper.address, progress=refused),
                 lambda: vs.weights.put("a", state, address=keeper.address)):
        try:
            call()
        except LookupError:
            assert free_memory(cuda) >= before
        else:
            pytest.fail("it did not fail")


@pytest.mark.parametrize("what", ["serve", "RingHome", "FencePool", "Marks", "arrays"])
def test_a_publisher_that_cannot_be_made_keeps_no_memory(cuda, monkeypatch, what):
    state, before = {"a": np.zeros(1000, np.float32)}, free_memory(cuda)

    def refused(*_, **__):
        assert free_memory(cuda) < before
        raise LookupError("enough")

    def first_of_two(*given):
        monkeypatch.setattr(vmmshare._publisher, "serve", refused)
        return vs.serve(*given)

    class Writer:
        """Whose arrays cannot be had. It keeps the memory until it is closed."""

        def __init__(self, *given):
            self.real, self.arrays = made_writer(*given), refused
            self.close = self.real.close

    made_writer = vs._core._WeightsWriter
    if what == "arrays":
        monkeypatch.setattr(vs._core, "_WeightsWriter", Writer)
    else:
        monkeypatch.setattr(vmmshare._publisher, what, first_of_two if what == "serve" else refused)
    try:
        vs.weights.publisher(state)
    except LookupError:
        assert free_memory(cuda) >= before
    else:
        pytest.fail("it did not fail")


def test_an_open_that_failed_keeps_nothing_while_its_exception_is_handled(keeper, monkeypatch):
    attached, opened_sets = [], []

    class NotingKeeper(vs.Keeper):
        def attach(self, *args, **more):
            attached.append(super().attach(*args, **more))
            return attached[-1]

    class NotingSet(vs.weights.TensorSet):
        def __init__(self, *args):
            super().__init__(*args)
            opened_sets.append(self)

    put(keeper, 1)
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        vs.keeper.put("none", memory, address=keeper.address, seal=True)
    monkeypatch.setattr(vmmshare.weights, "Keeper", NotingKeeper)
    monkeypatch.setattr(vmmshare.weights, "TensorSet", NotingSet)
    for name, fingerprint in (("model/tp0", "b"), ("none", None)):
        try:
            vs.weights.open(name, fingerprint=fingerprint, address=keeper.address)
        except vs.errors.FailedPrecondition:
            assert attached[-1].closed
        else:
            pytest.fail("it did not fail")
    assert [repr(one) for one in opened_sets] == [
        "<vmmshare.weights.TensorSet 'model/tp0', closed>"]
    assert len(attached) == 2


def test_a_set_that_the_device_has_no_room_for_changes_nothing(keeper, tmp_path):
    put(keeper, 1)
    path, size = tmp_path / "x.safetensors", 1 << 42  # A file with a hole.
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    os.truncate(path, 8 + len(header) + size)
    with pytest.raises(vs.errors.ResourceExhausted):
        vs.weights.load("model/tp0", path, address=keeper.address)
    with opened(keeper) as weights:
        expect(weights, 1)
        assert weights.generation == 1


def test_many_bad_headers(tmp_path):
    """Bytes of a good file, changed one at a time: a header or a typed error."""
    good = safetensors(tmp_path / "good", some(), {"format": "pt"}).read_bytes()
    path, refused = tmp_path / "bad", 0
    for at in range(len(good) - 300 * 7 * 4):
        for byte in (0, 0x22, 0x7b, 0xff, good[at] ^ 1):
            path.write_bytes(good[:at] + bytes([byte]) + good[at + 1:])
            try:
                entries = vs.weights.read_header(str(path)).entries()
            except (vs.errors.InvalidArgument, vs.errors.Unimplemented):
                refused += 1
                continue
            assert all(offset >= 0 and offset + nbytes <= len(good)
                       for *_, offset, nbytes in entries)
    assert refused > 500


# --- a keeper that is not there, and names that no set can have

@pytest.fixture
def nothing_is_done(monkeypatch):
    """put() and load() fail otherwise when they read, allocate or wait."""
    def done(*_, **__):
        pytest.fail("work was done before the keeper and the name were looked at")

    for step in ("Allocation", "await_fences", "read_arrays", "read_header"):
        monkeypatch.setattr(vs.weights, step, done)
    return done


def test_without_a_keeper_nothing_is_read_or_copied(driver, tmp_path, nothing_is_done):
    path, nowhere = safetensors(tmp_path / "x.safetensors", some()), str(tmp_path / "no")
    for call in (lambda: vs.weights.load("a", path, progress=nothing_is_done, address=nowhere,
                                         **HOST),
                 lambda: vs.weights.put("a", arrays_of(1), address=nowhere, **HOST)):
        with pytest.raises(vs.errors.NotFound, match="vmmshare keep"):
            call()


@pytest.mark.parametrize("name, error, says", [
    ("a b", vs.errors.InvalidArgument, "'a b' is no name; expected 1 to 128 of A-Z"),
    ("", vs.errors.InvalidArgument, "expected 1 to 128"),
    ("a" * 129, vs.errors.InvalidArgument, "expected 1 to 128"),
    ("a\n", vs.errors.InvalidArgument, "expected 1 to 128"),
    ("a\0", vs.errors.InvalidArgument, "expected 1 to 128"),
    ("\ud800", vs.errors.InvalidArgument, "expected 1 to 128"),
    (5, TypeError, "a name is a str, not a int"),
    (b"a", TypeError, "a name is a str, not a bytes")], ids=ascii)
def test_of_a_bad_name_nothing_is_read_or_copied(keeper, tmp_path, nothing_is_done, name, error,
                                                 says):
    path, where = safetensors(tmp_path / "x.safetensors", some()), {"address": keeper.address}
    with pytest.raises(error, match=says):
        vs.weights.load(name, path, progress=nothing_is_done, **where, **HOST)
    with pytest.raises(error, match=says):
        vs.weights.put(name, arrays_of(1), **where, **HOST)
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        with pytest.raises(error, match=says):
            draft.put(name, **where)


def test_the_keeper_and_python_have_one_rule_for_names(keeper):
    with vs.Keeper(keeper.address) as connection, vs.Allocation(nbytes=4096, **HOST) as memory:
        names = [*(f"a{chr(code)}z" for code in range(1, 256)), "a" * 128, "a" * 129, ".", "/", ""]
        for name in names:
            try:
                vmmshare._names.checked_name(name)
            except vs.errors.InvalidArgument:
                with pytest.raises(vs.errors.InvalidArgument, match="expected 1 to 128"):
                    connection.put(name, memory)
            else:
                connection.put(name, memory)
                connection.drop(name)


def test_a_keeper_that_goes_while_files_are_read_is_told_of_then(keeper, tmp_path):
    path = safetensors(tmp_path / "x.safetensors", some())

    def end_keeper(done, total):
        if keeper.process.poll() is None:
            keeper.process.send_signal(signal.SIGTERM)
            keeper.process.wait(timeout=60)

    with pytest.raises(vs.errors.NotFound, match="vmmshare keep"):
        vs.weights.load("a", path, progress=end_keeper, address=keeper.address, **HOST)


# --- what looks like PyTorch, and PyTorch where it is installed

@pytest.fixture(params=[fake_torch.Tensor, fake_torch.FastTensor],
                ids=["by Python", "by DLPack's exchange API"])
def Tensor(request, monkeypatch):
    for name, module in fake_torch.modules(request.param).items():
        monkeypatch.setitem(sys.modules, name, module)
    return request.param


def test_tensors_that_look_like_pytorchs(keeper, Tensor):
    weight = np.arange(24, dtype=np.float32).reshape(4, 6)
    state = {"weight": Tensor.of_the_host(weight), "tied": Tensor.of_the_host(weight),
             "t": Tensor.of_the_host(np.arange(6, dtype=np.int16).reshape(2, 3).T),
             "f8": Tensor.of_the_host(np.arange(9, dtype=np.uint8), "float8_e4m3fn"),
             "scale": Tensor.of_the_host(np.arange(9, dtype=np.uint8), "float8_e8m0fnu"),
             "loose": Tensor.of_the_host(np.arange(20, dtype=np.int64)[::3])}
    if Tensor is fake_torch.FastTensor:  # NumPy takes no bfloat16.
        state["bf"] = Tensor.of_the_host(np.arange(5, dtype=np.uint16), "bfloat16")
    vs.weights.put("torch", state, address=keeper.address, **HOST)
    with vs.weights.open("torch", address=keeper.address) as weights:
        assert {row["name"] for row in weights.tensors() if row["alias_of"]} == {"tied"}
        tensors = weights.torch()
        assert set(tensors) == set(state)
        for name, ours in state.items():
            theirs = tensors[name]
            assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape), name
            assert theirs.array.tobytes() == ours.array.tobytes(), name
        assert tensors["weight"].data_ptr() == tensors["tied"].data_ptr()
        assert tensors["t"].stride() == (1, 3)


def test_a_dtype_that_this_pytorch_has_not_is_named(keeper, Tensor, monkeypatch):
    scale = Tensor.of_the_host(np.arange(9, dtype=np.uint8), "float8_e8m0fnu")
    vs.weights.put("torch", {"scale": scale}, address=keeper.address, **HOST)
    monkeypatch.delattr(sys.modules["torch"], "float8_e8m0fnu")
    with vs.weights.open("torch", address=keeper.address) as weights:
        with pytest.raises(vs.errors.FailedPrecondition, match="has no dtype float8_e8m0fnu"):
            weights.torch()


def test_every_device_of_pytorchs_is_waited_for(monkeypatch):
    done = []

    class OnDevice:
        is_cuda = True

        def __init__(self, device):
            self.device = device

        def get_device(self):
            return int(self.device.partition(":")[2])

    torch = type(sys)("torch")
    torch.Tensor = OnDevice
    torch.cuda = types.SimpleNamespace(synchronize=done.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensors = {"a": OnDevice("cuda:1"), "b": OnDevice("cuda:0"), "c": OnDevice("cuda:1"),
               "d": np.zeros(3)}
    vmmshare._reads.await_torch(tensors)
    assert sorted(done) == ["cuda:0", "cuda:1"]


def test_copies_that_put_makes_are_waited_for_too(keeper, Tensor, monkeypatch):
    waited = []
    monkeypatch.setattr(vs.weights, "await_torch", lambda tensors: waited.append(sorted(tensors)))
    state = {"dense": Tensor.of_the_host(np.arange(4)),
             "loose": Tensor.of_the_host(np.arange(20)[::3])}
    vs.weights.put("torch", state, address=keeper.address, **HOST)
    assert waited == [["dense", "loose"], ["loose"]]


def test_a_tensor_of_no_known_type_is_named(keeper, Tensor):
    state = {"weight": Tensor.of_the_host(np.zeros(3, np.float32)),
             "scale": Tensor.of_the_host(np.zeros(3, np.uint8), "float4_e2m1fn_x2")}
    for call in (lambda: vs.weights.put("torch", state, address=keeper.address, **HOST),
                 lambda: vs.weights.draft(state, **HOST)):
        with pytest.raises(TypeError, match="^tensor 'scale': dtype .* is not known.* as uint8"):
            call()
    assert vs.weights.list(address=keeper.address) == []


def test_a_lazy_conjugate_is_refused(keeper, Tensor):
    lazy = Tensor.of_the_host(np.ones(3))
    lazy.lazy = "neg"
    with pytest.raises(vs.errors.InvalidArgument, match="resolve_neg"):
        vs.weights.put("torch", {"a": lazy}, address=keeper.address, **HOST)


@pytest.mark.parametrize("part", [np.s_[:], np.s_[::-1], np.s_[:, ::2]])
def test_a_masked_array_is_refused(keeper, part):
    masked = np.ma.masked_equal(np.arange(24.0).reshape(4, 6), 3)[part]
    for call in (lambda: vs.weights.put("masked", {"a": masked}, address=keeper.address, **HOST),
                 lambda: vs.weights.draft({"a": masked}, **HOST)):
        with pytest.raises(ValueError, match="'a': it is masked, and a mask is not shared"):
            call()
    assert vs.weights.list(address=keeper.address) == []
    vs.weights.put("filled", {"a": masked.filled(0)}, address=keeper.address, **HOST)


def test_a_state_dict_of_pytorch(keeper):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight  # Tied.
    state = {**model.state_dict(), "bf": torch.arange(9).to(torch.bfloat16),
             "f8": torch.arange(8).to(torch.float8_e4m3fn), "t": torch.ones(3, 4).t()}
    vs.weights.put("torch", state, address=keeper.address, **HOST)
    with vs.weights.open("torch", address=keeper.address) as weights:
        tensors = weights.torch()
        assert set(tensors) == set(state)
        for name, tensor in state.items():
            assert tensors[name].dtype == tensor.dtype and tensors[name].shape == tensor.shape
            assert torch.equal(tensors[name].float(), tensor.float()), name
        assert tensors["0.weight"].data_ptr() == tensors["1.weight"].data_ptr()
        with torch.device("meta"):
            empty = torch.nn.Linear(8, 50, bias=False)
        empty.load_state_dict({"weight": tensors["1.weight"]}, assign=True)
        assert empty.weight.data_ptr() == tensors["1.weight"].data_ptr()


def test_import_does_not_import_pytorch():
    code = ("import sys, vmmshare as vs; vs.weights; assert 'torch' not in sys.modules "
            "and 'numpy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the command

def command(keeper, *words, env=None):
    import vmmshare.testing
    return subprocess.run([sys.executable, "-m", "vmmshare", "weights", *words,
                           f"--address={keeper.address}",
                           f"--driver={vmmshare.testing.host_driver()}"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_the_command(keeper, tmp_path):
    path = safetensors(tmp_path / "1.safetensors", some(), {"format": "pt\n"})

    def succeed(*words):
        done = command(keeper, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert succeed("list") == "no tensor set is kept\n"
    for generation in (1, 2):
        assert succeed("put", "model", str(path), "--host-node=0", "--fingerprint=f",
                       "--threads=2") == f"model: generation {generation}\n"
    assert succeed("list").splitlines()[0] == "model"
    listed, = json.loads(succeed("list", "--json"))
    assert listed == vs.weights.list(address=keeper.address)[0]
    text = succeed("show", "model")
    assert "generation 2, 4 tensors" in text and "format: pt\\n\n" in text and "b.c" in text
    shown = json.loads(succeed("show", "model", "--json"))
    wanted = vs.weights.show("model", address=keeper.address)
    assert shown["metadata"] == wanted["metadata"] == {"format": "pt\n"}
    assert shown["tensors"] == json.loads(json.dumps(wanted["tensors"]))
    assert "4 of 4 tensors" in succeed("verify", "model")
    assert succeed("drop", "model") == ""
    assert vs.weights.list(address=keeper.address) == []


def test_the_command_says_what_is_wrong(keeper, tmp_path):
    (tmp_path / "bad").write_bytes(b"12345678")
    for words, status, says in (
            (["show", "model"], 1, "nothing is kept"), (["verify", "model"], 1, "nothing is kept"),
            (["drop", "model"], 1, "nothing is kept"), (["show"], 2, "1 to 128"),
            (["show", "a b"], 2, "1 to 128"), (["copy", "a"], 2, "expected list, show"),
            (["list", "a"], 2, "unexpected word"), (["list", "--no"], 2, "unknown option"),
            (["put", "model"], 2, "FILE"), (["put", "a", "b", "--threads=0"], 2, "--threads"),
            (["put", "a", "b", "--allow-user=0"], 2, "--allow-user"),
            *((["put", "a", "b", f"{option}=1", option, "1"], 2, f"{option}: is given twice")
              for option in ("--device", "--host-node", "--fingerprint", "--threads", "--timeout")),
            (["put", "a", "b", "--shard=0/2", "--shard=1/2"], 2, "--shard: is given twice"),
            *((["put", "a", "b", f"{option}=a", f"{option}=a"], 2, f"{option}: is given twice")
              for option in ("--address", "--driver")),
            *((["put", "a", "b", f"{option}=2147483648"], 2, f"{option}: '2147483648' is no number")
              for option in ("--threads", "--host-node", "--device")),
            (["put", "model", str(tmp_path / "bad"), "--host-node=0"], 1, "no safetensors file"),
            (["put", "model", str(tmp_path / "no"), "--host-node=0"], 1, "cannot be read")):
        done = command(keeper, *words)
        assert done.returncode == status, (words, done)
        assert says in done.stderr and done.stdout == "", (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert "put NAME FILE" in command(keeper, "--help").stdout


# --- a rank's part of each

PLAN = {"*.norm": None, "*.q": 0, "*.o": 1, "embed": 0}


def model():
    random = np.random.default_rng(5)
    return {"1.q": random.standard_normal((12, 8)).astype(np.float32),
            "1.o": random.standard_normal((6, 12)).astype(np.float16),
            "2.o": random.integers(0, 99, (3, 24, 2, 5)),
            "1.norm": random.standard_normal(7).astype(np.float32),
            "scale": np.array(3.0),
            "embed": random.integers(0, 9, (24, 3)).astype(np.uint8)}


NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "float64": "F64", "uint8": "U8"}


def model_file(folder, name="m.safetensors", tensors=None):
    return safetensors(folder / name, {one: (NAMES[array.dtype.name], array)
                                       for one, array in (tensors or model()).items()})


def expect_parts(sets, whole):
    """Put together again, they are the whole; what is replicated is in each."""
    for name, array in whole.items():
        parts = [np.from_dlpack(weights[name]) for weights in sets]
        dim = vs.weights.Shard(0, len(sets), PLAN).dimension(name)
        if dim is None:
            assert all(np.array_equal(part, array) for part in parts), name
            continue
        assert all(part.shape[dim] * len(sets) == array.shape[dim] for part in parts), name
        assert np.array_equal(np.concatenate(parts, dim), array), name


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_ranks_parts_together_are_the_whole(keeper, tmp_path, count):
    path, told = model_file(tmp_path), []
    for rank in range(count):
        vs.weights.load(f"model/tp{rank}", path, shard=vs.weights.Shard(rank, count, PLAN),
                        progress=lambda *what: told.append(what), address=keeper.address, **HOST)
        vs.weights.put(f"put/tp{rank}", model(), shard=vs.weights.Shard(rank, count, PLAN),
                       address=keeper.address, **HOST)
    for kind in ("model", "put"):
        sets = [vs.weights.open(f"{kind}/tp{rank}", address=keeper.address)
                for rank in range(count)]
        expect_parts(sets, model())
        for rank, weights in enumerate(sets):
            assert weights.metadata == {"shard.rank": str(rank), "shard.count": str(count)}
            assert weights.verify() == 6  # What is there is what its checksum was taken of.
    # No more was read than what each takes.
    whole = sum(array.nbytes for array in model().values())
    replicated = model()["1.norm"].nbytes + model()["scale"].nbytes
    assert told[-1] == ((whole - replicated) // count + replicated,) * 2


def test_ranks_in_processes_of_their_own(keeper, tmp_path):
    path = model_file(tmp_path)
    code = ("import sys, vmmshare as vs, vmmshare.testing; vmmshare.testing.use_host_driver(); "
            "rank = int(sys.argv[1]); vs.weights.load(f'model/tp{rank}', sys.argv[2], "
            f"shard=vs.weights.Shard(rank, 3, {PLAN!r}), host_node=0, address=sys.argv[3])")
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(path), keeper.address])
             for rank in range(3)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0, 0]
    expect_parts([vs.weights.open(f"model/tp{rank}", address=keeper.address)
                  for rank in range(3)], model())


@pytest.mark.parametrize("name, plan, count, says", [
    ("1.q", {"*.q": 0}, 5, r"'1.q' of shape \(12, 8\).*dimension 0 into 5 equal parts: 12 is no"),
    ("1.o", {"*": 1}, 7, r"'1.q' of shape \(12, 8\).*into 7 equal parts: 8 is no multiple of 7"),
    ("2.o", {"2.*": 3}, 2, r"'2.o' of shape \(3, 24, 2, 5\).*5 is no multiple of 2"),
    ("1.norm", {"1.norm": 1}, 2, r"'1.norm' of shape \(7,\).*dimension 1, and has 1"),
    ("scale", {"scale": 0}, 2, r"'scale' of shape \(\).*dimension 0, and has 0")])
def test_a_tensor_that_has_no_equal_parts_is_refused(keeper, tmp_path, monkeypatch, name, plan,
                                                     count, says):
    path = model_file(tmp_path)
    monkeypatch.setattr(vs.weights, "Allocation", None)  # Before anything is made.
    shard = vs.weights.Shard(0, count, plan)
    with pytest.raises(vs.errors.InvalidArgument, match=says):
        vs.weights.load("model/tp0", path, shard=shard, address=keeper.address, **HOST)
    with pytest.raises(vs.errors.InvalidArgument, match=says):
        vs.weights.put("model/tp0", model(), shard=shard, address=keeper.address, **HOST)


def test_of_empty_tensors_and_those_that_are_cut_to_nothing(keeper, tmp_path):
    empty = {"1.q": np.zeros((0, 3), np.int64), "1.o": np.zeros((4, 0), np.int64),
             "2.o": np.zeros((0, 2), np.int64)}
    path = model_file(tmp_path, tensors=empty)
    vs.weights.load("model/tp1", path, shard=vs.weights.Shard(1, 2, PLAN),
                    address=keeper.address, **HOST)
    with vs.weights.open("model/tp1", address=keeper.address) as weights:
        assert {name: array.shape for name, array in weights.items()} == {
            "1.q": (0, 3), "1.o": (4, 0), "2.o": (0, 1)}


def test_the_first_pattern_counts():
    shard = vs.weights.Shard(1, 2, {"a.special": None, "a.*": 1, "*": 0})
    assert [shard.dimension(name) for name in ("a.special", "a.b", "b")] == [None, 1, 0]
    assert vs.weights.Shard(0, 2, {"a": 0}).dimension("A") is None
    assert shard.lengths("a.b", [4, 6]) == (4, 3)
    for wrong, error in (((2, 2, {}), ValueError), ((-1, 2, {}), ValueError),
                         ((0, 0, {}), ValueError), ((0, 2, {"a": -1}), TypeError),
                         ((0, 2, {"a": "0"}), TypeError), ((0, 2, {"a": True}), TypeError),
                         ((0, 2, {"a": vs.weights.Fused(0, ())}), TypeError),
                         ((0, 2, {"a": vs.weights.Fused(0, (4, -4))}), TypeError)):
        with pytest.raises(error):
            vs.weights.Shard(*wrong)
    for numbers in ((True, 2), (0, True), (0.0, 2), (0, 2.0), ("0", 2)):
        with pytest.raises(TypeError):
            vs.weights.Shard(*numbers, {})
    shard = vs.weights.Shard(np.int64(1), np.int64(2), {"a": 0})
    assert type(shard.rank) is type(shard.count) is int


@pytest.mark.parametrize("where, plan", [(HOST, PLAN), ({}, {"*.q": 0, "embed": 0})])
def test_arrays_of_a_set_that_is_there_are_cut(keeper, cuda, where, plan):
    vs.weights.put("whole", model(), address=keeper.address, **where)
    for rank in range(2):
        shard = vs.weights.Shard(rank, 2, plan)
        with vs.weights.open("whole", address=keeper.address) as whole:
            vs.weights.put("part", dict(whole), shard=shard, address=keeper.address, **HOST)
        with vs.weights.open("part", address=keeper.address) as weights:
            assert set(weights) == set(model())
            for name, array in model().items():
                dim = shard.dimension(name)
                wanted = array if dim is None else np.split(array, 2, dim)[rank]
                assert np.array_equal(np.from_dlpack(weights[name]), wanted), name


@pytest.mark.parametrize("where", [HOST, {}], ids=["host", "device"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_an_array_that_numpy_cannot_copy_is_cut_where_no_gaps_come(keeper, cuda, where, dtype):
    with vs.weights.draft({"w": ((8, 8), dtype)}, **where) as draft:
        draft.put("whole", address=keeper.address)
    with vs.weights.open("whole", address=keeper.address) as whole:
        shard = vs.weights.Shard(0, 2, {"w": 1})
        with pytest.raises(ValueError, match=r"'w' do not lie side by side.*torch\(\) of a set"):
            vs.weights.put("part", dict(whole), shard=shard, address=keeper.address, **HOST)
        shard = vs.weights.Shard(1, 2, {"w": 0})
        vs.weights.put("part", dict(whole), shard=shard, address=keeper.address, **HOST)
    with vs.weights.open("part", address=keeper.address) as part:
        assert (part["w"].shape, part["w"].dtype) == ((4, 8), dtype)


def test_a_cut_stays_within_its_array(keeper):
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        array = memory.array((3, 4), "int32", offset=16)
        np.from_dlpack(array)[:] = whole = np.arange(12, dtype=np.int32).reshape(3, 4)
        for dim, length in enumerate(array.shape):
            for begin in range(length + 1):
                for taken in range(length + 1 - begin):
                    wanted = np.split(whole, (begin, begin + taken), dim)[1]
                    seen = np.from_dlpack(array._cut(dim, begin, taken))
                    assert np.array_equal(seen, wanted)
        for bad in ((2, 0, 1), (0, 0, 4), (0, 3, 1), (0, -1, 1), (0, 1, -1), (1, 2**63 - 1, 1),
                    (1, 1, 2**63 - 1)):
            with pytest.raises(ValueError, match="elements lie from"):
                array._cut(*bad)
    with pytest.raises(TypeError, match="a Array cannot be cut as Fused"):
        vs.weights.put("fused", {"a": array}, address=keeper.address, **HOST,
                       shard=vs.weights.Shard(0, 2, {"a": vs.weights.Fused(1, (2, 2))}))
    array.close()


@pytest.mark.parametrize("dim", [0, 1])
def test_tied_weights_stay_tied_when_they_are_cut(keeper, dim):
    embed = np.arange(48, dtype=np.float32).reshape(8, 6)
    tensors = {"embed": embed, "head": embed, "same values": embed.copy()}
    for rank in range(2):
        vs.weights.put(f"tied/tp{rank}", tensors, shard=vs.weights.Shard(rank, 2, {"*": dim}),
                       address=keeper.address, **HOST)
        with vs.weights.open(f"tied/tp{rank}", address=keeper.address) as weights:
            wanted = np.split(embed, 2, dim)[rank]
            assert all(np.array_equal(np.from_dlpack(weights[name]), wanted) for name in tensors)
            ties = {row["name"]: row["alias_of"] for row in weights.tensors()}
            assert ties == {"embed": None, "head": "embed", "same values": None}


# Query, key and value of 8, 4 and 4 rows, and the same in the second dimension.
FUSED = {"*.qkv": vs.weights.Fused(0, (8, 4, 4)), "*.gate_up": vs.weights.Fused(1, [6, 10])}


def fused_model():
    return {"1.qkv": np.arange(80, dtype=np.float32).reshape(16, 5),
            "1.gate_up": np.arange(3 * 16 * 2, dtype=np.int64).reshape(3, 16, 2),
            "1.norm": np.arange(4.0, dtype=np.float32)}


def fused_part(array, dim, lengths, rank, count):
    parts = np.split(array, np.cumsum(lengths)[:-1], dim)
    return np.concatenate([np.split(part, count, dim)[rank] for part in parts], dim)


@pytest.mark.parametrize("count", [1, 2])
def test_each_part_of_a_fused_tensor_is_cut_by_itself(keeper, tmp_path, count):
    path, told = model_file(tmp_path, tensors=fused_model()), []
    whole = fused_model()
    for rank in range(count):
        shard = vs.weights.Shard(rank, count, FUSED)
        vs.weights.load("file", path, shard=shard, address=keeper.address,
                        progress=lambda *what: told.append(what), **HOST)
        vs.weights.put("arrays", fused_model(), shard=shard, address=keeper.address, **HOST)
        for name in ("file", "arrays"):
            with vs.weights.open(name, address=keeper.address) as weights:
                for tensor, (dim, lengths) in (("1.qkv", (0, (8, 4, 4))),
                                               ("1.gate_up", (1, (6, 10)))):
                    wanted = fused_part(whole[tensor], dim, lengths, rank, count)
                    assert np.array_equal(np.from_dlpack(weights[tensor]), wanted), tensor
                assert np.array_equal(np.from_dlpack(weights["1.norm"]), whole["1.norm"])
                assert weights.verify() == 3
    cut = whole["1.qkv"].nbytes + whole["1.gate_up"].nbytes
    assert told[-1] == (cut // count + whole["1.norm"].nbytes,) * 2


def test_fused_tensors_that_are_tied_stay_tied(keeper):
    qkv = fused_model()["1.qkv"]
    vs.weights.put("tied", {"a.qkv": qkv, "b.qkv": qkv, "c.qkv": qkv.copy()},
                   shard=vs.weights.Shard(1, 2, FUSED), address=keeper.address, **HOST)
    with vs.weights.open("tied", address=keeper.address) as weights:
        ties = {row["name"]: row["alias_of"] for row in weights.tensors()}
        assert ties == {"a.qkv": None, "b.qkv": "a.qkv", "c.qkv": None}
        for name in ties:
            assert np.array_equal(np.from_dlpack(weights[name]),
                                  fused_part(qkv, 0, (8, 4, 4), 1, 2))


def test_fused_tensors_of_pytorchs(keeper, Tensor, monkeypatch):
    qkv = fused_model()["1.qkv"]
    joined = []

    def cat(parts, dim):
        joined.append(len(parts))
        return Tensor.of_the_host(np.concatenate([part.array for part in parts], dim))

    monkeypatch.setattr(sys.modules[Tensor.__module__], "cat", cat, raising=False)
    vs.weights.put("torch", {"1.qkv": Tensor.of_the_host(qkv)}, address=keeper.address,
                   shard=vs.weights.Shard(0, 2, FUSED), **HOST)
    with vs.weights.open("torch", address=keeper.address) as weights:
        assert np.array_equal(np.from_dlpack(weights["1.qkv"]),
                              fused_part(qkv, 0, (8, 4, 4), 0, 2))
    assert joined == [3]


class OnAStream:
    """As CuPy's on a stream of its own, which a fence holds up until the order is asked for."""

    def __init__(self, stream, gate, view):
        self.stream, self.gate, self.view, self.shape = stream, gate, view, view.shape

    def __getitem__(self, index):
        return OnAStream(self.stream, self.gate, self.view._cut(
            len(index) - 1, index[-1].start, index[-1].stop - index[-1].start))

    def __dlpack_device__(self):
        return self.view.__dlpack_device__()

    def __dlpack__(self, stream=None, max_version=None):
        if stream == 1:
            done = self.gate.done = self.gate.pool.new()
            done.signal(self.stream.value, 1)
            done.wait(1, 1)
            self.gate.open()
        return self.view.__dlpack__(stream=-1, max_version=max_version)


@pytest.mark.parametrize("where", [{}, HOST], ids=["on the device", "on the host"])
def test_what_a_library_joins_on_its_stream_is_copied_when_it_is_joined(keeper, cuda, monkeypatch,
                                                                        where):
    """Nobody can have waited for what is made within put()."""
    def concatenate(parts, dim):
        out = pool.empty(sum(part.shape[0] for part in parts), "int32")
        fence.wait(stream.value, 1)
        at = out.ptr
        for part in parts:
            size = part.view.nbytes
            assert cuda.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(at), ctypes.c_uint64(part.view.ptr),
                                             ctypes.c_size_t(size), stream) == 0
            at += size
        return OnAStream(stream, gate, out)

    stream, values = ctypes.c_void_p(), np.arange(1, 9, dtype=np.int32)
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0  # No default stream waits for it.
    monkeypatch.setitem(sys.modules, "library", types.SimpleNamespace(concatenate=concatenate))
    monkeypatch.setattr(OnAStream, "__module__", "library.array")
    with vs.Pool() as pool, vs.FencePool() as fences, fences.new() as fence:
        gate = types.SimpleNamespace(pool=fences, open=lambda: fence.value or fence.signal(1))
        rescue = threading.Timer(30, gate.open)  # Memory may wait for the stream when it goes.
        rescue.start()
        whole = pool.empty(8, "int32")
        assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(whole.ptr), values.tobytes(),
                                    ctypes.c_size_t(values.nbytes)) == 0
        assert cuda.cuCtxSynchronize() == 0
        vs.weights.put("joined", {"1.qkv": OnAStream(stream, gate, whole)}, address=keeper.address,
                       shard=vs.weights.Shard(1, 2, {"*.qkv": vs.weights.Fused(0, (4, 4))}),
                       **where)
        rescue.cancel()
        gate.open()
        assert cuda.cuStreamSynchronize(stream) == 0
        assert cuda.cuStreamDestroy_v2(stream) == 0
        with vs.weights.open("joined", address=keeper.address) as weights:
            out = ctypes.create_string_buffer(16)
            assert cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(weights["1.qkv"].ptr),
                                        ctypes.c_size_t(16)) == 0
    assert np.frombuffer(out.raw, np.int32).tolist() == [3, 4, 7, 8]


@pytest.mark.parametrize("lengths, count, says", [
    ((8, 4), 2, r"dimension 0 as \(8, 4\), which is 12 and not 16"),
    ((8, 5, 3), 2, "into 2 equal parts: 5 is no multiple of 2"),
    ((16, 16), 2, "which is 32 and not 16")])
def test_a_fused_tensor_that_does_not_fit_is_refused(keeper, tmp_path, monkeypatch, lengths,
                                                     count, says):
    path = model_file(tmp_path, tensors=fused_model())
    monkeypatch.setattr(vs.weights, "Allocation", None)  # Before anything is made.
    shard = vs.weights.Shard(0, count, {"*.qkv": vs.weights.Fused(0, lengths)})
    with pytest.raises(vs.errors.InvalidArgument, match=says):
        vs.weights.load("model", path, shard=shard, address=keeper.address, **HOST)
    with pytest.raises(vs.errors.InvalidArgument, match=says):
        vs.weights.put("model", fused_model(), shard=shard, address=keeper.address, **HOST)


def test_a_fused_cut_of_what_no_library_joins_is_a_type_error():
    class Alone:
        shape = (16, 5)

        def __getitem__(self, index):
            return self

    with pytest.raises(TypeError, match="neither cat"):
        vs.weights.Shard(0, 2, FUSED).take("1.qkv", Alone())


def test_a_file_that_is_cut_within_a_fused_tensor(keeper, tmp_path, monkeypatch):
    path = model_file(tmp_path, tensors={"1.qkv": fused_model()["1.qkv"]})
    cut_after_the_header(monkeypatch, path, os.path.getsize(path) - 8)
    with pytest.raises(vs.errors.DataLoss, match="ends within tensor \"1.qkv\""):
        vs.weights.load("model", path, shard=vs.weights.Shard(1, 2, FUSED),
                        address=keeper.address, **HOST)
    assert vs.weights.list(address=keeper.address) == []


def test_the_command_loads_a_ranks_part(keeper, tmp_path):
    path = model_file(tmp_path, tensors=fused_model())
    done = command(keeper, "put", "model", str(path), "--host-node=0", "--shard=1/2",
                   "--cut=*.qkv=0:8+4+4", "--cut=*.gate_up=1", "--cut=*.norm=whole")
    assert done.returncode == 0, done.stderr
    with vs.weights.open("model", address=keeper.address) as weights:
        assert weights.metadata["shard.rank"] == "1"
        assert np.array_equal(np.from_dlpack(weights["1.qkv"]),
                              fused_part(fused_model()["1.qkv"], 0, (8, 4, 4), 1, 2))
        assert np.array_equal(np.from_dlpack(weights["1.gate_up"]),
                              np.split(fused_model()["1.gate_up"], 2, 1)[1])
        assert weights["1.norm"].shape == (4,)
    for words, says in ((["--shard=2/2"], "is no rank"), (["--shard=1"], "is no rank"),
                        (["--cut=*=0"], "expected --shard"),
                        (["--shard=0/2", "--cut=a"], "expected PATTERN=0"),
                        (["--shard=0/2", "--cut=a=0:"], "expected PATTERN=0"),
                        (["--shard=0/2", "--cut=a=0", "--cut=a=1"], "twice")):
        done = command(keeper, "put", "model", str(path), "--host-node=0", *words)
        assert done.returncode == 2 and says in done.stderr, (words, done.stderr)


def test_tensors_of_pytorchs_are_cut_too(keeper, Tensor):
    weight = np.arange(24, dtype=np.float32).reshape(4, 6)
    vs.weights.put("torch/tp1", {"w": Tensor.of_the_host(weight)}, address=keeper.address,
                   shard=vs.weights.Shard(1, 2, {"w": 1}), **HOST)
    with vs.weights.open("torch/tp1", address=keeper.address) as weights:
        assert np.array_equal(np.from_dlpack(weights["w"]), weight[:, 3:])


def test_a_rank_whose_file_is_cut_has_nothing(keeper, tmp_path, monkeypatch):
    path = model_file(tmp_path)
    cut_after_the_header(monkeypatch, path, os.path.getsize(path) - 8)
    with pytest.raises(vs.errors.DataLoss, match="ends within tensor"):
        vs.weights.load("model/tp1", path, shard=vs.weights.Shard(1, 2, PLAN),
                        address=keeper.address, **HOST)
    assert vs.weights.list(address=keeper.address) == []


# --- what is made for whoever asks, and goes with its capsule

class MadeForAsking:
    """An array that is computed when a consumer asks for it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return (self.array + 0).__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("size", [10, 10_000_000])  # Which malloc() gives back at once.
def test_what_is_made_when_it_is_asked_for(keeper, size):
    made = {name: MadeForAsking(np.full(size, value)) for value, name in enumerate("abc")}
    vs.weights.put("made", made, address=keeper.address, **HOST)
    with vs.weights.open("made", address=keeper.address) as weights:
        assert not any(row["alias_of"] for row in weights.tensors())
        for value, name in enumerate("abc"):
            assert (np.from_dlpack(weights[name]) == value).all()


class LazyArrays(collections.abc.Mapping):
    def __iter__(self):
        return iter("abc")

    def __len__(self):
        return 3

    def __getitem__(self, name):
        return np.zeros(1000)


def test_a_draft_of_what_is_made_when_it_is_asked_for(driver):
    with vs.weights.draft(LazyArrays(), **HOST) as draft:
        assert draft.own == ["a", "b", "c"]
    made = {name: MadeForAsking(np.zeros(1000)) for name in "abc"}
    with vs.weights.draft(made, **HOST) as draft:
        assert draft.own == ["a", "b", "c"]


# --- a draft whose put() failed

@pytest.mark.parametrize("at", [0, 8, 20], ids=["magic", "version", "contents"])
def test_a_set_that_is_damaged_is_not_listed(keeper, at):
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        draft.put("good", address=keeper.address)
        raw = bytearray(np.from_dlpack(draft.memory.array(draft.nbytes, "uint8")))
    raw[raw.index(b"VMMS") + at] ^= 0x40
    damaged = vs.Allocation(nbytes=len(raw), **HOST)
    np.from_dlpack(damaged.array(len(raw), "uint8"))[:] = raw
    vs.keeper.put("damaged", damaged, seal=True, address=keeper.address)
    with pytest.raises((vs.errors.InvalidArgument, vs.errors.Unimplemented)):
        vs.weights.open("damaged", address=keeper.address)
    assert [one["name"] for one in vs.weights.list(address=keeper.address)] == ["good"]
    listed = subprocess.run([sys.executable, "-m", "vmmshare", "weights", "list", "--json",
                             "--driver=host", f"--address={keeper.address}"],
                            capture_output=True, text=True)
    assert [one["name"] for one in json.loads(listed.stdout)] == ["good"], listed.stderr


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def test_a_set_past_a_limit_is_not_listed_and_the_others_are(keeper):
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        draft.put("good", address=keeper.address)
        raw = bytearray(np.from_dlpack(draft.memory.array(draft.nbytes, "uint8")))
    at, size = struct.unpack_from("<QQ", raw, len(raw) - 24)
    struct.pack_into("<I", raw, at + 32, 262_145)  # Tensors.
    struct.pack_into("<I", raw, at + size - 4, crc32c(raw[at:at + size - 4]))
    damaged = vs.Allocation(nbytes=len(raw), **HOST)
    np.from_dlpack(damaged.array(len(raw), "uint8"))[:] = raw
    vs.keeper.put("damaged", damaged, seal=True, address=keeper.address)
    with pytest.raises(vs.errors.ResourceExhausted, match="262145 tensors"):
        vs.weights.open("damaged", address=keeper.address)
    assert [one["name"] for one in vs.weights.list(address=keeper.address)] == ["good"]
    listed = command(keeper, "list", "--json")
    assert [one["name"] for one in json.loads(listed.stdout)] == ["good"], listed.stderr


def put_with_dimensions(keeper, *dimensions):
    """A set "odd" of one matrix with these lengths and strides, which takes what 4 by 4 do."""
    with vs.weights.draft({"a": ((4, 4), "float32")}, **HOST) as draft:
        draft.put("good", address=keeper.address)
        raw = bytearray(np.from_dlpack(draft.memory.array(draft.nbytes, "uint8")))
    at, size = struct.unpack_from("<QQ", raw, len(raw) - 24)
    lengths_and_strides = raw.index(struct.pack("<QQQQ", 4, 4, 4, 1), at)
    struct.pack_into("<QQQQ", raw, lengths_and_strides, *dimensions)
    raw[lengths_and_strides - 20] = 0  # The flags: no checksum of its bytes.
    struct.pack_into("<I", raw, lengths_and_strides - 12, 0)
    struct.pack_into("<I", raw, at + size - 4, crc32c(raw[at:at + size - 4]))
    odd = vs.Allocation(nbytes=len(raw), **HOST)
    np.from_dlpack(odd.array(len(raw), "uint8"))[:] = raw
    vs.keeper.put("odd", odd, seal=True, address=keeper.address)


def test_a_set_of_more_elements_than_there_are_numbers_is_none(keeper):
    put_with_dimensions(keeper, 1 << 40, 0, 1 << 40, 0)  # All of them in one place.
    with pytest.raises(vs.errors.InvalidArgument, match="more elements than fit 63 bits"):
        vs.weights.open("odd", address=keeper.address)
    assert [one["name"] for one in vs.weights.list(address=keeper.address)] == ["good"]
    listed = command(keeper, "list", "--json")
    assert [one["name"] for one in json.loads(listed.stdout)] == ["good"], listed.stderr


def test_a_set_without_elements_may_have_any_strides(keeper):
    put_with_dimensions(keeper, 0, 1, 4, 1 << 62)
    names = [one["name"] for one in vs.weights.list(address=keeper.address)]
    assert sorted(names) == ["good", "odd"]
    with vs.weights.open("odd", address=keeper.address) as weights:
        assert weights["a"].shape == (0, 4)
        assert weights.tensors()[0]["strides"] == (1, 1 << 62)


def test_a_set_that_cannot_be_opened_here_is_listed_with_the_reason(keeper):
    put(keeper, 1)
    nbytes = vs.weights.list(address=keeper.address)[0]["nbytes"]
    # Of two devices this one sees the other alone.
    hidden = {**os.environ, "VMMSHARE_HOST_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}
    listed = command(keeper, "list", env=hidden)
    assert listed.returncode == 0, listed.stderr
    name, why = listed.stdout.splitlines()
    assert name == "model/tp0"
    assert why.startswith("  cannot be opened here: ") and "does not see GPU-" in why
    one, = json.loads(command(keeper, "list", "--json", env=hidden).stdout)
    assert (one["name"], one["nbytes"]) == ("model/tp0", nbytes) and len(one) == 3
    assert "does not see GPU-" in one["error"]
    code = ("import json, sys, vmmshare as vs, vmmshare.testing, vmmshare.weights; "
            "vmmshare.testing.use_host_driver(); "
            "print(json.dumps(vs.weights.list(address=sys.argv[1])))")
    done = subprocess.run([sys.executable, "-c", code, keeper.address], env=hidden,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, = json.loads(done.stdout)
    assert (one["name"], one["nbytes"]) == ("model/tp0", nbytes) and len(one) == 3
    assert "does not see GPU-" in one["error"]


def test_a_draft_that_was_refused_is_put_again_with_new_checksums(keeper):
    vs.keeper.put("no/set", vs.Allocation(nbytes=4096, **HOST), seal=True, address=keeper.address)
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        array = np.from_dlpack(draft["a"])
        array[:] = 1
        with pytest.raises(vs.errors.FailedPrecondition):
            draft.put("no/set", address=keeper.address)
        array[:] = 2
        assert draft.put("model/tp0", address=keeper.address) == 1
    assert vs.weights.verify("model/tp0", address=keeper.address) == 1


def test_a_draft_that_was_refused_is_put_again_without_checksums(keeper):
    vs.keeper.put("no/set", vs.Allocation(nbytes=4096, **HOST), seal=True, address=keeper.address)
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        with pytest.raises(vs.errors.FailedPrecondition):
            draft.put("no/set", address=keeper.address)
        np.from_dlpack(draft["a"])[:] = 2
        assert draft.put("model/tp0", checksum=False, address=keeper.address) == 1
    assert vs.weights.verify("model/tp0", address=keeper.address) == 0


@pytest.fixture
def connections(keeper, monkeypatch):
    """put() of a draft has these, and the keeper stands still."""
    made = [vs.Keeper(keeper.address) for _ in range(2)]
    left = iter(made)
    monkeypatch.setattr(vs.keeper, "Keeper", lambda *how, **more: next(left))
    keeper.stop()
    yield made
    for connection in made:
        connection.close()


def test_of_two_threads_one_puts_a_draft(keeper, connections):
    """Each published the same memory, of which the second one changed the manifest."""
    def put(name):
        try:
            ended.append(draft.put(name, timeout=60))
        except vs.errors.VmmshareError as why:
            ended.append(why)

    ended = []
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        threads = [threading.Thread(target=put, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while not ended and time.monotonic() < until:
            time.sleep(0.01)
        early = list(ended)
        keeper.go_on()
        for thread in threads:
            thread.join()
        assert [type(one) for one in early] == [vs.errors.FailedPrecondition]
        assert "being put already" in str(early[0]) and ended[1:] == [1]
    assert len(vs.weights.list(address=keeper.address)) == 1


def test_a_draft_whose_put_goes_on_after_ctrl_c_is_not_put_again_meanwhile(keeper, connections):
    with vs.weights.draft({"a": ((4,), "float32")}, **HOST) as draft:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            draft.put("one", timeout=60)
        timer.join()
        with pytest.raises(vs.errors.FailedPrecondition, match="being put already"):
            draft.put("two", timeout=20)
        keeper.go_on()
    until = time.monotonic() + 60
    while not vs.weights.list(address=keeper.address):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert [one["name"] for one in vs.weights.list(address=keeper.address)] == ["one"]


def test_a_file_that_is_replaced_while_it_is_read(keeper, tmp_path):
    path = safetensors(tmp_path / "x.safetensors", some(1))
    other = safetensors(tmp_path / "y.safetensors", some(2))

    def replace(name):
        if other.exists():
            os.replace(other, path)
        return True

    with pytest.raises(vs.errors.DataLoss, match="replaced"):
        vs.weights.load("model/tp0", path, select=replace, address=keeper.address, **HOST)
    with pytest.raises(vs.errors.NotFound):
        opened(keeper)


# --- arrays whose contents come later

@pytest.fixture(params=["device", "host"])
def late(request, cuda):
    """An array that is complete when its fence has reached 1, the fence, and `fill(value)`."""
    where = HOST if request.param == "host" else {"device": 0}
    with vs.Pool(**where) as pool, vs.serve(pool) as share, vs.connect(str(share)) as remote:
        with vs.FencePool() as fences, fences.new() as fence, pool.empty(3, "uint8") as own:
            def fill(value):
                assert cuda.cuMemsetD8_v2(ctypes.c_uint64(own.ptr), ctypes.c_ubyte(value),
                                          ctypes.c_size_t(own.nbytes)) == 0
                assert cuda.cuCtxSynchronize() == 0

            fill(1)
            with remote.open(own.ticket(), fence=fence, value=1) as array:
                yield types.SimpleNamespace(array=array, fence=fence, fill=fill, where=where)
            if fence.value < 1:  # Nobody is to wait when the memory goes.
                fence.signal(1)


def bytes_at(cuda, address, size):
    out = ctypes.create_string_buffer(size)
    assert cuda.cuMemcpyDtoH_v2(out, ctypes.c_uint64(address), ctypes.c_size_t(size)) == 0
    return out.raw


def ended(thread):
    thread.join(timeout=60)
    return not thread.is_alive()


def test_an_array_with_a_fence_is_put_when_its_contents_are_there(keeper, cuda, late):
    def put():  # On a thread where no context is current.
        done.append(vs.weights.put("late", {"a": late.array}, address=keeper.address, timeout=60,
                                   **late.where))

    done = []
    thread = threading.Thread(target=put)
    thread.start()
    thread.join(timeout=0.3)
    waited = thread.is_alive() and not done
    late.fill(2)
    late.fence.signal(1)
    assert ended(thread) and waited and done == [1]
    with vs.weights.open("late", address=keeper.address) as weights:
        assert bytes_at(cuda, weights["a"].ptr, 3) == b"\2\2\2"
        assert weights.verify() == 1


def test_a_fence_that_does_not_come_ends_put_by_its_timeout(keeper, late):
    began = time.monotonic()
    with pytest.raises(vs.errors.DeadlineExceeded, match="fence is at 0, not 1"):
        vs.weights.put("late", {"a": late.array}, address=keeper.address, timeout=2,
                       **late.where)
    assert time.monotonic() - began < 20
    assert vs.weights.list(address=keeper.address) == []


def test_a_draft_does_not_wait_for_the_fences_of_what_it_is_like(late):
    with vs.weights.draft({"a": late.array}, **HOST) as draft:
        assert (draft["a"].shape, draft["a"].dtype) == ((3,), "uint8")
