"""Exceptions have a code, a remedy, and the built-in type that they are."""

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import vmmshare as vs
import vmmshare.testing
from vmmshare import errors

KINDS = {
    "CANCELLED": errors.Cancelled, "INVALID_ARGUMENT": ValueError,
    "DEADLINE_EXCEEDED": TimeoutError, "NOT_FOUND": LookupError,
    "ALREADY_EXISTS": errors.AlreadyExists, "PERMISSION_DENIED": PermissionError,
    "RESOURCE_EXHAUSTED": MemoryError, "FAILED_PRECONDITION": RuntimeError,
    "ABORTED": errors.Aborted, "OUT_OF_RANGE": IndexError, "UNIMPLEMENTED": NotImplementedError,
    "INTERNAL": errors.Internal, "UNAVAILABLE": ConnectionError, "DATA_LOSS": errors.DataLoss,
    "UNKNOWN": errors.VmmshareError, "SOMETHING_NEW": errors.VmmshareError}


@pytest.mark.parametrize("code, kind", KINDS.items())
def test_codes_are_types(code, kind):
    error = errors._from_status(code, "the message", "Do this.", 2)
    assert isinstance(error, kind) and isinstance(error, errors.VmmshareError)
    assert str(error) == "the message. Do this."
    assert (error.remedy, error.cuda_result) == ("Do this.", 2)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.remedy) == (type(error), str(error), "Do this.")


def test_a_remedy_that_the_message_has_is_said_once():
    assert str(errors.NotFound("Gone. Do this.", "Do this.")) == "Gone. Do this."


def test_the_drivers_result_travels(driver):
    with pytest.raises(errors.ResourceExhausted) as raised:
        vs.Allocation(nbytes=1 << 44)
    assert raised.value.cuda_result == 2


@pytest.mark.parametrize("make", [
    lambda: vs.Pool(host_node=0), lambda: vs.Server(), lambda: vs.FencePool(),
    lambda: vs.Allocation(nbytes=1, host_node=0), lambda: vs.Driver(vmmshare.testing.host_driver())])
def test_closing_twice_and_using_after(driver, make):
    with make() as made:
        assert not made.closed
    made.close()
    assert made.closed
    uses = {vs.Pool: lambda: made.empty(1, "int8"), vs.Server: lambda: made.leases(),
            vs.FencePool: lambda: made.new(), vs.Allocation: lambda: made.ptr,
            vs.Driver: lambda: made.version}
    with pytest.raises(errors.FailedPrecondition, match="was closed"):
        uses[type(made)]()
    with pytest.raises(errors.FailedPrecondition, match="was closed"):
        with made:
            pass


def put(**more):
    """What is wrong is said before the keeper is asked: there is none at this address."""
    vs.weights.put("a", {"a": (1, "int8")}, address="/nowhere/keeper", **more)


MODULES = [vs, vs.broker, vs.job, vs.keeper, vs.weights, vs.torch, vs.jax, vs.cupy]
CLOSED = sorted({what for module in MODULES for name, what in vars(module).items()
                 if isinstance(what, type) and not name.startswith("_")
                 and what.__module__.startswith("vmmshare") and hasattr(what, "close")},
                key=lambda what: what.__qualname__)


@pytest.mark.parametrize("kind", CLOSED, ids=lambda kind: kind.__qualname__)
def test_what_can_be_closed_says_whether_it_was_and_is_for_with(kind):
    for member in ("closed", "__enter__", "__exit__"):
        assert hasattr(kind, member), member
    assert not callable(kind.closed)  # A property.


def test_these_are_all_that_can_be_closed():
    assert {"Array", "Draft", "DmaBuf", "Fetched", "Follower", "Handles", "Published", "Publisher",
            "Region", "RingHome", "RingReader", "RingWriter", "Served", "TensorSet",
            } <= {kind.__qualname__ for kind in CLOSED}


def opened_weights(keeper):
    with vs.weights.draft({"a": (4, "int8")}, host_node=0) as draft:
        draft.put("a", address=keeper.address)
    return vs.weights.open("a", address=keeper.address)


def test_what_was_closed_is_not_entered(keeper):
    """As the extension module's: a `with` block of what can do nothing is a mistake."""
    for made in vs.RingHome(host_node=0), opened_weights(keeper):
        with made as entered:
            assert entered is made
        with pytest.raises(errors.FailedPrecondition, match="was closed"):
            with made:
                pass


