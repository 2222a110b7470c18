"""Images and OCI bundles for container runtimes, made of this machine's own files.

An image is a folder with the program under test, a shell and umount, the libraries that ldd
finds for them, and nothing else: no /etc/passwd. Nothing is downloaded.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

# What Podman 4 gives to a container (containers.conf); Docker adds four to it.
PODMANS = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP",
           "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"]
MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
TOOLS = ["/bin/sh", "/bin/umount"]
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def make_image(root, programs):
    """Makes the folder `root` an image, with the `programs` in /opt/NAME-OF-ROOT."""
    found = set()
    for program in [*programs, *TOOLS]:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        found |= set(re.findall(r"(/\S+) \(0x", listed))
    for library in found:
        copy = root / library.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, copy)
    for folder in ["dev", "proc", "sys", "tmp", "run", "usr", "etc", f"opt/{root.name}"]:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for program in [*programs, *TOOLS]:
        shutil.copy(program, root / "opt" / root.name)


def give(root, user):
    """What is in `root` becomes that user's: a library of another user is not loaded."""
    for folder, folders, files in os.walk(root):
        for name in [".", *folders, *files]:
            os.chown(os.path.join(folder, name), user, user, follow_symlinks=False)


def mounts(sockets, with_shm):
    own = ["nosuid", "noexec", "nodev"]
    yield {"destination": "/proc", "type": "proc", "source": "proc"}
    yield {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
           "options": ["nosuid", "mode=755", "size=65536k"]}
    if with_shm:
        yield {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
               "options": [*own, "mode=1777", "size=65536k"]}
    if sockets:
        yield {"destination": sockets, "type": "bind", "source": sockets,
               "options": ["bind", "rw", *own]}


def profile(deny):
    """For seccomp, as OCI has it and Podman reads it."""
    return {"defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": list(deny), "action": "SCMP_ACT_ERRNO"}]}


def write_config(folder, image, words, variables, *, sockets=None, read_only=False, shm=True,
                 user=0, capabilities=(), deny=(), masked=(), users=None):
    """Writes config.json of an OCI bundle whose process runs `words` in `image`."""
    rights = [f"CAP_{one}" for one in capabilities]
    namespaces = ["pid", "network", "ipc", "uts", "mount"]
    linux = {"maskedPaths": [*MASKED, *masked], "readonlyPaths": READ_ONLY}
    if users:
        outside, count = users
        namespaces.append("user")
        mapping = [{"containerID": 0, "hostID": outside, "size": count}]
        linux |= {"uidMappings": mapping, "gidMappings": mapping}
    if deny:
        linux["seccomp"] = profile(deny)
    config = {
        "ociVersion": "1.0.0",
        "hostname": folder.name,
        "root": {"path": str(image), "readonly": read_only},
        "process": {"cwd": "/", "args": list(words), "user": {"uid": user, "gid": user},
                    "env": [f"{name}={value}" for name, value in variables.items()],
                    "noNewPrivileges": True,
                    "capabilities": {which: rights for which in
                                     ("bounding", "effective", "permitted")}},
        "mounts": list(mounts(sockets, shm)),
        "linux": linux | {"namespaces": [{"type": one} for one in namespaces]},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
