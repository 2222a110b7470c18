#!/usr/bin/env python3
"""libvmmshare.so shows the functions of its headers and nothing else.

usage: symbols_test.py LIBRARY HEADERS_FOLDER
"""

import pathlib
import re
import subprocess
import sys
import unittest

LIBRARY, HEADERS = sys.argv[1], pathlib.Path(sys.argv[2])


def exported():
    lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    # The version's own name is an absolute symbol (A).
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}


def declared():
    text = "".join(p.read_text(encoding="utf-8") for p in HEADERS.glob("*.h"))
    return set(re.findall(r"VMMSHARE_API[^;]*?\b(vmmshare_\w+)\(", text))


class Symbols(unittest.TestCase):
    def test_what_is_declared_is_exported_and_nothing_else(self):
        self.assertEqual(exported(), declared())
        self.assertGreater(len(declared()), 80)

    def test_what_it_calls_of_itself_is_its_own(self):
        # A name here would be looked up in the whole process, where another copy may have it.
        relocations = subprocess.run(["readelf", "-r", "-W", LIBRARY], check=True,
                                     capture_output=True, text=True).stdout
        self.assertTrue(re.search(r"\bdlopen\b", relocations), "no name of another library's")
        self.assertEqual(re.findall(r"\bvmmshare_\w+", relocations), [])

    def test_its_soname_has_the_number_of_the_interface(self):
        dynamic = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True,
                                 text=True).stdout
        self.assertIn("[libvmmshare.so.1]", dynamic)
        self.assertNotIn("libcuda", dynamic)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