@pytest.mark.parametrize("make", [
    lambda keeper, array, memory: vs.RingHome(host_node=0),
    lambda keeper, array, memory: opened_weights(keeper),
    lambda keeper, array, memory: vs.weights.draft({"a": (4, "int8")}, host_node=0),
    lambda keeper, array, memory: vs.weights.publisher({"a": (4, "int8")}, host_node=0),
    lambda keeper, array, memory: vs.serve_array(array, copy=True),
    lambda keeper, array, memory: vs.broker.publish("a", memory, directory=keeper.folder),
], ids=["RingHome", "TensorSet", "Draft", "Publisher", "Served", "Published"])
def test_an_object_of_several_is_closed_when_its_block_ends(cuda, keeper, make):
    with vs.Pool(0) as pool, pool.empty(4, "int8") as array:
        with vs.Allocation(nbytes=4096, host_node=0) as memory:
            with make(keeper, array, memory) as made:
                assert made.closed is False
            assert made.closed is True
            made.close()
            assert made.closed is True


@pytest.mark.parametrize("use", [
    lambda array: put(fingerprint="\ud800"), lambda array: put(metadata={"a": "\ud800"}),
    lambda array: put(metadata={"\ud800": "a"}), lambda array: vs.share_all({"w\ud800": array}),
], ids=["fingerprint", "metadata", "key of metadata", "share_all"])
def test_a_text_that_is_no_unicode_is_named(pool, use):
    """As JSON from elsewhere may have it: half of a pair of UTF-16."""
    with pool.empty(3, "int8") as array:
        with pytest.raises(errors.InvalidArgument, match=r"w?\\ud800. is no Unicode text"):
            use(array)


@pytest.mark.parametrize("use, says", [
    (lambda own, theirs: vs.share_all({"x": [1]}), "array 'x': expected a vmmshare.Array, or an array of another library, not a list"),
    (lambda own, theirs: vs.share_all({7: own.empty(1, "int8")}), "the name 7: expected a str"),
    (lambda own, theirs: vs.connect(b"vmmshare-pool:"), "connect.. takes the text .* not a bytes"),
    (lambda own, theirs: own.wait_returned(timeout="1"), "timeout: expected seconds .* not a str"),
    (lambda own, theirs: own.empty(3.5, "int8"), "shape: expected an int or a sequence of ints, not a float"),
    (lambda own, theirs: own.empty("33", "int8"), "shape: expected an int or a sequence of ints, not a str"),
    (lambda own, theirs: own.empty({2, 3}, "int8"), "shape: expected an int .*, not a set"),
    (lambda own, theirs: own.empty(3, "int33"), "dtype int33 is not known; expected one of bool"),
    (lambda own, theirs: vs.Pool(0.5), "device: expected an ordinal, a UUID .* not a float"),
    (lambda own, theirs: theirs.open((array := own.empty(1, "int8")).ticket(), fence=3) or array,
     "fence: expected a Fence, not a int"),
    (lambda own, theirs: vs.on_recall(own, print), "not a Pool and a builtin_function"),
    (lambda own, theirs: vs.on_recall(theirs, 3), "not a RemotePool and a int"),
    (lambda own, theirs: vs.RingHome(host_node=0).open("x", nbytes=64), "socket.socket.* not a str"),
    (lambda own, theirs: vs.Pool(host_node="0"), "host_node: expected an int, not a str"),
    (lambda own, theirs: vs.Allocation(nbytes=1, host_node="0"), "host_node: expected an int, not"),
    (lambda own, theirs: vs.RingHome(host_node="0"), "host_node: expected an int, not a str"),
    (lambda own, theirs: vs.serve(None), r"serve\(\) takes a Pool, .*not a NoneType"),
    (lambda own, theirs: vs.connect_restorable(None), r"connect_restorable\(\) takes .*not a NoneT"),
    (lambda own, theirs: put(metadata={"a": 1}), "metadata 'a': expected a str .*, not a int"),
    (lambda own, theirs: put(metadata={2: "a"}), "metadata 2: expected a str .*, not a int"),
    (lambda own, theirs: put(metadata=5), "metadata: expected a dict of strs.* not a int"),
    (lambda own, theirs: put(fingerprint=None), "fingerprint: expected a str, not a NoneType"),
    (lambda own, theirs: put(shard=5), "shard: expected a Shard, or None, not a int"),
    (lambda own, theirs: vs.weights.load("a", "a", shard=5), "shard: expected a Shard, or None, not"),
    (lambda own, theirs: vs.weights.draft({"a": (1, "int8")}, fingerprint=3), "fingerprint: expected"),
    (lambda own, theirs: vs.RingHome(host_node=0).open(False, nbytes=64), "descriptor .* not a bool"),
    (lambda own, theirs: vs.rdma_capable(0), "^rdma_capable.. takes an Allocation or a Pool, not a int"),
    (lambda own, theirs: vs.open_ring(False), "descriptor .* not a bool"),
    (lambda own, theirs: vs.weights.follow(False), "descriptor .* not a bool"),
])
def test_an_argument_of_another_type_is_named(pool, remote, use, says):
    with pytest.raises(TypeError, match=says):
        use(pool, remote)


