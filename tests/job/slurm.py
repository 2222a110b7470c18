"""A Slurm cluster on this machine: a login node with the controller, and nodes that run jobs.

Each is a network and mount namespace with a host name and a boot id of its own, as another
machine has. Slurm's and munge's daemons run in them, with their files in a folder of the
cluster's. Needs root, and of Debian's packages those in `PACKAGES`.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid

PACKAGES = "slurmctld slurmd slurm-client munge libpmix-dev iproute2"
PATIENCE = 60  # Seconds, for what takes tenths of one.

CONFIGURATION = """
ClusterName=vmmshare
SlurmctldHost=login(10.98.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}/tmp.%n
TaskProlog={folder}/prolog
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=5
KillWait=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""

# What a node does for a task before it runs: it adds what the node's environment has.
PROLOG = """#!/bin/sh
sed 's/^/export /' {folder}/environment.$SLURMD_NODENAME
"""


def why_not():
    """Why this machine has no cluster; empty if it can."""
    if os.geteuid() != 0:
        return "namespaces with interfaces need root"
    programs = ("slurmctld", "slurmd", "srun", "munged", "ip", "nsenter", "unshare")
    missing = [each for each in programs if not shutil.which(each)]
    if missing:
        return f"no {', '.join(missing)} here: apt-get install {PACKAGES}"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "name",
                            "cluster", "type", "bridge"], capture_output=True, text=True, check=False)
    return f"no namespaces with bridges here: {tried.stderr.strip()}" if tried.returncode else ""


def await_that(holds, what):
    """Returns once `holds()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.02)


class Cluster:
    """Begins with all nodes idle. `close` ends all that ever ran in it."""

    def __init__(self, nodes=3, cores=4):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="vmmshare-slurm-"))
        self.nodes = [f"node{i}" for i in range(nodes)]
        self.holders = {}  # By host: the process that has its namespaces.
        self.controller = None
        self.started = contextlib.ExitStack()
        try:
            self._configure(cores)
            for host in ["login", *self.nodes]:
                self._make(host)
            self._connect()
            self._start("login", "munged", "--foreground", "--force",
                        *(f"--{name}-file={self.folder}/{file}" for name, file in
                          (("key", "key"), ("pid", "munge.pid"), ("log", "munge.log"),
                           ("seed", "seed"))), f"--socket={self.folder}/munge.socket")
            await_that((self.folder / "munge.socket").exists, "munged listens")
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.await_idle()
        except BaseException:
            self.close()
            raise

    def close(self):
        for host in list(self.holders):
            self.kill_all_on(host)
        self.started.close()
        shutil.rmtree(self.folder)

    # Environment of the tasks of a node, beside what srun takes along.
    def set_environment(self, node, **variables):
        (self.folder / f"environment.{node}").write_text(
            "".join(f"{name}={value}\n" for name, value in variables.items()))

    def start_controller(self):
        self.controller = self._start("login", "slurmctld", "-D")

    def kill_controller(self):
        self.controller.kill()
        self.controller.wait()

    def start_node(self, node):
        self._start(node, "slurmd", "-D")

    def await_idle(self):
        await_that(lambda: self.states() == ["idle"] * len(self.nodes),
                   f"all nodes are idle, not {self.states()}\n{self.logs()}")

    def end_jobs(self):
        """Returns once no job is left and all nodes are idle."""
        await_that(lambda: self.run("scancel", "--user=root", "--signal=KILL").returncode == 0 and
                   self.run("squeue", "--noheader").stdout == "", "no job is left")
        self.await_idle()

    def states(self):
        return self.run("sinfo", "--Node", "--noheader", "--format=%T").stdout.split()

    def run(self, *words, timeout=PATIENCE):
        """Runs a command on the login node."""
        return subprocess.run(self.on("login", *words), env=self.environment(), text=True,
                              capture_output=True, timeout=timeout, check=False)

    @contextlib.contextmanager
    def running(self, *words):
        """A command that runs on the login node, its output one pipe; killed in the end, or
        after `PATIENCE`, so that reading what it says ends."""
        with subprocess.Popen(self.on("login", *words), env=self.environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            timer = threading.Timer(PATIENCE, process.kill)
            timer.start()
            try:
                yield process
            finally:
                timer.cancel()
                process.kill()

    def on(self, host, *words):
        return ["nsenter", "-t", str(self.holders[host].pid), "--net", "--uts", "--mount",
                *map(str, words)]

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMIX_"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def kill_all_on(self, host):
        """What the loss of power does to a host's processes, but for one that has its name."""
        holder = self.holders[host].pid
        space = os.readlink(f"/proc/{holder}/ns/net")

        def others():
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns/net") == space and int(entry.name) != holder:
                        yield int(entry.name)

        def none_left():
            left = list(others())
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return not left

        await_that(none_left, f"all processes of {host} are gone")

    def logs(self):
        return "".join(f"== {file.name}\n{file.read_text(errors='replace')[-4000:]}\n"
                       for file in sorted(self.folder.glob("*.log")))

    def _configure(self, cores):
        folder = self.folder
        folder.chmod(0o755)
        (folder / "state").mkdir()
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        lines = [f"NodeName={node} NodeAddr=10.98.0.{i + 2} CPUs={cores}"
                 for i, node in enumerate(self.nodes)]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=folder, nodes="\n".join(lines), names=",".join(self.nodes)))
        # "slurm 22.05.8" knows no other word for it, newer ones want no cgroups at all.
        version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True)
        old = int(version.stdout.split()[1].split(".")[0]) < 23
        (folder / "cgroup.conf").write_text(
            f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n")
        prolog = folder / "prolog"
        prolog.write_text(PROLOG.format(folder=folder))
        prolog.chmod(0o755)
        for node in self.nodes:
            (folder / f"tmp.{node}").mkdir()
            self.set_environment(node)

    def _make(self, host):
        boot_id = self.folder / f"boot_id.{host}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        script = (f"hostname {host} && mount --bind {boot_id} /proc/sys/kernel/random/boot_id && "
                  "echo made && exec sleep infinity")
        holder = self.started.enter_context(subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        self.started.callback(holder.kill)
        said = holder.stdout.readline()
        if said != "made\n":
            raise RuntimeError(f"no node {host}: {said}")
        self.holders[host] = holder

    def _connect(self):
        def ip(host, *words):
            subprocess.run(self.on(host, "ip", *words), check=True)

        ip("login", "link", "set", "lo", "up")
        ip("login", "link", "add", "cluster", "type", "bridge")
        ip("login", "addr", "add", "10.98.0.1/24", "dev", "cluster")
        ip("login", "link", "set", "cluster", "up")
        for i, node in enumerate(self.nodes):
            ip("login", "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0",
               "netns", str(self.holders[node].pid))
            ip("login", "link", "set", f"to-{node}", "master", "cluster", "up")
            ip(node, "addr", "add", f"10.98.0.{i + 2}/24", "dev", "eth0")
            ip(node, "link", "set", "eth0", "up")
            ip(node, "link", "set", "lo", "up")

    def _start(self, host, *words):
        log = self.started.enter_context(open(self.folder / f"{words[0]}.{host}.out", "ab"))
        process = self.started.enter_context(subprocess.Popen(
            self.on(host, *words), env=self.environment(), stdout=log, stderr=log))
        self.started.callback(process.kill)
        return process
