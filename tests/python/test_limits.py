"""How many may have what a server serves, and what is told to who comes then."""

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
                connect(str(share), timeout=2)


@SERVED
def test_more_than_by_default(driver, limit, make, connect):
    most = {"max_sessions": 32, "max_leases": 128}[limit]
    with vs.Server(**{limit: 2 * (most + 1)}) as server, make() as own, server.share(own) as share:
        opened = [connect(str(share), timeout=60) for _ in range(most + 1)]
        for one in opened:
            one.close()


@pytest.mark.parametrize("limit", ["max_sessions", "max_leases"])
@pytest.mark.parametrize("number", [0, 1 << 32, -1])
def test_a_limit_that_cannot_be_is_named(driver, limit, number):
    with pytest.raises(ValueError, match=f"{limit} is {number}; expected "):
        vs.Server(**{limit: number})