@pytest.mark.parametrize("spelled", [pathlib.Path, os.fsencode], ids=["Path", "bytes"])
def test_files_are_named_as_python_names_files(keeper, spelled):
    with vs.Keeper(spelled(keeper.address)) as connection:
        assert connection.list() == []
    assert vs.keeper.list(address=spelled(keeper.address)) == []
    assert vs.weights.list(address=spelled(keeper.address)) == []
    with vs.Server(directory=spelled(keeper.folder)) as server:
        assert server.leases() == []
    path = vmmshare.testing.host_driver()
    with vs.Driver(spelled(path)) as loaded:
        assert loaded.is_host_memory
    assert vs.doctor(spelled(path))["driver"] == vs.doctor(path)["driver"]


@pytest.mark.parametrize("use, what", [
    (vs.Keeper, "address"), (lambda path: vs.Server(directory=path), "directory"),
    (vs.Driver, "path"), (vs.doctor, "driver")], ids=["Keeper", "Server", "Driver", "doctor"])
def test_what_names_no_file_is_refused(driver, use, what):
    for path in (5, ["a"]):
        with pytest.raises(TypeError, match=f"{what}: expected a path as str, bytes or os.PathLike"):
            use(path)
    for path in (b"a\0b", pathlib.Path("a\0b")):
        with pytest.raises(errors.InvalidArgument, match="NUL"):
            use(path)


def with_a_fence(use):
    with vs.FencePool() as fences, fences.new() as fence:
        use(fence)


def with_memory(use):
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        use(memory)


@pytest.mark.parametrize("number", [-1, 1 << 64, 1 << 70])
@pytest.mark.parametrize("name, use", [
    ("nbytes", lambda pool, n: vs.Allocation(nbytes=n, host_node=0)),
    ("nbytes", lambda pool, n: vs.restorable(nbytes=n, host_node=0)),
    ("nbytes", lambda pool, n: vs.adopt(4096, n)),
    ("ptr", lambda pool, n: vs.adopt(n, 4096)),
    ("cap", lambda pool, n: vs.Pool(cap=n)),
    ("first_segment", lambda pool, n: vs.Pool(first_segment=n)),
    ("max_segment", lambda pool, n: vs.Pool(max_segment=n)),
    ("ptr", lambda pool, n: pool.find(n)),
    ("keep", lambda pool, n: pool.trim(n)),
    ("offset", lambda pool, n: with_memory(lambda memory: memory.array(1, "int8", n))),
    ("value", lambda pool, n: with_a_fence(lambda fence: fence.wait(n))),
    ("value", lambda pool, n: with_a_fence(lambda fence: fence.wait(0, n))),
    ("value", lambda pool, n: with_a_fence(lambda fence: fence.signal(n))),
    ("value", lambda pool, n: with_a_fence(lambda fence: fence.signal(0, n))),
    ("value", lambda pool, n: with_a_fence(lambda fence: vs.meet([fence], [], 0, n))),
], ids=["Allocation", "restorable", "adopt's size", "adopt", "cap", "first_segment", "max_segment",
        "find", "trim", "array", "wait", "stream's wait", "signal", "stream's signal", "meet"])
def test_a_number_that_does_not_fit_is_named(pool, name, use, number):
    with pytest.raises(ValueError, match=rf"{name} is {number}; expected 0 to 2\*\*64 - 1"):
        use(pool, number)


def test_a_bool_that_stands_for_a_value_is_none(pool):
    for use in (lambda fence: fence.signal(True), lambda fence: fence.wait(0, False)):
        with pytest.raises(TypeError, match="value: expected an int, not a bool"):
            with_a_fence(use)


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1, 1 << 70])
@pytest.mark.parametrize("name, use", [
    ("device", lambda n: vs.Pool(device=n)), ("host_node", lambda n: vs.Pool(host_node=n)),
    ("host_node", lambda n: vs.Allocation(nbytes=1, host_node=n)),
    ("host_node", lambda n: vs.RingHome(host_node=n))],
    ids=["device", "Pool", "Allocation", "RingHome"])
