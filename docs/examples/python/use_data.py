"""Opens the array of make_data.py and works on it: prints its sum.

usage: use_data.py FILE [--host]

When make_data.py has ended, its memory is gone, but for what the keeper holds.
"""

import json
import sys

import vmmshare as vs


def open_memory(text):
    try:
        return vs.connect(text, timeout=10), "its maker"
    except vs.errors.NotFound as gone:
        try:
            return vs.Keeper(timeout=1).attach("example"), "the keeper"
        except vs.errors.NotFound:
            raise gone from None


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    file, flags = sys.argv[1], sys.argv[2:]
    host = "--host" in flags
    if host:
        import vmmshare.testing
        vmmshare.testing.use_host_driver()
    with open(file) as told:
        data = json.load(told)
    try:
        memory, where = open_memory(data["text"])
    except vs.errors.NotFound as gone:
        print(f"{gone.code}: {gone}")
        return 1
    array = memory.array(data["shape"], data["dtype"])
    if host:
        import numpy
        view = numpy.from_dlpack(array)
    else:
        import vmmshare.cupy
        view = vmmshare.cupy.array(array)
    total = float(view.sum(dtype="float64"))
    print(f"sum {total:.0f}, from {where}")
    return 0


sys.exit(main())
