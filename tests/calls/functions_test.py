#!/usr/bin/env python3
"""Each function of the C interface is called at random, or is named here with the reason why not.

usage: functions_test.py REPOSITORY
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])

# Whose names begin so, and why they are not called at random.
LEFT_OUT = {
    "vmmshare_symmetric_": "collective: tests/job and tests/c have ranks that fail and lie",
    "vmmshare_safetensors_": "parses a file: tests/fuzz has its parser",
    "vmmshare_doctor": "looks at the whole machine, for a second: tests/tool",
    "vmmshare_main": "writes to the process's own streams: tests/tool",
    "vmmshare_driver_load": "once a process: the world's driver is one whose calls fail",
    "vmmshare_c_version": "a constant",
    "vmmshare_version": "a constant",
    "vmmshare_driver_version": "a constant",
    "vmmshare_driver_is_host_memory": "a constant",
    "vmmshare_error_cuda_result": "a field of an error: tests/unit/c_call_test.cc",
    "vmmshare_torch_set_region": "one a process, so one thread's alone: tests/c",
    "vmmshare_torch_region_": "needs a region that is set: tests/c",
    "vmmshare_weights_copy": "needs memory that stays until it is sealed: tests/gpu",
    "vmmshare_weights_read_files": "starts threads that read files: tests/gpu and tests/sweep",
    "vmmshare_weights_read_rows": "reads a file: tests/gpu and tests/sweep",
}


def declared():
    text = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "vmm/c").glob("*.h")))
    return set(re.findall(r"VMMSHARE_API[^;]*?\b(vmmshare_\w+)\(", text))


def called():
    # The test of the caller itself has functions of its own.
    sources = [p for p in (ROOT / "tests/calls").glob("*.cc") if p.name != "caller_test.cc"]
    text = "".join(re.sub(r"//.*", "", p.read_text(encoding="utf-8")) for p in sources)
    return set(re.findall(r"\b(vmmshare_\w+)\b", text))


def is_left_out(function):
    return any(function.startswith(each) for each in LEFT_OUT)


class Functions(unittest.TestCase):
    def test_each_is_called_or_left_out_for_a_reason(self):
        forgotten = {each for each in declared() - called() if not is_left_out(each)}
        self.assertEqual(forgotten, set(), "call it in tests/calls/*_operations*.cc, or say in LEFT_OUT why not")

    def test_what_is_left_out_is_there_and_not_called(self):
        for each in LEFT_OUT:
            named = {one for one in declared() if one.startswith(each)}
            self.assertTrue(named, f"{each}: no function of this name")
            self.assertEqual(named & called(), set(), f"{each} is called: take it off the list")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
