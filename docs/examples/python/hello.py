"""Memory of one process, opened by another: the example of README, as docs/examples/hello.cc.

    python hello.py DRIVER            allocates 1 GiB, prints a ticket, waits for Enter
    python hello.py DRIVER TICKET     opens it in another process, read-only

DRIVER is "system", or the path of the host-memory driver.
"""

import sys

import vmmshare as vs


def share():
    # One process: 1 GiB of its GPU, and a ticket.
    memory = vs.Allocation(device=0, nbytes=1 << 30)
    share = vs.serve(memory)
    print(share, flush=True)
    input()


def open_it(ticket):
    # Another process: read-only.
    memory = vs.connect(ticket, timeout=10)
    array = memory.array((1 << 28,), "float32")
    print("opened", array)
    # torch.from_dlpack(array) is a tensor of it.


def main():
    name, *ticket = sys.argv[1:] or ["system"]
    if name == "--help":
        print(__doc__)
        return
    try:
        vs.set_driver(vs.Driver("" if name == "system" else name))
        if ticket:
            open_it(*ticket)
        else:
            share()
    except vs.errors.VmmshareError as error:
        sys.exit(f"{error.code}: {error}")


main()
