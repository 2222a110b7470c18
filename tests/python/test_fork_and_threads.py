"""Forked children own nothing; threads share everything."""

import contextlib
import os
import threading
import time

import numpy as np
import pytest

import vmmshare as vs

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


def in_a_child(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