def test_an_ordinal_that_does_not_fit_is_named(driver, name, use, number):
    with pytest.raises(ValueError, match=rf"{name} is {number}; expected -2\*\*31 to 2\*\*31 - 1"):
        use(number)


def test_what_stands_for_a_number_is_one(pool):
    numpy = pytest.importorskip("numpy")
    with vs.Allocation(nbytes=numpy.int64(4096), host_node=0) as memory:
        assert memory.nbytes == 4096
    with pytest.raises(ValueError, match="nbytes is -1; expected 0 to"):
        vs.Allocation(nbytes=numpy.int64(-1), host_node=0)
    for none in (1.5, "4096", None):
        with pytest.raises(TypeError):
            vs.Allocation(nbytes=none, host_node=0)


OF_OTHER_LANGUAGES = r"::|vmmshare_\w+\(|\bk[A-Z]\w+"


def add_to_a_fence_without_kernels():
    with vs.Pool(0) as pool, pool.empty(vs.FENCE_BYTES, "uint8") as array:
        fences = vs.FenceArray(array)
        fences.clear()
        fences[0].add(0)


def connect_to_a_share_that_nobody_kept():
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        vs.connect(str(vs.serve(memory)))


def open_a_ticket_of_ones_own():
    with vs.FencePool() as own, own.new() as fence:
        own.open(fence.ticket())


def make_a_fence_in_a_pool_of_others():
    with vs.FencePool() as own, vs.serve(own) as share:
        with vs.connect_fences(str(share)) as theirs:
            theirs.new()


def lease_of_ones_own(make):
    with make() as own:
        return own.recalled_in


def write_to_what_is_sealed(keeper):
    with vs.Allocation(nbytes=4096, host_node=0) as memory:
        vs.keeper.put("sealed", memory, seal=True, address=keeper.address)
    vs.keeper.attach("sealed", writable=True, address=keeper.address)


@pytest.mark.parametrize("use, error, says", [
    (lambda: vs.connect("not a text"), errors.InvalidArgument, "whole text of the share"),
    (lambda: vs.connect("vmmshare-pool:2:"), errors.InvalidArgument, "whole text of the share"),
    (lambda: vs.connect_restorable("not a text"), errors.InvalidArgument,
     "whole text of the share"),
    (lambda: vs.connect_fences("not a text"), errors.InvalidArgument, "whole text of the share"),
    (lambda: vs.connect_fences("\ud800"), errors.InvalidArgument, "no text of a share"),
    (lambda: vs.connect_fences(b"x"), TypeError, r"connect_fences\(\) takes the text of a share"),
    (lambda: lease_of_ones_own(lambda: vs.Allocation(nbytes=4096, host_node=0)),
     errors.FailedPrecondition, "no lease.*another process serves and this one opened"),
    (lambda: lease_of_ones_own(lambda: vs.restorable(nbytes=4096, host_node=0)),
     errors.FailedPrecondition, "no lease.*another process serves and this one opened"),
    (open_a_ticket_of_ones_own, errors.FailedPrecondition,
     "this process's own.*another process serves and this one opened"),
    (make_a_fence_in_a_pool_of_others, errors.FailedPrecondition, "that this process created"),
    (add_to_a_fence_without_kernels, errors.FailedPrecondition, "kernels=True"),
    (lambda: vs.Server(directory="here"), errors.InvalidArgument, "expected its absolute path"),
    (lambda: vs.Keeper("keeper"), errors.InvalidArgument, "expected its absolute path"),
    (lambda: vs.Driver("/none.so"), errors.NotFound, "none.so.*what the message names is there"),
    (connect_to_a_share_that_nobody_kept, errors.NotFound, "dropped.* keep its Share"),
], ids=["text", "short text", "restorable's text", "fences' text", "fences' surrogate",
        "fences' bytes", "lease", "restorable's lease", "own ticket", "new fence", "kernels",
        "relative folder", "relative address", "no driver", "dropped share"])
def test_a_message_names_what_python_has(cuda, use, error, says):
    with pytest.raises(error, match=says) as raised:
        use()
    assert not re.search(OF_OTHER_LANGUAGES, str(raised.value))


def test_a_message_of_the_keepers_names_what_python_has(keeper):
    with pytest.raises(errors.FailedPrecondition, match="reading only") as raised:
        write_to_what_is_sealed(keeper)
    assert not re.search(OF_OTHER_LANGUAGES, str(raised.value))


