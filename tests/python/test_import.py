"""Importing the package does nothing."""

import glob
import pathlib
import platform
import subprocess
import sys

import pytest

import vmmshare

USE = {"torch": "share(None)", "cupy": "allocator(None)", "jax": "array(None)",
       "numba": "array(None)", "cuda_core": "buffer(None)",
       "rmm": "memory_resource(None)"}


def run(code, *, env=None):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, env=env)


def test_it_loads_no_driver_and_starts_no_thread():
    done = run("import os, vmmshare\n"
               "assert len(os.listdir('/proc/self/task')) == 1\n"
               "maps = open('/proc/self/maps').read()\n"
               "assert 'libcuda' not in maps and 'hostdriver' not in maps\n"
               "assert not any(os.readlink(f'/proc/self/fd/{f}').startswith('/dev/nvidia')\n"
               "               for f in os.listdir('/proc/self/fd')\n"
               "               if os.path.exists(f'/proc/self/fd/{f}'))\n")
    assert done.returncode == 0, done.stderr


def test_it_imports_no_other_package():
    done = run("import sys, vmmshare\n"
               "print(sorted({m.split('.')[0] for m in sys.modules} &"
               " {'numpy', 'torch', 'cupy', 'jax', 'numba', 'cuda', 'pytest'}))")
    assert done.stdout.strip() == "[]", done.stderr


def test_a_module_is_loaded_when_it_is_used_and_named_before():
    done = run("import sys, vmmshare as vs\n"
               "named = [name for name in ('testing', 'weights', 'torch') if name in dir(vs)]\n"
               "print(named, 'vmmshare.testing' in sys.modules, vs.testing.__name__)")
    assert done.stdout.split() == ["['testing',", "'weights',", "'torch']", "False",
                                   "vmmshare.testing"], done.stderr


@pytest.mark.parametrize("name", USE)
def test_adapters_import_without_their_library(name):
    done = run(f"import vmmshare.{name}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", USE)
def test_a_missing_library_is_named(name):
    library = {"cuda_core": "cuda.core"}.get(name, name)
    done = run(f"import sys; sys.modules['{library.split('.')[0]}'] = None\n"
               f"import vmmshare.{name} as adapter\n"
               f"try: adapter.{USE[name]}\n"
               "except ImportError as error: print(error)")
    assert f"needs {library}" in done.stdout, done.stderr


def test_modules_are_imported_when_they_are_used():
    names = [*USE, "broker", "job", "keeper", "weights"]
    done = run("import sys, vmmshare as vs\n"
               f"names = {names!r}\n"
               "print(any(f'vmmshare.{name}' in sys.modules for name in names))\n"
               "print(all(getattr(vs, name).__name__ == f'vmmshare.{name}' for name in names))\n")
    assert done.stdout.split() == ["False", "True"], done.stderr
    with pytest.raises(AttributeError, match="nothing"):
        vmmshare.nothing


def test_a_job_of_torch_without_torch():
    done = run("import sys; sys.modules['torch'] = None\n"
               "import vmmshare.job\n"
               "try: vmmshare.job.torch_distributed()\n"
               "except ImportError as error: print(error)")
    assert "needs torch: pip install" in done.stdout, done.stderr


def test_a_driver_that_is_missing_is_one_line_with_a_remedy():
    done = run("import vmmshare as vs\n"
               "try: vs.Driver('/nowhere/libcuda.so.1')\n"
               "except vs.errors.VmmshareError as error:\n"
               "    assert error.remedy and '\\n' not in str(error)\n"
               "    print(error.code)\n")
    assert done.stdout.strip() == "NOT_FOUND", done.stderr


def test_objects_may_be_left_to_the_interpreters_end():
    done = run("import vmmshare as vs, vmmshare.testing as t, numpy as np\n"
               "t.use_host_driver()\n"
               "pool = vs.Pool(host_node=0); share = vs.serve(pool)\n"
               "theirs = vs.connect(str(share))\n"
               "own = pool.empty(3, 'int8'); other = theirs.open(own.ticket())\n"
               "view = np.from_dlpack(other); fences = vs.FencePool(); fence = fences.new()\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wait", [
    "vs.on_recall(theirs, print)", "later(lambda: fence.wait(1, timeout=None))",
    "later(lambda: pool.wait_returned(timeout=None))"])
def test_threads_may_wait_at_the_interpreters_end(wait):
    done = run("import vmmshare as vs, vmmshare.testing as t, threading, time\n"
               "t.use_host_driver()\n"
               "pool = vs.Pool(host_node=0); share = vs.serve(pool)\n"
               "theirs = vs.connect(str(share)); own = pool.empty(3, 'int8')\n"
               "other = theirs.open(own.ticket()); fence = vs.FencePool().new()\n"
               "later = lambda call: threading.Thread(target=call, daemon=True).start()\n"
               f"{wait}\n"
               "time.sleep(0.1)\n")
    assert (done.returncode, done.stderr) == (0, "")


# What is called back sleeps, on a daemon thread, while the interpreter ends.
RESTORE = ("memory = vs.restorable(nbytes=4096, host_node=0); memory.release()\n"
           "later(lambda: memory.restore(fill=lambda ptr, nbytes: sleep()))\n")
SYMMETRIC = ("import types\n"
             "ranks = types.SimpleNamespace(rank=0, size=2, put=lambda key, value: None,\n"
             "                              fence=lambda seconds: sleep(), get=None)\n"
             "later(lambda: vs.SymmetricMemory(0, 4096, ranks))\n")
