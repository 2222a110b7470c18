"""Peers of two releases alive at once: they share, or refuse and name versions.

    upgrade_test.py [--spoilt] PEER HOSTDRIVER PREVIOUS CURRENT

PEER is tests/upgrade/peer.c, built against the older release. PREVIOUS and CURRENT
are folders with libvmmshare.so.1 and the tool, vmmshare, of either release. Every
case is tried with the owner, the importer and, where there is one, the keeper of
either. Between two of one release nothing is refused. With --spoilt the owner leaves
a byte that is wrong, and each case has to see it.
"""

import argparse
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

REFUSED = 3
SECONDS = 60
# A refusal names the versions: what came, and what is known here.
NAMES_VERSIONS = re.compile(r"\b(version|release)\b.*\d", re.DOTALL)


class Release:
    def __init__(self, name, folder):
        self.name = name
        self.folder = os.path.abspath(folder)

    def start(self, command, **how):
        environment = dict(os.environ, LD_LIBRARY_PATH=self.folder,
                           XDG_RUNTIME_DIR=how.pop("runtime"))
        if how.pop("spoilt", False):
            environment["VMMSHARE_UPGRADE_SPOILT"] = "1"
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, **how)

    def keep(self, address, runtime):
        keeper = self.start([os.path.join(self.folder, "vmmshare"), "keep",
                             f"--address={address}"], runtime=runtime)
        if not keeper.stdout.readline():
            raise AssertionError(f"the keeper of {self.name} does not serve")
        return keeper


class Outcome:
    """What became of a process: its exit status and what it said."""

    def __init__(self, process, sent=""):
        try:
            said, _ = process.communicate(sent, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said = "did not end: " + (process.communicate()[0] or "")
        self.status, self.said = process.returncode, said.strip()


def by_text(test, owner, importer, case):
    process = test.peer(owner, case, "owner", spoilt=test.spoilt)
    line = process.stdout.readline()
    if not line.startswith("vmmshare"):
        ended = Outcome(process)
        ended.said = line + ended.said
        return [ended]
    imported = Outcome(test.peer(importer, case, "importer", *line.split()))
    if imported.status != 0:
        # What the importer did not do, the owner need not wait for.
        process.kill()
        process.communicate()
        return [imported]
    return [imported, Outcome(process, "\n")]


def over_a_socket(test, owner, importer, case):
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    started = []
    for release, role, end in zip((owner, importer), ("owner", "importer"), ends):
        fd = end.fileno()
        started.append(test.peer(release, case, role, str(fd), pass_fds=(fd,),
                                 spoilt=test.spoilt and role == "owner"))
        end.close()
    outcomes = [Outcome(started[1])]
    if outcomes[0].status != 0:
        # The owner may have refused. If not, it waits for who is no more.
        try:
            started[0].wait(5)
        except subprocess.TimeoutExpired:
            started[0].kill()
            started[0].communicate()
            return outcomes
    return outcomes + [Outcome(started[0])]


class Test:
    def __init__(self, options, runtime):
        self.options = options
        self.runtime = runtime
        self.spoilt = options.spoilt
        self.failures = 0
        self.rows = []

    def peer(self, release, case, role, *more, **how):
        return release.start([self.options.peer, self.options.hostdriver, case, role, *more],
                             runtime=self.runtime, **how)

    def judge(self, case, releases, outcomes):
        wrong = [one for one in outcomes if one.status != 0]
        same = len({release.name for release in releases}) == 1
        if self.spoilt:
            passed, verdict = bool(wrong) and wrong[0].status == 1, "the byte was seen"
        elif not wrong:
            passed, verdict = True, "shared"
        else:
            named = [one.said for one in wrong if NAMES_VERSIONS.search(one.said)]
            passed = (not same and bool(named) and
                      all(one.status == REFUSED for one in wrong))
            verdict = "refused: " + named[0].splitlines()[0] if passed else ""
        if not passed:
            self.failures += 1
            verdict = "WRONG: " + "; ".join(
                f"status {one.status} {one.said}" for one in outcomes)
        self.rows.append((case, " ".join(release.name for release in releases), verdict))
        print(f"{case:8} {self.rows[-1][1]:26} {verdict}", flush=True)

    def keeper(self, keeper, owner, importer):
        address = os.path.join(self.runtime, "keeper")
        process = keeper.keep(address, self.runtime)
        try:
            outcomes = [Outcome(self.peer(owner, "keeper", "owner", address, spoilt=self.spoilt))]
            if outcomes[0].status == 0:
                outcomes.append(Outcome(self.peer(importer, "keeper", "importer", address)))
        finally:
            process.send_signal(signal.SIGTERM)
            outcomes.append(Outcome(process))
        self.judge("keeper", (keeper, owner, importer), outcomes)

    def run(self, releases):
        for owner, importer in itertools.product(releases, repeat=2):
            for case in ("memory", "block", "fence"):
                self.judge(case, (owner, importer), by_text(self, owner, importer, case))
            for case in ("channel", "ring"):
                self.judge(case, (owner, importer), over_a_socket(self, owner, importer, case))
        for keeper, owner, importer in itertools.product(releases, repeat=3):
            self.keeper(keeper, owner, importer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spoilt", action="store_true")
    for name in ("peer", "hostdriver", "previous", "current"):
        parser.add_argument(name)
    options = parser.parse_args()
    releases = [Release("previous", options.previous)]
    if os.path.realpath(options.previous) == os.path.realpath(options.current):
        releases[0].name = "current"
    else:
        releases.append(Release("current", options.current))
    with tempfile.TemporaryDirectory(prefix="vmmshare-upgrade-") as runtime:
        os.chmod(runtime, 0o700)
        test = Test(options, runtime)
        test.run(releases)
    refused = sum(verdict.startswith("refused") for _, _, verdict in test.rows)
    print(f"{len(test.rows)} pairs, {refused} refused with the versions named, "
          f"{test.failures} wrong")
    return 1 if test.failures else 0


if __name__ == "__main__":
    sys.exit(main())
