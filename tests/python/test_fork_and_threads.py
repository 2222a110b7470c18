"""Forked children own nothing; threads share everything."""

import contextlib
import ctypes
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import typing

import numpy as np
import pytest

import vmmshare as vs
from forks import in_a_child

USES = {
    "empty": lambda pool, array, remote: pool.empty(3, "int8"),
    "ticket": lambda pool, array, remote: array.ticket(),
    "statistics": lambda pool, array, remote: pool.statistics(),
    "open": lambda pool, array, remote: remote.open(b""),
    "check": lambda pool, array, remote: remote.check(),
    "devices": lambda pool, array, remote: vs.devices(),
    "pool": lambda pool, array, remote: vs.Pool(),
    "ptr": lambda pool, array, remote: array.ptr,
    "view": lambda pool, array, remote: array.view(1, "int8"),
    "dlpack": lambda pool, array, remote: np.from_dlpack(array),
}


@pytest.mark.parametrize("use", [name for name in USES if name != "open"])
def test_a_child_is_told(pool, remote, use):
    with pool.empty(3, "int8") as array:
        def work():
            with pytest.raises(vs.errors.FailedPrecondition, match="forked child"):
                USES[use](pool, array, remote)

        assert in_a_child(work) == 0


def test_a_child_gives_nothing_back(pool, remote):
    own = pool.empty(3, "int8")
    theirs = remote.open(own.ticket())
    view = np.from_dlpack(theirs)
    objects = [own, theirs, view]

    def work():
        nonlocal own, theirs, view
        del own, theirs, view
        objects.clear()

    assert in_a_child(work) == 0
    assert pool.statistics()["live_blocks"] == 1
    assert len(pool.leases()) == 1
    remote.check()
    del theirs, view, own
    objects.clear()


POINTER = ctypes.pythonapi.PyCapsule_GetPointer
POINTER.restype, POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
RENAME = ctypes.pythonapi.PyCapsule_SetName
RENAME.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor_versioned"  # A capsule keeps its name by the address.


def let_go_without_the_gil(array):
    """As a consumer of DLPack does on a thread of its own."""
    capsule = array.__dlpack__(max_version=(1, 0))
    managed = POINTER(capsule, b"dltensor_versioned")
    RENAME(capsule, USED)
    array.close()
    deleter = ctypes.c_void_p.from_address(managed + 16).value
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)


def test_a_child_lets_go_of_an_array_whatever_other_threads_let_go_of(pool):
    arrays, done, failures = [pool.empty(8, "int8")], threading.Event(), []

    def work():
        try:
            while not done.is_set():
                let_go_without_the_gil(pool.empty(8, "int8"))
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work) for _ in range(2)]
    for thread in running:
        thread.start()
    try:
        for _ in range(300):
            assert in_a_child(arrays.clear) == 0  # Ends: it waits for no lock that was taken.
    finally:
        done.set()
        for thread in running:
            thread.join()
    assert failures == []


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_share_a_pool(pool, remote, threads):
    failures = []

    def work(number):
        try:
            for i in range(100):
                with pool.empty(64, "uint8") as array:
                    np.from_dlpack(array)[:] = number
                    with remote.open(array.ticket()) as theirs:
                        assert (np.from_dlpack(theirs) == number).all()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []
    assert pool.leases() == []


@pytest.mark.parametrize("use", [
    lambda device, memory, share: device.ordinal, lambda device, memory, share: device.name,
    lambda device, memory, share: memory.ptr, lambda device, memory, share: memory.nbytes,
    lambda device, memory, share: str(share)])
def test_a_child_is_told_where_the_c_interface_has_no_error(driver, use):
    with vs.Allocation(nbytes=100, host_node=0) as memory, vs.serve(memory) as share:
        device = vs.devices()[0]

        def work():
            with pytest.raises(vs.errors.FailedPrecondition, match="forked child"):
                use(device, memory, share)

        assert in_a_child(work) == 0


def test_a_childs_log_may_have_what_is_the_parents(pool):
    """A logger or a debugger makes a repr() of all there is, in the middle of anything."""
    with vs.Allocation(nbytes=100, host_node=0) as memory, pool.empty(3, "int8") as array:
        device = vs.devices()[0]

        def work():
            for one, name in ((pool, "Pool"), (memory, "Allocation"), (array, "Array"),
                              (device, "Device")):
                assert repr(one) == f"<vmmshare.{name}, the parent's>"

        assert in_a_child(work) == 0


