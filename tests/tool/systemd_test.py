#!/usr/bin/env python3
"""`vmmshare keep` as a service of systemd, with the unit that is installed.

usage: systemd_test.py TOOL SOURCE EXAMPLE [UNITTEST ARGUMENTS]

Starts a systemd of its own, as process 1 of new namespaces, which knows that unit
and no other. Run with VMMSHARE_SYSTEMD=1, as root, and skipped otherwise: it mounts a
file system for control groups there, and leaves empty groups behind.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TOOL, SOURCE, EXAMPLE = sys.argv[1:4]
SYSTEMD = "/lib/systemd/systemd"

START = """
mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd &&
{ umount -R /sys/fs/cgroup || :; } && mount -t cgroup2 none /sys/fs/cgroup &&
exec env -i container=other PATH="$PATH" SYSTEMD_UNIT_PATH="$1" \\
  %s --system --unit=vmmshare-keeper@root.service
""" % SYSTEMD


SERVICE = "vmmshare-keeper@root"
ADDRESS = "/run/vmmshare-keeper/root/keeper"


@unittest.skipUnless(os.environ.get("VMMSHARE_SYSTEMD") and os.geteuid() == 0 and
                     os.path.exists(SYSTEMD) and shutil.which("nsenter"),
                     "needs VMMSHARE_SYSTEMD=1, root, systemd and nsenter")
class Systemd(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-systemd-")
        self.addCleanup(folder.cleanup)
        units = pathlib.Path(folder.name)
        unit = pathlib.Path(SOURCE, ".packaging/systemd/vmmshare-keeper@.service").read_text()
        # What was built may be in somebody's home.
        for said, here in (("/usr/bin/vmmshare", TOOL), ("ProtectHome=yes", "ProtectHome=no"),
                           ("[Service]", "DefaultDependencies=no\n\n[Service]")):
            self.assertIn(said, unit)
            unit = unit.replace(said, here)
        (units / (SERVICE.replace("root", "") + ".service")).write_text(unit)
        namespaces = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup",
                      "--uts", "--ipc"]
        self.outer = subprocess.Popen(["unshare", *namespaces, "sh", "-c", START, "sh", str(units)],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
        self.addCleanup(self.outer.wait, 30)
        self.addCleanup(self.outer.kill)
        self.await_that(self.serves)

    def await_that(self, holds):
        deadline = time.monotonic() + 30
        while not holds():
            self.assertLess(time.monotonic(), deadline, "systemd has not come so far")
            time.sleep(0.02)

    def init(self):
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        return (children.read_text().split() or ["none"])[0]

    def serves(self):
        return os.path.exists(f"/proc/{self.init()}/root{ADDRESS}")

    def inside(self, *words):
        done = subprocess.run(["nsenter", "-t", self.init(), "-m", "-p", "-i", "-u", "-C", *words],
                              env={**os.environ, "VMMSHARE_HOST_INSTANCE": "systemd-test"},
                              text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def stored(self):
        return int(self.inside("systemctl", "show", SERVICE, "-p", "NFileDescriptorStore",
                               "--value"))

    def process(self):
        return self.inside("systemctl", "show", SERVICE, "-p", "MainPID", "--value")

    def run_example(self):
        return self.inside(EXAMPLE, "llama", "--driver=host", "--size=8M",
                           "--address=" + ADDRESS)

    def list(self):
        return self.inside(TOOL, "keep", "--list", "--address", ADDRESS)

    def test_it_runs_confined(self):
        status = self.inside("cat", f"/proc/{self.process().strip()}/status")
        self.assertIn("\nNoNewPrivs:\t1\n", status)
        self.assertIn("\nSeccomp:\t2\n", status)
        self.assertIn("\nCapBnd:\t0000000000000000\n", status)

    def test_what_is_kept_survives_what_the_documentation_says(self):
        self.assertIn("load and seal", self.run_example())
        self.assertEqual(self.stored(), 2)
        before = self.process()
        self.inside("systemctl", "kill", "-s", "KILL", SERVICE)
        self.await_that(lambda: self.process() not in (before, "0\n"))
        self.inside("systemctl", "start", SERVICE)  # Returns once it serves.
        again = self.run_example()
        self.assertIn("attach", again)
        self.assertNotIn("load and seal", again)
        self.inside("systemctl", "restart", SERVICE)
        self.assertRegex(self.list(), "llama\n  sealed\n(.*\n)*.*survives a restart")
        self.inside("systemctl", "stop", SERVICE)
        self.inside("systemctl", "start", SERVICE)
        self.assertIn("nothing is kept", self.list())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