WEIGHTS = ("import json, os, struct, tempfile\n"
           "import vmmshare._core as core\n"
           "size = 64 << 20\n"
           "header = json.dumps({'a': {'dtype': 'U8', 'shape': [size],\n"
           "                           'data_offsets': [0, size]}}).encode()\n"
           "file = tempfile.NamedTemporaryFile(suffix='.safetensors')\n"
           "file.write(struct.pack('<Q', len(header)) + header + bytes(size)); file.flush()\n"
           "layout = core._WeightsLayout('x')\n"
           "reads = layout.add_files([core._Safetensors(os.fsencode(file.name))], [file.name],\n"
           "                         None, None)\n"
           "memory = vs.Allocation(nbytes=layout.nbytes, host_node=0)\n"
           "writer = core._WeightsWriter(memory, layout)\n"
           "later(lambda: writer.read_files([os.fsencode(file.name)], reads, 1,\n"
           "                                lambda done, total: sleep()))\n")


@pytest.mark.parametrize("begin", [RESTORE, SYMMETRIC, WEIGHTS])
def test_what_is_called_back_may_be_under_way_at_the_interpreters_end(begin):
    done = run("import vmmshare as vs, vmmshare.testing as t, threading, time\n"
               "t.use_host_driver()\n"
               "called = threading.Event()\n"
               "def sleep():\n"
               "    called.set()\n"
               "    while True: time.sleep(0.005)\n"
               "later = lambda call: threading.Thread(target=call, daemon=True).start()\n"
               f"{begin}"
               "class Slow:\n"
               "    def __del__(self, sleep=time.sleep): sleep(0.3)\n"
               "slow = Slow()\n"
               "assert called.wait(30)\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_types_are_in_stubs():
    folder = pathlib.Path(vmmshare.__file__).parent
    stub = (folder / "_core.pyi").read_text()
    for name in vmmshare.__all__:
        what = getattr(vmmshare, name)
        if isinstance(what, type):
            assert what.__doc__ and (what.__module__ != "vmmshare._core" or
                                     f"class {name}" in stub)
    assert (folder / "py.typed").exists()


def test_everything_has_a_docstring():
    missing = [f"{name}.{member}" for name in vmmshare.__all__
               if isinstance(getattr(vmmshare, name), type)
               for member, value in vars(getattr(vmmshare, name)).items()
               if callable(value) and not member.startswith("_") and not value.__doc__]
    assert missing == []


def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on():
    done = run("try: import _interpreters as interpreters\n"
               "except ImportError:\n"
               "    try: import _xxsubinterpreters as interpreters\n"
               "    except ImportError: print('none'); raise SystemExit\n"
               "import vmmshare as vs, vmmshare.testing as t, os\n"
               "t.use_host_driver()\n"
               "pool = vs.Pool(host_node=0); pool.empty(3, 'int8').close()\n"
               "told, tell = os.pipe()\n"
               "code = ('import os\\n'\n"
               "        'try: import vmmshare\\n'\n"
               "        'except ImportError as why: os.write(%d, str(why).encode())\\n' % tell)\n"
               "other = interpreters.create()\n"
               "interpreters.run_string(other, code)\n"
               "os.close(tell); print(os.read(told, 1000).decode())\n"
               "pool.empty(3, 'int8').close()\n"
               "interpreters.destroy(other)\n"
               "pool.empty(3, 'int8').close(); print('goes on')\n")
    if done.stdout == "none\n":
        pytest.skip("this Python has no module that makes interpreters")
    assert done.returncode == 0, done.stderr
    why, goes_on = done.stdout.splitlines()
    assert goes_on == "goes on" and ("main interpreter" in why or "subinterpreter" in why)


SHARES = ("import vmmshare as vs, vmmshare.testing as t, numpy as np\n"
          "t.use_host_driver()\n"
          "pool = vs.Pool(host_node=0); share = vs.serve(pool)\n"
          "own = pool.empty(3, 'int8'); np.from_dlpack(own)[:] = 7\n"
          "theirs = vs.connect(str(share)).open(own.ticket())\n"
          "assert np.from_dlpack(theirs).tolist() == [7, 7, 7]\n"
          "try: vs.connect('vmmp1:nonsense')\n"
          "except vs.errors.InvalidArgument as error: print(error.code)\n")


@pytest.mark.parametrize("first", ["the other", "vmmshare"])
def test_beside_another_library_with_abseil(first):
    # Of this machine's own kind: a cross compiler's libraries lie beside them.
    own = f"/usr/lib/{platform.machine()}-linux-gnu"
    others = glob.glob(f"{own}/libabsl_status.so.*") + glob.glob(
        f"{own}/libabsl_synchronization.so.*")
    if not others:
        pytest.skip("this machine has no other Abseil")
    load = "import ctypes\n" + "".join(f"ctypes.CDLL({one!r}, mode=ctypes.RTLD_GLOBAL)\n"
                                       for one in others)
    copies = ("print(len({line.split()[-1] for line in open('/proc/self/maps')"
              " if 'libabsl_base' in line}))\n")
    code = load + SHARES if first == "the other" else "import vmmshare\n" + load + SHARES
    done = run(code + copies)
    assert done.stdout.split() == ["INVALID_ARGUMENT", "2"], done.stdout + done.stderr
