"""cuda.core itself, unchanged, on the host-memory driver in libcuda's place."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

import vmmshare.testing

HANDLES = (pathlib.Path(__file__).resolve().parents[2]
           / "docs" / "examples" / "python" / "cuda_core_handles.py")


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not is_there("cuda.core") or not is_there("cuda.bindings.driver"),
                                reason="cuda-core or cuda-bindings is not installed here")

BEGIN = """
import multiprocessing
import numpy
from cuda.bindings import driver
from cuda.core import *

SIZE = 4096

def bytes_of(buffer):
    found = numpy.zeros(buffer.size, numpy.uint8)
    result, = driver.cuMemcpyDtoH(found.ctypes.data, int(buffer.handle), buffer.size)
    assert result == driver.CUresult.CUDA_SUCCESS, result
    return set(found.tolist())

def current():
    device = Device(0)
    device.set_current()
    return device, device.create_stream()
"""

SHARING = """
def other(pipe):
    device, stream = current()
    buffer, = pipe.recv()
    assert bytes_of(buffer) == {7}, bytes_of(buffer)
    buffer.fill(9, stream=stream)
    stream.sync()
    buffer.close(stream)
    stream.sync()
    pipe.send("done")

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    device, stream = current()
    pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(
        ipc_enabled=True, max_size=1 << 24))
    buffer = pool.allocate(SIZE, stream=stream)
    buffer.fill(7, stream=stream)
    stream.sync()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=other, args=(theirs,))
    process.start()
    ours.send((buffer,))
    assert ours.poll(60) and ours.recv() == "done"
    process.join(60)
    assert process.exitcode == 0
    assert bytes_of(buffer) == {9}, bytes_of(buffer)
    buffer.close(stream)
    pool.close()
"""

POOL = """
device, stream = current()
first, second = (device.allocate(SIZE, stream=stream) for _ in range(2))
first.fill(5, stream=stream)
second.copy_from(first, stream=stream)
stream.sync()
assert bytes_of(second) == {5}
first.close(stream)
second.close(stream)
stream.record().sync()
"""

VIRTUAL = """
device, stream = current()
resource = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions())
buffer = resource.allocate(4 << 20, stream=stream)
buffer.fill(3, stream=stream)
stream.sync()
assert bytes_of(buffer) == {3}
buffer.close()
"""


PINNED = """
device, stream = current()
pinned = LegacyPinnedMemoryResource().allocate(SIZE)
numpy.from_dlpack(pinned).view(numpy.uint8)[:] = 6
buffer = device.allocate(SIZE, stream=stream)
buffer.copy_from(pinned, stream=stream)
stream.sync()
assert bytes_of(buffer) == {6}
buffer.fill(b"\\x01\\x02", stream=stream)
stream.sync()
assert bytes_of(buffer) == {1, 2}
buffer.close(stream)
pinned.close()
"""


OURS = """
import vmmshare as vs
import vmmshare.cuda_core
device, stream = current()
pool = vs.Pool(0)
resource = vs.cuda_core.memory_resource(pool)
for way in ("dropped", "closed"):
    buffer = resource.allocate(SIZE, stream=stream)
    buffer.fill(3, stream=stream)
    stream.sync()
    assert bytes_of(buffer) == {3}
    assert pool.statistics()["live_blocks"] == 1
    if way == "closed":
        buffer.close(stream)
    del buffer
    assert pool.statistics()["live_blocks"] == 0
"""


def run(tmp_path, script):
    # Libraries that load libcuda by its name find a link of that name.
    (tmp_path / "libcuda.so.1").symlink_to(vmmshare.testing.host_driver())
    return subprocess.run(
        [sys.executable, "-B", script], capture_output=True, text=True, timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path),
             "VMMSHARE_HOST_INSTANCE": f"core-{uuid.uuid4().hex[:12]}"})


@pytest.mark.parametrize("part", ["SHARING", "POOL", "VIRTUAL", "PINNED", "OURS"])
def test_memory_of_cuda_core(tmp_path, part):
    script = tmp_path / "script.py"
    script.write_text(BEGIN + globals()[part])
    done = run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr, done.stderr


def test_handles_go_both_ways(tmp_path):
    """Ones that cuda.core wrote are read there through vmmshare's descriptor, and its twos here."""
    done = run(tmp_path, HANDLES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "sum there 4194304, here after it wrote 8388608\n", done.stderr
