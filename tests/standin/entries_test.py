#!/usr/bin/env python3
"""Each function that the host-memory driver exports refuses zeros.

usage: entries_test.py DRIVER

Those that vmmshare itself calls are called alike in tests/conformance; here are the others
too, which programs of others call.
"""

import ctypes
import subprocess
import sys
import unittest

DRIVER = sys.argv[1]
SUCCESS, NOT_INITIALIZED, NVML_INVALID_ARGUMENT = 0, 3, 2
ANY_TIME = {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString",
            "cuGetProcAddress", "cuGetProcAddress_v2", "nvmlInit_v2", "nvmlErrorString",
            "nvmlShutdown"}
# To these, zeros are nothing to do where no context is current.
TAKE_ZEROS = {"cuCtxSetCurrent", "cuDevicePrimaryCtxReset_v2", "cuMemFree_v2", "cuMemFreeHost"}


def exported():
    lines = subprocess.run(["nm", "-D", "--defined-only", DRIVER], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines}
    return sorted(name for name in names if name.startswith(("cu", "nvml")))


def with_zeros(library, name):
    function = getattr(library, name)
    function.restype = ctypes.c_int
    # More than any takes, of which it looks at its own.
    return function(*[ctypes.c_void_p(0)] * 12)


class Entries(unittest.TestCase):
    def test_refuse_zeros_before_and_after_init(self):
        library, names = ctypes.CDLL(DRIVER), set(exported()) - ANY_TIME
        self.assertGreater(len(names), 120)
        for name in sorted(names):
            with self.subTest(name):
                self.assertEqual(with_zeros(library, name),
                                 NVML_INVALID_ARGUMENT if name.startswith("nvml")
                                 else NOT_INITIALIZED)
        self.assertEqual(library.cuInit(0), SUCCESS)
        self.assertEqual(library.nvmlInit_v2(), SUCCESS)
        succeeded = {name for name in sorted(names) if with_zeros(library, name) == SUCCESS}
        self.assertEqual(succeeded, TAKE_ZEROS)
        self.assertNotEqual(with_zeros(library, "cuGetProcAddress"), SUCCESS)
        self.assertNotEqual(with_zeros(library, "cuGetProcAddress_v2"), SUCCESS)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
