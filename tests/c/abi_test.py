#!/usr/bin/env python3
"""The C interface is what it was: its headers against tests/c/interface.abi.

usage: abi_test.py REPOSITORY [--update]      exit code 77: cannot run here

Functions may be added, and --update then keeps them from changing; whoever changes one or takes
it away changes the library's file name too (base.h). c.Symbols sees that the library has what
the headers declare.
"""

import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(sys.argv[1]).resolve()
BASELINE = REPOSITORY / "tests" / "c" / "interface.abi"
SKIPPED = 77


def library_of(headers, folder):
    """A library that has the functions of these headers, which is all that abidw looks at."""
    declared = []
    for header in sorted(headers.glob("*.h")):
        text = re.sub(r"//.*|^#.*", "", header.read_text(encoding="utf-8"), flags=re.M)
        declared += re.findall(r"VMMSHARE_API([^;]*);", text)
    source = folder / "interface.c"
    source.write_text('#include "vmm/c/vmmshare.h"\n'
                      + "".join(f"{one} {{ __builtin_trap(); }}\n" for one in declared))
    library = folder / "interface.so"
    subprocess.run(["gcc", "-g", "-O0", "-shared", "-fPIC", f"-I{headers.parent.parent}",
                    "-o", str(library), str(source)], check=True)
    return library


def describe(library):
    done = subprocess.run(["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs",
                           "--type-id-style", "hash", str(library)], check=True,
                          capture_output=True, text=True)
    return done.stdout


class Interface(unittest.TestCase):
    def changes(self, edit=lambda text: text):
        """What abidiff says of the headers after `edit`."""
        with tempfile.TemporaryDirectory() as name:
            headers = pathlib.Path(name) / "vmm" / "c"
            headers.mkdir(parents=True)
            for header in (REPOSITORY / "vmm" / "c").glob("*.h"):
                (headers / header.name).write_text(edit(header.read_text(encoding="utf-8")))
            done = subprocess.run(["abidiff", "--no-added-syms", str(BASELINE),
                                   str(library_of(headers, pathlib.Path(name)))],
                                  capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.stdout if done.returncode else ""

    def planted(self, old, new):
        found = []

        def edit(text):
            found.append(old in text)
            return text.replace(old, new)

        changes = self.changes(edit)
        self.assertTrue(any(found), f"no header has {old!r} any more")
        return changes

    def test_it_is_what_it_was(self):
        self.assertEqual(self.changes(), "")

    def test_a_function_may_come(self):
        self.assertEqual(self.planted("VMMSHARE_API const char* vmmshare_version(void);",
                                      "VMMSHARE_API const char* vmmshare_version(void);\n"
                                      "VMMSHARE_API int32_t vmmshare_new(void);"), "")

    def test_a_planted_break_is_found(self):
        for old, new in [
                ("VMMSHARE_API const char* vmmshare_version(void);", ""),
                ("uint64_t inside,", "uint32_t inside,"),
                ("uint64_t first_segment_size;",
                 "uint64_t more; uint64_t first_segment_size;"),
                ("VMMSHARE_API int32_t\nvmmshare_driver_is_host_memory",
                 "VMMSHARE_API int64_t\nvmmshare_driver_is_host_memory")]:
            with self.subTest(old=old):
                self.assertNotEqual(self.planted(old, new), "")


if __name__ == "__main__":
    if shutil.which("abidiff") is None or shutil.which("gcc") is None or \
            platform.machine() != "x86_64":
        print("skipped: no abidiff or gcc (apt-get install abigail-tools), or not x86-64")
        sys.exit(SKIPPED)
    if sys.argv[2:] == ["--update"]:
        with tempfile.TemporaryDirectory() as name:
            BASELINE.write_text(describe(library_of(REPOSITORY / "vmm" / "c", pathlib.Path(name))))
        sys.exit(0)
    unittest.main(argv=sys.argv[:1])