@pytest.mark.parametrize("name, value, expected", [
    ("VMMSHARE_HOST_MEMORY", "foo", "bytes, or such as 512M"),
    ("VMMSHARE_HOST_INSTANCE", "a b", "1 to 32 letters"),
    ("VMMSHARE_HOST_INSTANCE", "a" * 33, "1 to 32 letters"),
    ("VMMSHARE_HOST_VERSION", "9.0", "a version from 12.0"),
    ("VMMSHARE_HOST_FAIL", "cuMemMap", "rules such as"),
])
def test_a_setting_of_the_host_driver_that_cannot_be_is_an_error(name, value, expected):
    done = subprocess.run(
        [sys.executable, "-B", "-c", "import os, vmmshare.testing as t, vmmshare.errors as e\n"
         "try: t.use_host_driver()\n"
         "except e.InvalidArgument as why: print(why, why.remedy, sep='|')\n"
         f"del os.environ['{name}']; t.use_host_driver(); print('goes on')"],
        env={**os.environ, name: value}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said, remedy = done.stdout.splitlines()[0].split("|")
    assert f"the environment has {name}={value}; expected {expected}" in said
    assert remedy == "Correct that variable, or unset it"
    assert done.stdout.endswith("goes on\n")


def test_a_shape_that_cannot_be_is_named(pool):
    with pytest.raises(ValueError, match=r"the shape \(3, -1\) has a length below 0"):
        pool.empty((3, -1), "int8")


def test_doctor(driver):
    report = vs.doctor(vmmshare.testing.host_driver())
    assert report["driver"]["host_memory"] is True and len(report["devices"]) == 2
    assert vs.doctor("/nowhere/libcuda.so")["driver"]["error"]["code"] == "NOT_FOUND"


def test_doctor_prints_as_the_tool_does(driver):
    report = vs.doctor("/nowhere/libcuda.so")  # Counts nothing that changes meanwhile.
    printed = subprocess.run([sys.executable, "-m", "vmmshare", "doctor",
                              "--driver=/nowhere/libcuda.so"], capture_output=True, text=True)
    assert str(report) == printed.stdout and printed.stdout.startswith("driver:")
    again = pickle.loads(pickle.dumps(report))
    assert json.loads(json.dumps(report)) == again == report and str(again) == str(report)


@pytest.mark.parametrize("words, code", [
    (["--version"], 0), (["--help"], 0), ([], 2), (["nothing"], 2),
    (["doctor", f"--driver={vmmshare.testing.host_driver()}"], 0)])
def test_the_command(words, code):
    done = subprocess.run([sys.executable, "-m", "vmmshare", *words], capture_output=True,
                          text=True)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("words, code", [([b"\xff"], 2), (["doctor", b"--driver=/nowhere/\xff"], 1)])
def test_the_command_takes_words_as_the_system_has_them(words, code):
    """A file's name need be no UTF-8."""
    done = subprocess.run([sys.executable, "-m", "vmmshare", *words], capture_output=True)
    assert done.returncode == code and b"Traceback" not in done.stderr, done.stderr
    assert b"\xff" in done.stderr  # It is named.


@pytest.mark.parametrize("words", [["--driver=host"], ["--driver", "host"]])
def test_the_command_finds_the_packages_host_memory_driver(words, monkeypatch):
    for named in ("", "/nowhere/driver.so"):  # What is named goes before it.
        monkeypatch.setenv("VMMSHARE_HOSTDRIVER", named)
        done = subprocess.run([sys.executable, "-m", "vmmshare", "doctor", "--json", *words],
                              capture_output=True, text=True)
        driver = json.loads(done.stdout)["driver"]
        assert "error" in driver if named else driver["host_memory"] is True


def test_the_command_prints_json():
    path = vmmshare.testing.host_driver()
    done = subprocess.run([sys.executable, "-m", "vmmshare", "doctor", "--json",
                           f"--driver={path}"], capture_output=True, text=True)
    assert json.loads(done.stdout)["driver"]["host_memory"] is True


def test_a_message_is_a_line_whatever_is_in_a_name(driver):
    with pytest.raises(vs.errors.NotFound) as why:
        vs.Keeper("/nonexistent\n\x1b[31m/kept")
    assert "/nonexistent\\x0a\\x1b[31m" in str(why.value)
    assert str(why.value).isprintable()


def test_too_many_bytes_for_the_memory_are_a_memory_error(remote):
    """Not a TypeError, as of what is not like bytes. A copy of these is asked for, and cannot be had."""
    ticket = memoryview(np.broadcast_to(np.zeros(1, "uint8"), 1 << 60))
    with pytest.raises(MemoryError):
        remote.open_all(ticket)
    with pytest.raises(TypeError):
        remote.open_all([ticket])
