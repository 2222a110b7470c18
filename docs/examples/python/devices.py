"""The GPUs that this process sees, and an array on a chosen one.

    python devices.py                     lists them, and makes no context
    python devices.py --device 1          makes an array on one: a number, or a UUID as listed
    python devices.py --host              without a GPU: the host-memory driver's devices, and
                                          with --device an array in memory of the host

Nothing falls back to the host by itself: without a GPU and without --host it is skipped.
"""

import argparse

import support
import vmmshare as vs


def make_array(device, host):
    pool = vs.Pool(device, host_node=0 if host else None)
    array = pool.empty((256, 1024), "float32")
    if not host:
        return f"{array} on {device}, for torch.from_dlpack() and the like"
    numpy = support.library("numpy", "numpy")
    view = numpy.from_dlpack(array)
    view[:] = 1
    return f"{array} in memory of the host, sum {view.sum():.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="a number, or a UUID as listed")
    parser.add_argument("--host", action="store_true", help="without a GPU")
    asked = parser.parse_args()
    if asked.host:
        support.host_driver()
    else:
        support.gpu()
    devices = vs.devices()
    for device in devices:
        print(f"{device.ordinal}: {device.name}, {device.uuid}")
    if asked.device is not None:
        chosen = [one for one in devices if asked.device in (str(one.ordinal), one.uuid)]
        if not chosen:
            parser.error(f"there is no device {asked.device}")
        print(make_array(chosen[0], asked.host))


if __name__ == "__main__":
    main()