@pytest.mark.parametrize("make, use", [
    (lambda: vs.Pool(host_node=0), lambda made, pool: made.empty(4, "uint8")),
    (vs.Server, lambda made, pool: made.share(pool))], ids=["Pool.empty", "Server.share"])
def test_closing_while_other_threads_use_it(pool, make, use):
    current, failures, done = [make()], [], threading.Event()

    def work():
        while not done.is_set():
            try:
                use(current[0], pool).close()
            except vs.errors.FailedPrecondition:
                pass  # It was closed.
            except BaseException as error:
                failures.append(error)

    running = [threading.Thread(target=work) for _ in range(3)]
    for thread in running:
        thread.start()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        last, current[0] = current[0], make()
        time.sleep(0.001)
        last.close()
    done.set()
    for thread in running:
        thread.join()
    current[0].close()
    assert failures == []


def test_a_block_that_was_made_for_a_closed_pool_goes_back(driver):
    for _ in range(200):
        pool = vs.Pool(host_node=0)
        same, made = pool._kept(), threading.Barrier(2)

        def make():
            made.wait(60)
            with contextlib.suppress(vs.errors.FailedPrecondition):
                while True:
                    pool.empty(3, "int8").close()

        thread = threading.Thread(target=make)
        thread.start()
        made.wait(60)
        pool.close()
        thread.join()
        assert same.statistics()["live_blocks"] == 0


class OwnThread(typing.NamedTuple):
    name: str
    blocked: "set[int]"  # The signals that are not delivered to it.


def own_threads():
    """Of this process, by their numbers."""
    threads = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            mask = int(re.search(r"SigBlk:\s*([0-9a-f]+)", (task / "status").read_text()).group(1), 16)
            blocked = {number for number in range(1, 65) if mask >> (number - 1) & 1}
            threads[int(task.name)] = OwnThread((task / "comm").read_text().strip(), blocked)
    return threads


OF_FAULTS = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS,
             signal.SIGTRAP}


def test_threads_of_the_library_have_names_and_get_no_signals(driver):
    before = own_threads()
    with contextlib.ExitStack() as made:
        pool = made.enter_context(vs.Pool(host_node=0))
        share = made.enter_context(vs.serve(pool))
        remote = made.enter_context(vs.connect(str(share)))
        with pool.empty(3, "int8") as array, remote.open(array.ticket()):
            expected = {"vmmshare-accept", "vmmshare-serve", "vmmshare-recv"}
            until = time.monotonic() + 60
            while True:  # Each names itself. The server may have been there before.
                now = own_threads()
                new = [now[thread] for thread in now.keys() - before.keys()]
                named = all(one.name.startswith("vmmshare-") for one in new)
                if named and expected <= {one.name for one in now.values()}:
                    break
                assert time.monotonic() < until, now
                time.sleep(0.01)
            for one in new:
                assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= one.blocked, one
                assert not OF_FAULTS & one.blocked, one


def test_a_thread_that_waits_for_a_call_gets_no_signals_either(keeper):
    keeper.stop()

    def ask():
        with pytest.raises(vs.errors.DeadlineExceeded):
            vs.keeper.list(address=keeper.address, timeout=3)

    asking = threading.Thread(target=ask)
    asking.start()
    waits = []
    while asking.is_alive() and not waits:
        waits = [one for one in own_threads().values() if one.name == "vmmshare-wait"]
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= waits[0].blocked
    asking.join()
    keeper.go_on()


WAITS_FOR_A_SIGNAL = """
import os, signal
import vmmshare as vs, vmmshare.testing
vmmshare.testing.use_host_driver()
with vs.Pool(host_node=0) as pool, vs.serve(pool) as share, vs.connect(str(share)):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)  # Would end the process, in a thread that has it not blocked.
    assert signal.sigtimedwait({signal.SIGUSR1}, 60) is not None
"""


def test_a_program_waits_for_a_signal_that_it_blocked_after_threads_were_started(driver):
    subprocess.run([sys.executable, "-c", WAITS_FOR_A_SIGNAL], check=True, timeout=120)
