#!/usr/bin/env python3
"""One process shares memory with another across what containers put between them.

usage: containers_test.py HELLO DRIVER SOURCE [--table | UNITTEST ARGUMENTS]

Each test starts docs/examples/hello twice, in namespaces and with rights like those of
containers, made by unshare(1): no container runtime is needed (runtimes_test.py has those).
Its docstring is a row of a table in docs/containers.md, which --table prints. What this
machine does not allow is skipped by name.
"""

import ctypes
import errno
import os
import platform
import shutil
import sys

import two_sides
from two_sides import FOLDER, OTHER, USER, Prefix, after, as_user, proof

# The kernel's numbers of system calls; those from 424 on are the same on all machines.
CALLS = {"pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438}
CALLS |= ({"ptrace": 117, "process_vm_readv": 270, "memfd_create": 279}
          if platform.machine() == "aarch64" else
          {"ptrace": 101, "process_vm_readv": 310, "memfd_create": 319})


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
    for name in names:
        if libc.syscall(CALLS[name], 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM:
            sys.exit(f"{two_sides.NOT_IN_FORCE}: {name}() is allowed")
    os.execvp(words[0], words)


CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--ipc",
             "--net", "--uts", "--cgroup"]


def with_root_of(user):
    """A container that is started by `user`, who is root in it: a rootless one."""
    return Prefix([*as_user(user), "unshare", "--user", "--map-root-user", *CONTAINER[1:]], user)


def with_nobody_of(user):
    """A container that is started by `user`, who is 65534 in it."""
    return Prefix([*as_user(user), "unshare", "--user", "--map-user=65534", *CONTAINER[1:]], user)


def program_of(user):
    return Prefix(as_user(user), user)


def container(script=None):
    """A container in which `script`, if any, has run."""
    return Prefix(after(CONTAINER, script) if script else CONTAINER)


def denied(*names):
    return Prefix([*CONTAINER, sys.executable, "-B", os.path.abspath(__file__), "--deny",
                   ",".join(names)])


class Namespaces(two_sides.TwoSides):
    def setUp(self):
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
            self.skipTest("needs root, unshare and setpriv")
        super().setUp()


class Containers(Namespaces):
    def test_one_machine(self):
        "nothing | works |"
        self.shares(Prefix([]), Prefix([]))

    def test_namespaces(self):
        "two containers: all namespaces their own but users', and one folder in both | works |"
        self.shares(container(), container())

    def test_the_host(self):
        "a container and its host | works |"
        self.shares(container(), Prefix([]))

    def test_no_folder(self):
        "two containers without a folder in common | NOT_FOUND | one folder, at one path"
        self.refuses(container(), container('mount -t tmpfs tmpfs "$NVIDIA_DRA_LOCAL_IPC_DIR"'),
                     "NOT_FOUND", "containers must share it")

    def test_another_path(self):
        "a folder that is at another path in the other | NOT_FOUND | the same path"
        folder = '"$NVIDIA_DRA_LOCAL_IPC_DIR"'
        there = container("mount -t tmpfs tmpfs /mnt && mkdir /mnt/there && "
                          f"mount --bind {folder} /mnt/there && mount -t tmpfs tmpfs {folder} && "
                          "export NVIDIA_DRA_LOCAL_IPC_DIR=/mnt/there")
        self.refuses(container(), there, "NOT_FOUND", "at the same path")

    def test_read_only_roots(self):
        "roots that are read-only | works |"
        folder = '"$NVIDIA_DRA_LOCAL_IPC_DIR"'
        read_only = container(f"mount --bind {folder} {folder} && mount -o remount,bind,ro / && " +
                              proof("! touch /read-only 2>/dev/null"))
        self.shares(read_only, read_only)

    def test_no_shared_memory_folder(self):
        "a `/dev/shm` that nothing can be made in | works |"
        without = container("mount -t tmpfs -o ro tmpfs /dev/shm && " +
                            proof("! touch /dev/shm/file 2>/dev/null"))
        self.shares(without, without)

    def test_no_capabilities(self):
        "no capabilities, and `no_new_privs` | works |"
        without = Prefix([*CONTAINER, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all",
                          "--no-new-privs"])
        self.shares(without, without)

    def test_other_clocks(self):
        "clocks since boot that differ (time namespaces) | works |"
        self.shares(Prefix([*CONTAINER, "--time", "--boottime", "1000000"]), container())

    def test_no_tracing(self):
        "seccomp profiles that deny `ptrace`, `process_vm_readv` and `pidfd_getfd` | works |"
        profile = denied("ptrace", "process_vm_readv", "pidfd_getfd")
        self.shares(profile, profile)

    def test_no_process_references(self):
        "seccomp profiles that deny `pidfd_open` | works | allow it: Linux before 6.5 needs it"
        self.shares(denied("pidfd_open"), denied("pidfd_open"))

    def test_no_memory_files(self):
        "an importer's seccomp profile that denies `memfd_create` | PERMISSION_DENIED | allow it"
        self.refuses(container(), denied("memfd_create"), "PERMISSION_DENIED",
                     "allow memfd_create")

    def test_no_threads(self):
        "an owner's seccomp profile that denies `clone3` with EPERM, as Docker's before 20.10.10 | " \
            "RESOURCE_EXHAUSTED | allow it"
        if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 34):
            self.skipTest("this C library starts threads without clone3()")
        self.owner_is_refused(denied("clone3"), "RESOURCE_EXHAUSTED", "refuses clone3()")

    def test_no_boot_id(self):
        "a container without `/proc/sys/kernel/random/boot_id` | NOT_FOUND | mount `/proc` whole"
        self.refuses(container(), container("mount -t tmpfs tmpfs /proc/sys/kernel/random"),
                     "NOT_FOUND", "boot_id")

    def test_no_proc(self):
        "an importer's container without `/proc` | NOT_FOUND | mount `/proc`"
        self.refuses(container(), container("mount -t tmpfs tmpfs /proc"), "NOT_FOUND",
                     "mount /proc")

    def test_rootless(self):
        "two rootless containers of one user (user namespaces) | works |"
        self.give_sockets_to(USER)
        self.shares(with_root_of(USER), with_root_of(USER))

    def test_rootless_and_the_host(self):
        "a rootless container and a program of the same user on the host | works |"
        self.give_sockets_to(USER)
        self.shares(program_of(USER), with_root_of(USER))

    def test_rootless_and_another_user(self):
        "a rootless container and another user | PERMISSION_DENIED | one user: it knows no others"
        self.give_sockets_to(OTHER)
        self.refuses(program_of(OTHER), with_root_of(USER), "PERMISSION_DENIED",
                     "whom this user namespace does not know")

    def test_rootless_and_a_folder_of_the_hosts_root(self):
        "rootless containers, and a folder of the host's root | PERMISSION_DENIED | " \
            "a folder of the user who started them"
        self.give_sockets_to(0, 0o1777)
        self.owner_is_refused(with_root_of(USER), "PERMISSION_DENIED",
                              "whom this user namespace does not know")

    def test_rootless_as_nobody(self):
        "rootless containers of user 65534 | PERMISSION_DENIED | another user than 65534"
        self.give_sockets_to(USER)
        self.refuses(with_nobody_of(USER), with_nobody_of(USER), "PERMISSION_DENIED",
                     "run it as another user than 65534.")

    def test_two_users(self):
        "two users | PERMISSION_DENIED | [both sides allow it](security.md)"
        self.give_sockets_to(USER)
        self.refuses(program_of(USER), program_of(OTHER), "PERMISSION_DENIED",
                     "neither root nor an allowed user")

    def test_an_owner_who_is_root(self):
        "an owner who is root, and another user | PERMISSION_DENIED | one user"
        self.give_sockets_to(0, 0o1777)
        self.refuses(Prefix([]), program_of(USER), "PERMISSION_DENIED",
                     "Run both sides as one user")

    def test_docs_have_the_table(self):
        text = (self.source / "docs/containers.md").read_text()
        self.assertIn(table(), text, "docs/containers.md lacks what --table prints")


