"""The examples of docs/examples/python, without a GPU."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "python"
SUM = "sum 549755289600, from"


def run(name, *words, env):
    return subprocess.run([sys.executable, str(EXAMPLES / name), *words], env=env,
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")
                                        if p.name != "support.py"))
def test_each_says_by_help_what_it_does(name):
    said = run(name, "--help", env=dict(os.environ))
    first = (EXAMPLES / name).read_text().split('"""')[1].splitlines()[0]
    assert said.returncode == 0 and first in said.stdout, said


@pytest.fixture
def machine(tmp_path):
    """A host-memory machine, and folders, of this test's own."""
    runtime = pathlib.Path(f"/tmp/vmmshare-py-{os.getpid()}-{time.monotonic_ns() % 10**9}")
    runtime.mkdir(mode=0o700)
    yield {**os.environ, "VMMSHARE_HOST_INSTANCE": runtime.name, "XDG_RUNTIME_DIR": str(runtime)}
    subprocess.run(["rm", "-r", str(runtime)], check=True)


@pytest.fixture
def maker(machine, tmp_path):
    def start(*flags):
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "make_data.py"), str(tmp_path / "file"), "--host",
             *flags], env=machine, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert "Enter" in process.stdout.readline()
        return process
    return start


def test_the_second_works_on_what_the_first_made(machine, maker, tmp_path):
    first = maker()
    done = run("use_data.py", str(tmp_path / "file"), "--host", env=machine)
    assert (done.returncode, done.stdout) == (0, f"{SUM} its maker\n"), done.stderr
    first.communicate("\n")
    assert first.returncode == 0


def test_processes_that_name_no_machine_are_on_one(machine):
    """As the two in two terminals: use_host_driver() gives none a machine of its own."""
    code = ("import os, vmmshare.testing; before = dict(os.environ); "
            "vmmshare.testing.use_host_driver(); print(before == dict(os.environ))")
    env = {name: value for name, value in machine.items() if name != "VMMSHARE_HOST_INSTANCE"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_first_has_gone(machine, maker, tmp_path):
    first = maker()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    done = run("use_data.py", str(tmp_path / "file"), "--host", env=machine)
    assert done.returncode == 1 and done.stdout.startswith("NOT_FOUND: "), done.stderr


def test_the_first_has_gone_and_the_keeper_has_it(machine, maker, tmp_path):
    keeper = subprocess.Popen([sys.executable, "-m", "vmmshare", "keep"], env=machine,
                              stdout=subprocess.DEVNULL)
    try:
        folder = pathlib.Path(machine["XDG_RUNTIME_DIR"], "vmmshare")
        deadline = time.monotonic() + 30
        while not (folder.exists() and list(folder.glob("keeper-*"))):
            assert keeper.poll() is None and time.monotonic() < deadline
        first = maker("--keep")
        first.send_signal(signal.SIGKILL)
        first.communicate()
        done = run("use_data.py", str(tmp_path / "file"), "--host", env=machine)
        assert (done.returncode, done.stdout) == (0, f"{SUM} the keeper\n"), done.stderr
    finally:
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(timeout=30) == 0


HELLO = {"Python": [sys.executable, str(EXAMPLES / "hello.py")],
         "C++": [os.environ.get("VMMSHARE_HELLO", "")],
         "C": [os.environ.get("VMMSHARE_HELLO_C", "")]}


@pytest.mark.parametrize("ours", HELLO)
def test_a_ticket_that_cannot_be_printed_is_an_error(machine, ours):
    if not HELLO[ours][0]:
        pytest.skip("VMMSHARE_HELLO and VMMSHARE_HELLO_C do not name the hello that is built")
    import vmmshare.testing
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*HELLO[ours], vmmshare.testing.host_driver()], env=machine, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode > 0 and done.stderr, done


@pytest.mark.parametrize("theirs", HELLO)
@pytest.mark.parametrize("ours", HELLO)
def test_hello_in_each_language(machine, ours, theirs):
    if not HELLO[ours][0] or not HELLO[theirs][0]:
        pytest.skip("VMMSHARE_HELLO and VMMSHARE_HELLO_C do not name the hello that is built")
    import vmmshare.testing
    driver = vmmshare.testing.host_driver()
    with subprocess.Popen([*HELLO[ours], driver], env=machine, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        lines = iter(owner.stdout.readline, "")
        ticket = next(line for line in lines if line.startswith("vmmshare:")).strip()
        opened, cut = (subprocess.run([*HELLO[theirs], driver, text], env=machine, text=True,
                                      capture_output=True, timeout=60)
                       for text in (ticket, ticket[:-1]))
        owner.communicate("\n", timeout=60)
    assert opened.returncode == 0 and opened.stdout.startswith("opened "), opened.stderr
    assert cut.returncode == 1 and "not a usable ticket" in cut.stderr
    assert owner.returncode == 0


def test_engines_follow_a_trainer(machine):
    done = run("follow_weights.py", "--host", env=machine)
    assert done.returncode == 0, done.stderr
    for engine in range(2):
        assert (f"engine {engine}: the last update was 5, and each that was seen was whole"
                in done.stdout)


def test_a_trainer_whose_engine_was_killed_fails(machine):
    """The first engine ends as after a kill, once it has said what it has to say."""
    one_killed = """
import runpy, subprocess, sys
class Engine(subprocess.Popen):
    killed = []
    def communicate(self, *words, **more):
        said = super().communicate(*words, **more)
        if "--engine" in self.args and not self.killed:
            self.killed.append(self)
            self.returncode = -9
        return said
subprocess.Popen = Engine
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", one_killed, str(EXAMPLES / "follow_weights.py"), "--host"],
                          env=machine, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "engine 1: the last update was 5" in done.stdout


def test_two_engines_sleep_and_wake(machine):
    done = run("sleep_and_wake.py", "--host", env=machine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "other: sum 3145728", "asleep: the device has the memory back",
        "awake: same address, sum 3145728", "other: awake: same address, sum 3145728"]


def test_the_first_lines_of_the_document(machine):
    """What docs/python.md shows first: for torch stands what takes the array as it is."""
    text = (EXAMPLES.parents[1] / "python.md").read_text()
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[:2]
    begin = "import vmmshare.testing; vmmshare.testing.use_host_driver()\n"
    owner = subprocess.Popen([sys.executable, "-u", "-c", begin + first + "input()"], env=machine,
                             text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    begin += ("import sys, types; text, ticket = sys.argv[1:]\n"
              "torch = types.SimpleNamespace(from_dlpack=lambda array: array)\n")
    opened = subprocess.run(
        [sys.executable, "-c", begin + second + "print(tensor, tensor.readonly)",
         *owner.stdout.readline().split()], env=machine, text=True, capture_output=True,
        timeout=60)
    owner.communicate("\n", timeout=60)
    assert "float16 (1024, 1024)" in opened.stdout and "True" in opened.stdout, opened.stderr
    assert owner.returncode == 0
