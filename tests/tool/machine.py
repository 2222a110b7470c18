"""A machine made of files: what `vmmshare doctor --root` looks at."""

import ctypes
import json
import os
import pathlib
import pty
import resource
import shutil
import struct
import subprocess
import tempfile
import uuid

CHANNELS = "dev/nvidia-caps-imex-channels"
KINDS = {"fd": 0, "nt": 1, "fabric": 2}
# Of the host-memory driver. Not by this process's number: that is a part of another
# one's, and is used again.
INSTANCE = f"doctor-{uuid.uuid4().hex[:12]}"


def without_override():
    """For preexec_fn: not even root opens a file whose mode forbids it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH.
        if os.geteuid() == 0 and libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP.
            raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")


def without_pidfd():
    """For preexec_fn: pidfd_open() is refused, as by a container's older seccomp profile."""
    without(434)


def without_clone3():
    """For preexec_fn: clone3() is refused with EPERM, as by Docker before 20.10.10."""
    without(435)


def without(number):
    """`number`: of a system call that is the same on every architecture, as from 424 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Load the call's number; this one: EPERM; others: go on.
    code = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000))
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    text = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
    # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def kind(self, name, device=0):
        return self.json["devices"][device]["kinds"][KINDS[name]]

    def reasons(self, name="fabric", device=0):
        return [r["id"] for r in self.kind(name, device)["reasons"]]

    def notes(self):
        return [n["id"] for n in self.json["notes"]]


class Machine:
    """Runs the tool on a root of its own, with the host-memory driver.

    The driver looks for IMEX in the same root, so that it refuses fabric
    handles for the very reason that the tool shall find.
    """

    def __init__(self, tool):
        self.tool = tool
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="vmmshare-doctor-"))
        self.terminals = []
        self.daemon = None
        self.write("proc/devices", "Character devices:\n  1 mem\n")
        self.write("proc/sys/kernel/osrelease", "6.1.0\n")
        self.write("proc/self/cgroup", "0::/\n")
        (self.root / "dev/shm").mkdir(parents=True)

    def close(self):
        self.kill_daemon()
        for terminal in self.terminals:
            os.close(terminal)
        shutil.rmtree(self.root)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def offer_channels(self, major):
        self.write("proc/devices",
                   f"Character devices:\n  1 mem\n{major:3} nvidia-caps-imex-channels\n\n"
                   "Block devices:\n  7 loop\n")

    def make_channel(self, number=0, mode=0o600):
        """A character device that any user may make: a terminal's end."""
        master, slave = pty.openpty()
        self.terminals += [master, slave]
        os.fchmod(slave, mode)
        folder = self.root / CHANNELS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"channel{number}").symlink_to(os.ttyname(slave))
        return os.major(os.fstat(slave).st_rdev)

    def start_daemon(self):
        """A process of that name, which may die."""
        self.kill_daemon()
        program = self.root / "nvidia-imex"
        if not program.exists():
            program.symlink_to(shutil.which("sleep"))
        self.daemon = subprocess.Popen(["sleep", "600"], executable=program)
        (self.root / f"proc/{self.daemon.pid}").symlink_to(f"/proc/{self.daemon.pid}")

    def kill_daemon(self):
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None

    def environment(self, changes):
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith("VMMSHARE_HOST_") and k not in
                ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MPS_PIPE_DIRECTORY",
                 "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                 "NO_COLOR", "TERM")}
        return {**kept, "VMMSHARE_HOST_INSTANCE": INSTANCE,
                "VMMSHARE_HOST_FABRIC_ROOT": str(self.root), **changes}

    def run(self, *words, env=None, driver="host", preexec=None, prefix=()):
        command = [*prefix, self.tool, "doctor", f"--root={self.root}", *words]
        if driver:
            command.append(f"--driver={driver}")
        done = subprocess.run(command, env=self.environment(env or {}), text=True,
                              capture_output=True, preexec_fn=preexec, timeout=60,
                              check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def run_on_terminal(self, *words, env):
        """Standard output of a run whose output is a terminal."""
        master, slave = pty.openpty()
        with subprocess.Popen([self.tool, "doctor", f"--root={self.root}", "--driver=host",
                               *words], env=self.environment(env), stdout=slave) as process:
            os.close(slave)
            text = b""
            while True:
                try:
                    piece = os.read(master, 4096)
                except OSError:  # The last writer is gone.
                    break
                if not piece:
                    break
                text += piece
            process.wait(timeout=60)
        os.close(master)
        return text.decode()

    def flowing(self, *words, **how):
        """The text for people, without its line ends."""
        return " ".join(self.run(*words, **how).out.split())
