#!/usr/bin/env python3
"""Two processes that share memory, or a ring, under each limit of the shell's:
they do, or one of them names the limit.

usage: limits_test.py EXAMPLES_FOLDER [UNITTEST ARGUMENTS]
"""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

EXAMPLES = pathlib.Path(sys.argv[1])
BOTH = ["produce_consume", "--driver=host", "--size=2M", "--timeout=20"]
RING = ["ring", "--driver=host", "--size=64K", "--buffers=2", "--items=8", "--streams=1", "--timeout=4"]

# A user of no other test's: its processes would count, and its socket directory go.
NOBODY_ELSE = 54399


def become_somebody_new():
    """Root has no limit of threads; who has no processes yet has it alone."""
    os.setgroups([])
    os.setgid(NOBODY_ELSE)
    os.setuid(NOBODY_ELSE)


def run(limit, value, command, before=lambda: None):
    """The exit status and all that was printed."""
    result = subprocess.run(
        [EXAMPLES / command[0], *command[1:]], text=True, timeout=60, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: (before(), resource.setrlimit(limit, (value, value))))
    return result.returncode, result.stdout


class Limits(unittest.TestCase):
    def sweep_descriptors(self, command, first, last=40):
        worked, advised = [], set()
        for limit in range(first, last + 1):
            started = time.monotonic()
            status, said = run(resource.RLIMIT_NOFILE, limit, command)
            with self.subTest(limit=limit):
                if status == 0:
                    worked.append(limit)
                    continue
                # Nobody waited for what could not come.
                self.assertLess(time.monotonic() - started, 15)
                # What the loader of programs says, who has no better words.
                if re.search(r"error while loading shared libraries:.*", said):
                    self.assertLess(limit, 6)
                    continue
                named = re.findall(rf"(\d+) of the {limit} descriptors that this process may have open "
                                   r"\(ulimit -n\) are left; allow it at least (\d+)", said)
                # What the reader of a ring hears of an owner who had none left.
                self.assertTrue(named or f"the owner may open {limit} descriptors (RLIMIT_NOFILE)" in said, said)
                self.assertNotRegex(said, r"allow it at least \d+\. The owner has ended")
                advised.update(int(enough) for _, enough in named)
        self.assertTrue(worked)
        self.assertTrue(advised)
        for limit in advised:
            status, said = run(resource.RLIMIT_NOFILE, limit, command)
            self.assertEqual(status, 0, said)

    def test_each_descriptor_limit_of_both_does_or_is_named_with_one_that_does(self):
        self.sweep_descriptors(BOTH, first=4)

    def test_each_descriptor_limit_of_a_ring_does_or_is_named_with_one_that_does(self):
        self.sweep_descriptors(RING, first=4, last=60)

    def test_each_descriptor_limit_of_the_importer_does_or_is_named_with_one_that_does(self):
        with tempfile.TemporaryDirectory(prefix="vmmshare-limits-") as folder:
            ticket = pathlib.Path(folder) / "ticket"
            with subprocess.Popen([EXAMPLES / "file_ticket", "main", ticket, "--driver=host"],
                                  stdout=subprocess.PIPE, text=True) as owner:
                deadline = time.monotonic() + 30
                while not ticket.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                # With 5 the example cannot read its own file.
                self.sweep_descriptors(
                    ["file_ticket", "memory", ticket, "--driver=host", "--timeout=20"], first=6)
                owner.kill()

    def test_where_ends_of_children_are_ignored_that_of_the_consumer_is_not(self):
        done = subprocess.run(
            [EXAMPLES / BOTH[0], *BOTH[1:]], text=True, timeout=60, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_an_output_that_cannot_be_written_is_an_error(self):
        for command in (BOTH, ["ring", "--help"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([EXAMPLES / command[0], *command[1:]], timeout=60, check=False, stdout=full,
                                      stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 1, (command, done.stderr))

    def test_each_limit_of_the_address_space_does_or_is_named(self):
        self.sweep_address_space(BOTH)

    def test_each_limit_of_a_rings_address_space_does_or_is_named(self):
        self.sweep_address_space(RING)

    def sweep_address_space(self, command):
        for mebibytes in (48, 64, 96, 128, 192, 256, 384, 512, 1024, 1 << 20):
            status, said = run(resource.RLIMIT_AS, mebibytes << 20, command)
            with self.subTest(mebibytes=mebibytes):
                if status == 0 or re.search(r"error while loading shared libraries", said):
                    continue
                self.assertIn(f"may map {mebibytes} MiB (ulimit -v)", said)

    def test_each_limit_of_file_sizes_does_or_is_named(self):
        for kibibytes in (1, 4, 64, 1024, 1 << 13):
            status, said = run(resource.RLIMIT_FSIZE, kibibytes << 10, BOTH)
            with self.subTest(kibibytes=kibibytes):
                if kibibytes < 2048:  # The memory is larger.
                    self.assertEqual(status, 1, said)
                    self.assertIn(f"may make files of {kibibytes << 10} bytes (ulimit -f)", said)
                else:
                    self.assertEqual(status, 0, said)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be a user without other processes")
    def test_each_limit_of_threads_does_or_is_named(self):
        self.sweep_threads(BOTH)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be a user without other processes")
    def test_each_limit_of_a_rings_threads_does_or_is_named(self):
        self.sweep_threads(RING)

    def sweep_threads(self, command):
        self.addCleanup(shutil.rmtree, f"/tmp/vmmshare-{NOBODY_ELSE}", ignore_errors=True)
        status = 1
        for threads in range(1, 40):
            named = f"its user may have {threads} of processes and threads together (ulimit -u)"
            # The limit is named where it stands a moment later, and another process of the user
            # may have ended by then: once in three times it has not.
            for _ in range(3):
                try:
                    status, said = run(resource.RLIMIT_NPROC, threads, command, become_somebody_new)
                except PermissionError:
                    self.skipTest("another user may not run what is built here")
                if status == 0 or named in said:
                    break
            if status == 0:
                break
            with self.subTest(threads=threads):
                self.assertIn(named, said)
        self.assertEqual(status, 0, said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
