"""How crun, runc, Podman and systemd-nspawn run a program of the build in a container.

Each class is for a test to inherit: contained() answers the words to run, and has what they
leave behind removed when the test ends.
"""

import atexit
import json
import os
import pathlib
import subprocess
import tempfile

import bundle
import two_sides
from two_sides import PATIENCE, as_user

IMAGES = None  # A folder; made with the first image.


def image_of(name, owner, case):
    """The image `name`, of `owner`'s; and where the programs are in it."""
    global IMAGES
    if IMAGES is None:
        IMAGES = tempfile.TemporaryDirectory(prefix="vmmshare-images-", dir="/tmp")
        atexit.register(IMAGES.cleanup)
        os.chmod(IMAGES.name, 0o755)
    root = pathlib.Path(IMAGES.name, str(owner), name)
    programs = [case.hello, case.driver]
    if not root.exists():
        root.mkdir(parents=True)
        bundle.make_image(root, programs)
        if os.geteuid() == 0:
            bundle.give(root, owner)
    return root, {one: f"/opt/{name}/{pathlib.Path(one).name}" for one in programs}


def with_one_hierarchy(words):
    """crun wants cgroups of version 2 and nothing else; root can have them in a namespace."""
    if os.geteuid() != 0 or os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return words
    return ["unshare", "--mount", *two_sides.after(
        [], "umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"), *words]


class Container:
    """A side in a container; `what` is what write_config() takes.

    `proof` is a condition of the shell in it, which has no programs but its own: that what
    the row is about is so.
    """

    def __init__(self, image="one", folder=True, proof="", **what):
        self.image, self.folder, self.proof, self.what = image, folder, proof, what

    def command(self, case, name, words):
        root, places = image_of(self.image, self.what.get("owner", 0), case)
        sockets = str(case.sockets) if self.folder else None
        words = [places.get(word, word) for word in words]
        if self.proof:
            shell = f"/opt/{self.image}/sh"
            words = [shell, "-c", two_sides.proof(self.proof) + '; exec "$@"', "sh", *words]
        return case.contained(name, root, words, sockets, dict(self.what))


def status_has(key, pattern):
    """That the kernel says `key` of this process, with a value of the shell's pattern."""
    return (f'while read -r key value; do case "$key $value" in "{key}: "{pattern}) break;; esac; '
            "done </proc/self/status; [ -n \"$value\" ]")


def nothing_mounted_at(path):
    return (f'while read -r line; do case "$line" in *" {path} "*) break;; esac; '
            "done </proc/self/mountinfo; [ -z \"$line\" ]")


class Oci:
    """Those that take a bundle."""

    options = ()

    def contained(self, name, root, words, sockets, what):
        owner = what.pop("owner", 0)
        rootless = what.pop("rootless", False)
        folder = self.folder / f"bundle-{name}"
        state = self.folder / f"state-{name}"
        for one in (folder, state):
            one.mkdir(exist_ok=True)
            if os.geteuid() == 0:
                os.chown(one, owner if rootless else 0, owner if rootless else 0)
        bundle.write_config(folder, root, words, self.variables, sockets=sockets, **what)
        os.chmod(folder / "config.json", 0o644)
        before = as_user(owner) if rootless and os.geteuid() == 0 else []
        before = with_one_hierarchy([*before, "env", f"XDG_RUNTIME_DIR={state}", self.program,
                                     "--root", str(state), *self.options])
        identity = f"vmmshare-{os.getpid()}-{name}"
        self.addCleanup(subprocess.run, [*before, "delete", "--force", identity],
                        capture_output=True, timeout=PATIENCE)
        return [*before, "run", "--bundle", str(folder), identity]


class Podman:
    def contained(self, name, root, words, sockets, what):
        storage = self.folder / "podman"
        podman = with_one_hierarchy([
            *self.session(storage), "podman", "--root", f"{storage}/root", "--runroot",
            f"{storage}/run", "--tmpdir", f"{storage}/tmp", "--storage-driver=vfs"])
        identity = f"vmmshare-{os.getpid()}-{name}"
        self.addCleanup(subprocess.run,
                        [*podman, "rm", "--force", "--ignore", "--time=0", identity],
                        capture_output=True, timeout=PATIENCE)
        options = ["--network=none", "--cgroups=disabled", "--ulimit=nofile=1024:1024",
                   "--ulimit=nproc=4096:4096", "--log-driver=none"]
        options += [f"--env={key}={value}" for key, value in self.variables.items()]
        if sockets:
            options.append(f"--volume={sockets}:{sockets}")
        return [*podman, "run", "--rm", "--interactive", f"--name={identity}", *options,
                *self.rights(**what), "--rootfs", str(root), *words]

    def session(self, storage):
        """Without root Podman leaves a process behind, for each session: this is one's own."""
        if os.geteuid() == 0:
            return []
        folder = storage / "session"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = ["env", f"XDG_RUNTIME_DIR={folder}"]
        self.addCleanup(subprocess.run, [*environment, "podman", "system", "migrate"],
                        capture_output=True, timeout=PATIENCE)
        return environment

    def rights(self, *, owner=0, rootless=False, read_only=False, shm=True, user=0,
               capabilities=(), deny=(), masked=(), users=None):
        if rootless:
            return [] if os.geteuid() != 0 else self.skipTest("is for a user to run")
        options = [f"--security-opt=mask={path}" for path in masked]
        options += [] if capabilities else ["--cap-drop=all"]
        options += ["--read-only"] if read_only else []
        options += [] if shm else ["--ipc=none"]
        options += [f"--user={user}:{user}"] if user else []
        if users:
            options += [f"--{kind}map=0:{users[0]}:{users[1]}" for kind in ("uid", "gid")]
        if deny:
            profile = self.folder / "seccomp.json"
            profile.write_text(json.dumps(bundle.profile(deny)))
            options.append(f"--security-opt=seccomp={profile}")
        return options


class SystemdNspawn:
    def contained(self, name, root, words, sockets, what):
        options = [f"--setenv={key}={value}" for key, value in self.variables.items()]
        if sockets:
            options.append(f"--bind={sockets}")
        tools = f"/opt/{root.name}"
        if not what.pop("own_boot_id", False):
            gone = bundle.BOOT_ID if what.pop("shm", True) else f"{bundle.BOOT_ID} /dev/shm"
            words = [f"{tools}/sh", "-c", f'{tools}/umount {gone} && exec "$@"', "sh", *words]
        # Two containers may have one folder as their root if neither writes to it.
        return ["systemd-nspawn", "--quiet", "--pipe", "--register=no", "--keep-unit", "--as-pid2",
                "--private-network", "--read-only", f"--machine=vmmshare-{os.getpid()}-{name}",
                f"--directory={root}", *options, *self.rights(**what), *words]

    def rights(self, *, read_only=True, capabilities=(), deny=()):
        return [f"--system-call-filter=~{' '.join(deny)}"] if deny else []