class Folders(Namespaces):
    """What can be wrong with the folder that both have."""

    def test_read_only_for_the_importer(self):
        "a folder that the importer has read-only | works |"
        self.shares(container(), container(remounted("ro")))

    def test_read_only_for_the_owner(self):
        "a folder that the owner has read-only | PERMISSION_DENIED | mount it writable there"
        self.owner_is_refused(container(remounted("ro")), "PERMISSION_DENIED",
                              "mount it writable")

    def test_options_of_dra(self):
        "a folder of root's with mode 1777, mounted `nosuid,nodev,noexec`, as DRA's is | works |"
        self.give_sockets_to(0, 0o1777)
        side = Prefix([*after(CONTAINER, remounted("nosuid,nodev,noexec")), *as_user(USER)], USER)
        self.shares(side, side)

    def test_empty_dir(self):
        "Kubernetes' `emptyDir`: root's, 0777 | PERMISSION_DENIED | [a folder in it](#kubernetes)"
        self.give_sockets_to(0, 0o777)
        self.owner_is_refused(program_of(USER), "PERMISSION_DENIED", "emptyDir")

    def test_folder_in_an_empty_dir(self):
        "a folder that the containers' user made in an `emptyDir` | works |"
        self.give_sockets_to(0, 0o777)
        own = Prefix(after(as_user(USER), f'{FOLDER}="${FOLDER}/own" && export {FOLDER} && '
                                          f'mkdir -p -m 700 "${FOLDER}"'), USER)
        self.shares(own, own)

    def test_folder_of_another(self):
        "a folder of another user's | PERMISSION_DENIED | `chown`, or a folder of one's own"
        self.give_sockets_to(OTHER)
        self.owner_is_refused(program_of(USER), "PERMISSION_DENIED", "chown this one")

    def test_folder_of_root_alone(self):
        "a folder of root's with mode 0755, for another user | PERMISSION_DENIED | `chmod 1777`"
        self.owner_is_refused(program_of(USER), "PERMISSION_DENIED", "chmod 1777")

    def test_no_folder_and_a_read_only_root(self):
        "a read-only root, and no folder named | PERMISSION_DENIED | name one"
        side = Prefix([*after(CONTAINER, f"unset {FOLDER} XDG_RUNTIME_DIR && "
                                         "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"),
                       *as_user(USER)], USER)
        self.owner_is_refused(side, "PERMISSION_DENIED", f"Set {FOLDER}")

    def test_no_folder_and_a_default_of_another(self):
        "no folder named, and a `/tmp/vmmshare-UID` of another user's | PERMISSION_DENIED | name one"
        default = f"/tmp/vmmshare-{USER}"
        self.addCleanup(lambda: os.listdir(default) or os.rmdir(default))
        side = Prefix([*after(CONTAINER, f"unset {FOLDER} XDG_RUNTIME_DIR && mkdir -p {default} && "
                                         f"mount -t tmpfs -o uid={OTHER},mode=755 tmpfs {default}"),
                       *as_user(USER)], USER)
        self.owner_is_refused(side, "PERMISSION_DENIED", f"Or set {FOLDER} to another")

    def test_long_path(self):
        "a folder whose path has more than 74 bytes | INVALID_ARGUMENT | a shorter one"
        path = self.sockets / ("l" * (75 - len(f"{self.sockets}/")))
        path.mkdir()
        self.variables[FOLDER] = str(path)
        self.owner_is_refused(Prefix([]), "INVALID_ARGUMENT", "a directory with a shorter path")
        self.variables[FOLDER] = str(path)[:-1]
        path.rename(str(path)[:-1])
        self.shares(Prefix([]), Prefix([]))

    def test_overlay(self):
        "a folder of which the importer has an overlay | NOT_FOUND | a volume"
        layers = f"lowerdir=${FOLDER},upperdir=/mnt/upper,workdir=/mnt/work"
        overlay = ("mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work && "
                   f'mount -t overlay overlay -o "{layers}" "${FOLDER}"')
        self.refuses(container(), container(overlay), "NOT_FOUND", "an overlay hides who does")


def remounted(options):
    """Has the folder in common mounted once more, with `options`."""
    return (f'mount --bind "${FOLDER}" "${FOLDER}" && '
            f'mount -o "remount,bind,{options}" "${FOLDER}"')


def table():
    rows = [f"| {row} |" for suite in (Containers, Folders) for row in two_sides.rows_of(suite)]
    return "\n".join(["| between the two | comes to | what helps |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    if sys.argv[1] == "--deny":
        deny(sys.argv[2].split(","), sys.argv[3:])
    two_sides.main("__main__", sys.argv, table)
