#!/usr/bin/env python3
"""One process shares memory with another across what containers put between them.

usage: containers_test.py HELLO DRIVER SOURCE [--table | UNITTEST ARGUMENTS]

Each test starts docs/examples/hello twice, in namespaces and with rights like those of
containers, made by unshare(1): no container runtime is needed. Its docstring is a row of
the table in docs/containers.md, which --table prints. What this machine does not allow is
skipped by name.
"""

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

PATIENCE = 60  # Seconds, for what takes milliseconds.

# The kernel's numbers of system calls; those from 424 on are the same on all machines.
CALLS = {"pidfd_open": 434, "pidfd_getfd": 438}
CALLS |= ({"ptrace": 117, "process_vm_readv": 270} if platform.machine() == "aarch64" else
          {"ptrace": 101, "process_vm_readv": 310})


def deny(names, words):
    """Runs `words` where the system calls `names` fail with EPERM."""
    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                    ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]

    load, equal, answer = 0x20, 0x15, 0x06  # Of the classic BPF.
    allow, fail = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, _ERRNO with EPERM.
    lines = [Instruction(load, 0, 0, 0)]
    for name in names:
        lines += [Instruction(equal, 0, 1, CALLS[name]), Instruction(answer, 0, 0, fail)]
    lines.append(Instruction(answer, 0, 0, allow))
    program = Program(len(lines), (Instruction * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    set_seccomp, filtered, set_no_new_privileges = 22, 2, 38
    if (libc.prctl(set_no_new_privileges, 1, 0, 0, 0) != 0 or
            libc.prctl(set_seccomp, filtered, ctypes.byref(program), 0, 0) != 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(words[0], words)


CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--ipc",
             "--net", "--uts", "--cgroup"]
USER, OTHER = "12001", "12002"


def with_root_of(user):
    """A container that is started by `user`, who is root in it: a rootless one."""
    return [*as_user(user), "unshare", "--user", "--map-root-user", *CONTAINER[1:]]


def as_user(user):
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]


def after(script):
    """A container in which `script` has run."""
    return [*CONTAINER, "sh", "-c", script + ' && exec "$@"', "sh"]


def denied(*names):
    return [*CONTAINER, sys.executable, "-B", os.path.abspath(__file__), "--deny", ",".join(names)]


class Containers(unittest.TestCase):
    def test_one_machine(self):
        "nothing | works |"
        self.shares([], [])

    def test_namespaces(self):
        "two containers: all namespaces their own but users', and one folder in both | works |"
        self.shares(CONTAINER, CONTAINER)

    def test_the_host(self):
        "a container and its host | works |"
        self.shares(CONTAINER, [])

    def test_no_folder(self):
        "two containers without a folder in common | NOT_FOUND | one folder, at one path"
        self.refuses(CONTAINER, after('mount -t tmpfs tmpfs "$NVIDIA_DRA_LOCAL_IPC_DIR"'),
                     "NOT_FOUND", "containers must share it")

    def test_another_path(self):
        "a folder that is at another path in the other | NOT_FOUND | the same path"
        folder = '"$NVIDIA_DRA_LOCAL_IPC_DIR"'
        self.refuses(CONTAINER, after(f"mkdir -p /mnt/there && mount --bind {folder} /mnt/there && "
                                      f"mount -t tmpfs tmpfs {folder} && "
                                      "export NVIDIA_DRA_LOCAL_IPC_DIR=/mnt/there"),
                     "NOT_FOUND", "at the same path")

    def test_read_only_roots(self):
        "roots that are read-only | works |"
        folder = '"$NVIDIA_DRA_LOCAL_IPC_DIR"'
        read_only = after(f"mount --bind {folder} {folder} && mount -o remount,bind,ro / && "
                          "! touch /read-only 2>/dev/null")
        self.shares(read_only, read_only)

    def test_no_shared_memory_folder(self):
        "a `/dev/shm` that nothing can be made in | works |"
        without = after("mount -t tmpfs -o ro tmpfs /dev/shm")
        self.shares(without, without)

    def test_no_capabilities(self):
        "no capabilities, and `no_new_privs` | works |"
        without = [*CONTAINER, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all",
                   "--no-new-privs"]
        self.shares(without, without)

    def test_other_clocks(self):
        "clocks since boot that differ (time namespaces) | works |"
        self.shares([*CONTAINER, "--time", "--boottime", "1000000"], CONTAINER)

    def test_no_tracing(self):
        "seccomp profiles that deny `ptrace`, `process_vm_readv` and `pidfd_getfd` | works |"
        profile = denied("ptrace", "process_vm_readv", "pidfd_getfd")
        self.shares(profile, profile)

    def test_no_process_references(self):
        "seccomp profiles that deny `pidfd_open` | works | allow it: Linux before 6.5 needs it"
        self.shares(denied("pidfd_open"), denied("pidfd_open"))

    def test_no_boot_id(self):
        "a container without `/proc/sys/kernel/random/boot_id` | NOT_FOUND | mount `/proc` whole"
        self.refuses(CONTAINER, after("mount -t tmpfs tmpfs /proc/sys/kernel/random"),
                     "NOT_FOUND", "boot_id")

    def test_no_proc(self):
        "a container without `/proc` | NOT_FOUND | mount `/proc`"
        self.refuses(CONTAINER, after("mount -t tmpfs tmpfs /proc"), "NOT_FOUND", "mount /proc")

    def test_rootless(self):
        "two rootless containers of one user (user namespaces) | works |"
        self.shares(with_root_of(USER), with_root_of(USER), users=(USER, USER))

    def test_rootless_and_the_host(self):
        "a rootless container and a program of the same user on the host | works |"
        self.shares(as_user(USER), with_root_of(USER), users=(USER, USER))

    def test_rootless_and_another_user(self):
        "a rootless container and another user | PERMISSION_DENIED | one user: it knows no others"
        self.refuses(as_user(OTHER), with_root_of(USER), "PERMISSION_DENIED",
                     "whom this user namespace does not know", users=(OTHER, USER))

    def test_two_users(self):
        "two users | PERMISSION_DENIED | [both sides allow it](security.md)"
        self.refuses(as_user(USER), as_user(OTHER), "PERMISSION_DENIED",
                     "neither root nor an allowed user", users=(USER, OTHER))

    def test_docs_have_the_table(self):
        text = pathlib.Path(SOURCE, "docs/containers.md").read_text()
        self.assertIn(table(), text, "docs/containers.md lacks what --table prints")

    def shares(self, owner, importer, users=("0", "0")):
        status, said, error = self.run_both((owner, importer), users)
        self.assertEqual(status, 0, error)
        self.assertIn("opened", said)

    def refuses(self, owner, importer, code, message, users=("0", "0")):
        status, said, error = self.run_both((owner, importer), users)
        self.assertEqual(status, 1, said)
        self.assertTrue(error.startswith(code + ": "), error)
        self.assertIn(message, error)

    def run_both(self, sides, users):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
            self.skipTest("needs root, unshare and setpriv")
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-containers-")
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        self.folder = pathlib.Path(folder.name)
        sockets = self.folder / "sockets"
        sockets.mkdir()
        os.chown(sockets, int(users[0]), int(users[0]))
        self.variables = os.environ | {"NVIDIA_DRA_LOCAL_IPC_DIR": str(sockets),
                                       "VMMSHARE_HOST_INSTANCE": f"containers-{os.getpid()}"}
        for words in sides:
            tried = subprocess.run([*words, "true"], capture_output=True, text=True,
                                   env=self.variables, timeout=PATIENCE)
            if tried.returncode != 0:
                self.skipTest(f"not allowed on this machine: {tried.stderr.strip()}")
        owner = self.start(sides[0], "owner", users[0])
        importer = self.start(sides[1], "importer", users[1], self.ticket_of(owner))
        said, error = importer.communicate(timeout=PATIENCE)
        self.assertEqual(owner.communicate("\n", timeout=PATIENCE)[1], "")
        self.assertEqual(owner.returncode, 0)
        return importer.returncode, said, error

    def start(self, words, name, user, *more):
        # A library of another user is not loaded.
        own = self.folder / name
        own.mkdir()
        program = [shutil.copy(one, own) for one in (HELLO, DRIVER)]
        os.chown(program[1], int(user), int(user))
        child = subprocess.Popen([*words, *program, *more], env=self.variables, text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child

    def ticket_of(self, owner):
        late = threading.Timer(PATIENCE, owner.kill)
        late.start()
        try:
            for line in owner.stdout:
                if line.startswith("vmmshare:"):
                    return line.strip()
        finally:
            late.cancel()
        self.fail(f"the owner has no ticket: {owner.communicate()[1]}")


def table():
    tests = [one for name, one in vars(Containers).items() if name.startswith("test_")]
    rows = [f"| {one.__doc__} |" for one in tests if one.__doc__]
    return "\n".join(["| between the two | comes to | what helps |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    if sys.argv[1] == "--deny":
        deny(sys.argv[2].split(","), sys.argv[3:])
    HELLO, DRIVER, SOURCE = (os.path.abspath(one) for one in sys.argv[1:4])
    if sys.argv[4:] == ["--table"]:
        print(table())
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
