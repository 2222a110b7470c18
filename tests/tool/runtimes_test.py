#!/usr/bin/env python3
"""Two processes share memory out of containers of the runtimes that this machine has.

usage: runtimes_test.py HELLO DRIVER SOURCE [--table | UNITTEST ARGUMENTS]

As containers_test.py, with crun, runc, Podman and systemd-nspawn. The images are made here
(bundle.py): no registry is asked. A runtime that is not installed, or that this machine
does not let run, is skipped by name. --table prints a table of docs/containers.md.
"""

import abc
import contextlib
import os
import shutil
import sys
import unittest

import bundle
import runtimes
import two_sides
from runtimes import Container, nothing_mounted_at, status_has
from two_sides import OTHER, USER, Prefix

NO_TRACING = ("ptrace", "process_vm_readv", "pidfd_getfd")


class Runtime(abc.ABC):
    """The rows; each class below is one runtime that they are tried with."""

    program = ""
    runs = None  # Whether the plainest container of root's runs on this machine.

    @abc.abstractmethod
    def contained(self, name, root, words, sockets, what):
        """The words that run `words` in a container of the image `root`; see Container."""

    def setUp(self):
        if not shutil.which(self.program):
            self.skipTest(f"{self.program} is not installed")
        super().setUp()
        if type(self).runs is None and os.geteuid() == 0:
            type(self).runs = False
            with contextlib.suppress(unittest.SkipTest):
                self.try_out("plainest", Container())
                type(self).runs = True

    def test_one_image(self):
        "two containers of one image | works |"
        self.needs_root()
        self.shares(Container(), Container())

    def test_two_images(self):
        "containers of two images | works |"
        self.needs_root()
        self.shares(Container("one", proof="[ ! -e /opt/two ]"),
                    Container("two", proof="[ ! -e /opt/one ]"))

    def test_the_host(self):
        "a container and its host | works |"
        self.needs_root()
        self.shares(Prefix([]), Container())

    def test_no_folder(self):
        "two containers without a folder in common | NOT_FOUND | one folder, at one path"
        self.needs_root()
        self.refuses(Container(), Container(folder=False), "NOT_FOUND", "containers must share it")

    def test_read_only_roots(self):
        "read-only roots | works |"
        self.needs_root()
        side = Container(read_only=True, proof="! (: >/opt/written) 2>/dev/null")
        self.shares(side, side)

    def test_no_shared_memory_folder(self):
        "no `/dev/shm` | works |"
        self.needs_root()
        side = Container(shm=False, proof=nothing_mounted_at("/dev/shm"))
        self.shares(side, side)

    def test_usual_capabilities(self):
        "Podman's capabilities (in other rows none; in systemd-nspawn always its own) | works |"
        self.needs_root()
        usual = Container(capabilities=bundle.PODMANS, proof=status_has("CapEff", "*[1-9a-f]*"))
        self.shares(usual, usual)

    def test_no_tracing(self):
        "a seccomp profile that denies `ptrace`, `process_vm_readv` and `pidfd_getfd` | works |"
        self.needs_root()
        side = Container(deny=NO_TRACING, proof=status_has("Seccomp", "2"))
        self.shares(side, side)

    def test_masked_boot_id(self):
        "`/proc/sys/kernel/random/boot_id` among the masked paths | UNAVAILABLE | take it out"
        self.needs_root()
        self.refuses(Container(), Container(masked=[bundle.BOOT_ID]), "UNAVAILABLE",
                     "take it out of them")

    def test_own_boot_id(self):
        "a boot id of its own, systemd-nspawn's way | FAILED_PRECONDITION | `umount` it"
        self.needs_root()
        self.refuses(Prefix([]), Container(own_boot_id=True), "FAILED_PRECONDITION",
                     "a boot id of its own")

    def test_one_user(self):
        "one user who is not root | works |"
        self.needs_root()
        self.give_sockets_to(USER)
        side = Container(user=USER, proof=status_has("Uid", f"{USER}*"))
        self.shares(side, side)

    def test_two_users(self):
        "two users | PERMISSION_DENIED | [both sides allow it](security.md)"
        self.needs_root()
        self.give_sockets_to(USER)
        self.refuses(Container(user=USER), Container(user=OTHER), "PERMISSION_DENIED",
                     "neither root nor an allowed user")

    def test_two_ranges_of_users(self):
        "two ranges of users (`userns-remap`, `--userns=auto`) | PERMISSION_DENIED | one range"
        self.needs_root()
        self.give_sockets_to(200000)
        one, two = (Container(owner=first, users=(first, 65536)) for first in (200000, 300000))
        self.shares(one, one)
        self.refuses(one, two, "PERMISSION_DENIED", "whom this user namespace does not know")

    def test_rootless(self):
        "two rootless containers of one user | works |"
        user = USER if os.geteuid() == 0 else os.geteuid()
        self.give_sockets_to(user)
        rootless = Container(owner=user, users=(user, 1), rootless=True)
        self.shares(rootless, rootless)

    def try_out(self, name, side):
        try:
            super().try_out(name, side)
        except unittest.SkipTest as reason:
            # User namespaces are what machines deny that allow the rest.
            if self.runs and "users" not in getattr(side, "what", {}):
                self.fail(f"the plainest container runs, but here {reason}")
            raise

    def needs_root(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")


class Crun(runtimes.Oci, Runtime, two_sides.TwoSides):
    program = "crun"
    options = ("--cgroup-manager=disabled",)
    test_own_boot_id = None


class Runc(runtimes.Oci, Runtime, two_sides.TwoSides):
    program = "runc"
    test_own_boot_id = None


class Podman(runtimes.Podman, Runtime, two_sides.TwoSides):
    """With its own profile of seccomp, which allows what it names and nothing else."""

    program = "podman"
    test_own_boot_id = None


class SystemdNspawn(runtimes.SystemdNspawn, Runtime, two_sides.TwoSides):
    """With its own filter of system calls, and without a systemd."""

    program = "systemd-nspawn"
    # It knows users by name only, is for root, and lets no user namespace unmount.
    test_one_user = test_two_users = test_two_ranges_of_users = test_rootless = None
    test_masked_boot_id = None  # It masks that with an id of its own.


RUNTIMES = (Crun, Runc, Podman, SystemdNspawn)


def table():
    rows = ["| between the two | comes to | what helps | with |", "| --- | --- | --- | --- |"]
    for name, test in vars(Runtime).items():
        if name.startswith("test_"):
            can = [one.program for one in RUNTIMES if getattr(one, name)]
            rows.append(f"| {test.__doc__} | {'all' if len(can) == 4 else ', '.join(can)} |")
    return "\n".join(rows)


class Documented(unittest.TestCase):
    def test_docs_have_the_table(self):
        text = (two_sides.TwoSides.source / "docs/containers.md").read_text()
        self.assertIn(table(), text, "docs/containers.md lacks what --table prints")


if __name__ == "__main__":
    two_sides.main("__main__", sys.argv, table)
