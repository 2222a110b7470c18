"""What the examples of this folder have in common."""

import argparse
import importlib
import multiprocessing
import sys

import vmmshare as vs

SKIPPED = 77  # The exit status of an example that has not what it needs.
_in_others: list = []  # What a process that elsewhere() starts does first.


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def arguments(text, *flags):
    """The flags of the command line; --help prints `text`."""
    parser = argparse.ArgumentParser(description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def library(name, package):
    """The module `name`. Where it cannot be imported the example is skipped."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # Without its CUDA or MPI a library raises what it likes.
        why = str(error).partition("\n")[0]
        skip(f"{name} cannot be imported ({why}): pip install {package}")


def gpu():
    """Returns where there is a GPU. The example is skipped where there is none."""
    try:
        vs.devices()
    except vs.errors.VmmshareError as error:
        skip(f"no GPU ({error})")


def host_driver():
    """From now on this process uses the host-memory driver, which needs no GPU."""
    import vmmshare.testing
    vmmshare.testing.use_host_driver()
    _in_others[:] = [host_driver]


def elsewhere(work, *values):
    """What work(*values) returns in another process, which has two minutes for it."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, initializer=_in_others[0] if _in_others else None) as other:
        result = other.apply_async(work, values).get(timeout=120)
        other.close()
        other.join()
    return result
