"""Makes an array, writes how to find it to a file, and waits for Enter.

usage: make_data.py FILE [--host] [--keep]

--host: without a GPU, in memory of the host. --keep: `vmmshare keep` holds it under the name
"example" too, so that it outlives this process.
"""

import json
import sys

import vmmshare as vs


def fill(array, host):
    """0, 1, 2... by whatever library is here."""
    if host:
        import numpy as np
        np.from_dlpack(array)[:] = np.arange(array.shape[0])
    else:
        import cupy

        import vmmshare.cupy
        vmmshare.cupy.array(array)[:] = cupy.arange(array.shape[0], dtype=array.dtype)
        cupy.cuda.get_current_stream().synchronize()


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return
    file, flags = sys.argv[1], sys.argv[2:]
    host = "--host" in flags
    if host:
        import vmmshare.testing
        vmmshare.testing.use_host_driver()
    memory = vs.Allocation(nbytes=4 << 20, host_node=0 if host else None)
    fill(memory.array(1 << 20, "float32"), host)
    if "--keep" in flags:
        keeper = vs.Keeper()
        keeper.put("example", memory)
        keeper.seal("example")
    share = vs.serve(memory)
    with open(file, "w") as out:
        json.dump({"text": str(share), "shape": [1 << 20], "dtype": "float32"}, out)
    print(f"{file} says where it is; Enter ends", flush=True)
    sys.stdin.readline()


main()
