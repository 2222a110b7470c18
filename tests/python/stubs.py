#!/usr/bin/env python3
"""Holds the extension module's stubs to the module, by mypy's stubtest.

What it says of every module of nanobind is passed over: that functions and
classes are of nanobind's own types, and what `object.__init__` takes.
"""

import pathlib
import subprocess
import sys

OF_NANOBIND = ("is not a function", "metaclass differs", "is a disjoint base at runtime",
               'stub does not have *args parameter "args"')


def main():
    done = subprocess.run(
        [sys.executable, "-B", "-m", "mypy.stubtest", "vmmshare._core", "--concise",
         f"--mypy-config-file={pathlib.Path(__file__).with_name('stubtest.ini')}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
    lines = done.stdout.splitlines()
    # Else it did not get as far as comparing.
    assert any(OF_NANOBIND[0] in line for line in lines), done.stdout
    wrong = [line for line in lines if not any(words in line for words in OF_NANOBIND)]
    print("\n".join(wrong) or "stubs and module agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
