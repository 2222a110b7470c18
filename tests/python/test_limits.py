"""How many may have what a server serves, and what is told to who comes then."""

import threading

import pytest

import vmmshare as vs

SERVED = pytest.mark.parametrize("limit, make, connect", [
    ("max_sessions", lambda: vs.Pool(host_node=0, first_segment=8 << 20), vs.connect),
    ("max_sessions", vs.FencePool, vs.connect_fences),
    ("max_leases", lambda: vs.Allocation(nbytes=4096, host_node=0), vs.connect),
], ids=["Pool", "FencePool", "Allocation"])


@SERVED
def test_a_server_has_the_limit_that_it_was_told(driver, limit, make, connect):
    with vs.Server(**{limit: 4}) as server, make() as own, server.share(own) as share:
        with connect(str(share)), connect(str(share)):  # A process has half of them.
            with pytest.raises(vs.errors.ResourceExhausted,
                               match=rf"has 2 .*, the limit of one process\. Raise {limit} .*"
                                     rf"in Python vmmshare\.Server\({limit}=\)"):
                connect(str(share), timeout=5)


@SERVED
def test_more_than_by_default(driver, limit, make, connect):
    most = {"max_sessions": 32, "max_leases": 128}[limit]
    with vs.Server(**{limit: 2 * (most + 1)}) as server, make() as own, server.share(own) as share:
        opened = [connect(str(share), timeout=60) for _ in range(most + 1)]
        for one in opened:
            one.close()


@SERVED
def test_who_waits_for_ever_has_the_next_place(driver, limit, make, connect):
    with vs.Server(**{limit: 4}) as server, make() as own, server.share(own) as share:
        with connect(str(share)), connect(str(share)) as second:
            leaves = threading.Timer(1.5, second.close)  # Longer than one round of asking.
            leaves.start()
            connect(str(share), timeout=None).close()
            leaves.join()


@pytest.mark.parametrize("keeper", [["--max-connections=2"]], indirect=True)
def test_who_waits_for_ever_has_the_keepers_next_place(keeper):
    with vs.Keeper(keeper.address) as first, vs.Keeper(keeper.address) as late:
        assert first.list() == []  # A process has half of them.
        leaves = threading.Timer(0.5, first.close)
        leaves.start()
        assert late.list(timeout=None) == []
        leaves.join()


@pytest.mark.parametrize("limit", ["max_sessions", "max_leases"])
@pytest.mark.parametrize("number", [0, 1 << 32, -1])
def test_a_limit_that_cannot_be_is_named(driver, limit, number):
    with pytest.raises(ValueError, match=f"{limit} is {number}; expected "):
        vs.Server(**{limit: number})
