"""The examples of docs/examples/python that stand for themselves, each for an adapter.

On the GPU of this machine, where there is one and the library is installed; otherwise they
say what is missing, and the test is skipped by that. Some run without a GPU too.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from test_examples import EXAMPLES, machine, run

# By its name: what it imports, and its last line.
SCRIPTS = {
    "cuda_core_buffer.py": ("cuda.core", "sum 523776"),
    "cuda_core_handles.py": ("cuda.core", "sum there 4194304, here after it wrote 8388608"),
    "cupy_arrays.py": ("cupy", "sum 549755289600"),
    "devices.py": ("", r"\d+: .*, GPU-.*"),
    "jax_array.py": ("jax", "sum 523776"),
    "job_mpi.py": ("mpi4py.MPI", "rank 0 of 1, device 0: maps rank 0, and reads its number there"),
    "job_torch.py": ("torch", "2 ranks"),
    "numba_kernel.py": ("numba.cuda", "sum of the doubled 1047552"),
    "rmm_resource.py": ("rmm", "from a DeviceBuffer"),
    "torch_queue.py": ("torch", "sum 2097152"),
    "torch_state_dict.py": ("torch", r"4 tensors, \d+ bytes sent; the outputs are equal"),
}
# Of test_examples, and what they have in common.
OTHERS = {"follow_weights.py", "hello.py", "make_data.py", "run_kernel.py", "sleep_and_wake.py", "support.py",
          "use_data.py"}
ON_THE_HOST = {
    ("devices.py",): r"1: .*host-memory device 1, GPU-.*",
    ("devices.py", "--device", "1"): r"<.* float32 \(256, 1024\), host> .*, sum 262144",
    ("jax_array.py",): "sum 523776",
    ("job_mpi.py",): "rank 0 of 1, device 0: maps rank 0",
}


def last_line(done):
    """The test is skipped as the script was, which says why in its only line."""
    lines = done.stdout.splitlines()
    if done.returncode == 77:
        assert len(lines) == 1 and lines[0].startswith("skipped: "), (lines, done.stderr)
        name = os.path.basename(done.args[1])
        pytest.skip(f"{name}: {lines[0].removeprefix('skipped: ')}")
    assert done.returncode == 0, (lines, done.stderr)
    return lines[-1]


def test_each_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SCRIPTS) | OTHERS


@pytest.mark.parametrize("name", SCRIPTS)
def test_on_a_gpu(name):
    assert re.fullmatch(SCRIPTS[name][1], last_line(run(name, env=os.environ)))


@pytest.mark.parametrize("words", ON_THE_HOST, ids=" ".join)
def test_on_the_host_memory_driver(machine, words):
    done = run(*words, "--host", env=machine)
    assert re.fullmatch(ON_THE_HOST[words], last_line(done))


def test_a_device_is_chosen_by_its_uuid(machine):
    uuid = last_line(run("devices.py", "--host", env=machine)).split()[-1]
    assert "sum 262144" in last_line(run("devices.py", "--host", "--device", uuid, env=machine))
    done = run("devices.py", "--host", "--device", "GPU-none", env=machine)
    assert done.returncode == 2 and "there is no device GPU-none" in done.stderr


def test_ranks_of_mpirun_map_each_other(machine):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun here: install openmpi-bin")
    done = subprocess.run(
        [mpirun, "-n", "3", "--oversubscribe", sys.executable, "-B", str(EXAMPLES / "job_mpi.py"),
         "--host"],
        env={**machine, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        capture_output=True, text=True, timeout=150)
    if done.returncode == 77:
        pytest.skip(f"job_mpi.py: {done.stdout.splitlines()[0].removeprefix('skipped: ')}")
    assert done.returncode == 0, done.stderr
    # mpirun may put one rank's line into another's.
    assert sorted(re.findall(r"rank \d of 3, device \d: maps rank \d", done.stdout)) == [
        "rank 0 of 3, device 0: maps rank 1", "rank 1 of 3, device 1: maps rank 2",
        "rank 2 of 3, device 0: maps rank 0"]


@pytest.mark.parametrize("name", [name for name in SCRIPTS if SCRIPTS[name][0]])
def test_a_missing_library_is_one_line(name):
    library = SCRIPTS[name][0]
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy, sys; sys.modules['{library.split('.')[0]}'] = None; "
         f"sys.argv = ['{name}']; runpy.run_path('{EXAMPLES / name}', run_name='__main__')"],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)}, capture_output=True, text=True,
        timeout=60)
    assert (done.returncode, done.stderr) == (77, "")
    assert re.fullmatch(rf"skipped: {library} cannot be imported \(.*\): pip install .+\n",
                        done.stdout)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_missing_gpu_is_one_line(name, tmp_path):
    """With libraries that are there, and are empty."""
    for file in ("cuda/core.py", "cupy.py", "jax.py", "mpi4py/MPI.py", "numba/cuda.py", "rmm.py",
                 "torch.py", "cuda/__init__.py", "mpi4py/__init__.py", "numba/__init__.py"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("Device = None\n")
    done = run(name, env={**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stderr) == (77, "")
    assert re.fullmatch(r"skipped: no GPU \(.+\)\n", done.stdout)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_it_shows(name):
    done = run(name, "--help", env=os.environ)
    assert done.returncode == 0 and "usage: " + name in done.stdout, done.stderr
    assert (EXAMPLES / name).read_text().splitlines()[0].strip('"') in done.stdout


def test_they_use_the_package_as_its_types_say():
    """What connect() returns is one of two, which no type tells."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "mypy", "--check-untyped-defs", "--ignore-missing-imports",
         "--disable-error-code=union-attr", "--disable-error-code=arg-type",
         "--cache-dir=/dev/null", *(str(EXAMPLES / name) for name in {*SCRIPTS, *OTHERS})],
        capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout
