#!/usr/bin/env python3
"""`vmmshare keep`, run as people run it.

usage: keep_test.py TOOL [UNITTEST ARGUMENTS]
"""

import fcntl
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOOL = sys.argv[1]
OTHER = 12002  # A user whom no machine has.
UNIT = pathlib.Path(__file__).resolve().parents[2] / ".packaging/systemd/vmmshare-keeper@.service"
UNIT_LISTENS_AT = re.search(r"--address=(\S+)", UNIT.read_text())[1]


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))


def with_no_request_ignored():
    """Whoever runs the tests in the background may have had them ignored."""
    for request in (signal.SIGINT, signal.SIGHUP):
        signal.signal(request, signal.SIG_DFL)


class KeepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-keep-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.address = str(self.folder / "keeper")
        self.env = {k: v for k, v in os.environ.items()
                    if k not in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")}

    def run_tool(self, *words, **options):
        return subprocess.run([TOOL, "keep", *words], env=self.env, text=True, timeout=30,
                              capture_output=True, check=False, **options)

    def start(self, *words, env=None, **options):
        keeper = subprocess.Popen([TOOL, "keep", *words], env=env or self.env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(keeper.stderr.close)
        self.addCleanup(keeper.stdout.close)
        self.addCleanup(keeper.wait, 30)
        self.addCleanup(keeper.kill)
        return keeper


# Runs sys.argv[1:] as a service that is given so many descriptors of no memory, of each of
# which the keeper says a line.
WITH_JUNK = """
import os, sys
nothing = os.open("/dev/null", os.O_RDONLY)
for number in range(3, 203):
    os.dup2(nothing, number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="200")
os.execv(sys.argv[1], sys.argv[1:])
"""


class Keep(KeepTest):
    def test_it_serves_and_ends_though_nobody_reads_what_it_says(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
        with subprocess.Popen([sys.executable, "-c", WITH_JUNK, TOOL, "keep",
                               "--address=" + self.address], env=self.env, text=True,
                              stdout=subprocess.PIPE, stderr=writer) as keeper:
            os.close(writer)
            killer = threading.Timer(30, keeper.kill)  # Should it say nothing.
            killer.start()
            self.assertEqual(keeper.stdout.readline(), self.address + "\n")
            killer.cancel()
            listed = self.run_tool("--list", "--address", self.address)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            said = os.read(reader, 1 << 16).decode()
            self.assertGreater(len(said), 4000)  # Or it was not put to the test.
            for line in said.splitlines()[:-1]:
                self.assertRegex(line, "^vmmshare keep: ")
            # Now there is room, and more to say: it has no descriptor for a client.
            limit = resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, (1, limit[1]))
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(client.close)
            client.connect(self.address)
            self.assertTrue(select.select([reader], [], [], 30)[0])
            self.assertRegex(os.read(reader, 1 << 16).decode(),
                             r"vmmshare keep: \d+ lines before this were dropped: nobody read")
            # A sanitizer's look for leaks at the end needs some.
            resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, limit)
            keeper.terminate()
            status = keeper.wait(30)
            said = (os.read(reader, 1 << 16).decode()
                    if select.select([reader], [], [], 0)[0] else "")
            self.assertEqual(status, 0, said)

    def test_what_it_cannot_accept_for_long_it_says_once(self):
        keeper = self.start("--address=" + self.address)
        self.assertEqual(keeper.stdout.readline(), self.address + "\n")
        limit = resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, (4, limit[1]))
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(client.close)
        client.connect(self.address)
        time.sleep(0.5)  # It tries 25 times.
        resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, limit)
        keeper.terminate()
        said = keeper.communicate(timeout=30)[1]
        self.assertEqual(said.count("accept4("), 1, said)

    def filled_pipe(self):
        """The ends of a pipe, (reader, writer), that takes no more."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        return reader, writer

    def await_service(self, keeper):
        """Until it listens, which it does before it says so."""
        deadline = time.monotonic() + 30
        while self.run_tool("--list", "--address", self.address).returncode != 0:
            self.assertIsNone(keeper.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def start_with(self, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options):
        """What it prints goes elsewhere than to pipes of our own."""
        keeper = subprocess.Popen([TOOL, "keep", "--address=" + self.address], env=self.env,
                                  text=True, stdout=stdout, stderr=stderr, **options)
        self.addCleanup(keeper.wait, 30)
        self.addCleanup(keeper.kill)
        return keeper

    def test_it_serves_and_ends_though_nobody_reads_its_address(self):
        _, writer = self.filled_pipe()
        keeper = self.start_with(stdout=writer)
        os.close(writer)
        self.await_service(keeper)
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)
        self.assertFalse(os.path.exists(self.address))

    def test_a_slow_reader_is_told_the_address_whole(self):
        reader, writer = self.filled_pipe()
        keeper = self.start_with(stdout=writer)
        os.close(writer)
        self.await_service(keeper)
        said = b""
        while not said.endswith(b"\n") and select.select([reader], [], [], 30)[0]:
            said += os.read(reader, 1 << 16)
        self.assertEqual(said.lstrip(b"x").decode(), self.address + "\n")
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)

    def test_where_its_address_cannot_be_printed_its_log_says_so(self):
        with open("/dev/full", "wb") as full:
            keeper = self.start_with(stdout=full, stderr=subprocess.PIPE)
        self.addCleanup(keeper.stderr.close)
        # Whatever it says before, and should it never say that it is killed.
        killer = threading.Timer(30, keeper.kill)
        killer.start()
        self.addCleanup(killer.cancel)
        for line in keeper.stderr:
            if f"it serves at {self.address}, which standard output was not told" in line:
                break
        else:
            self.fail("it did not say that its address could not be printed")
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)

    def test_a_keeper_that_fails_ends_though_nobody_reads_why(self):
        first = self.start("--address=" + self.address)
        first.stdout.readline()
        _, writer = self.filled_pipe()
        # Held from the start: before it does that itself a request ends it at once.
        second = self.start_with(stderr=writer, preexec_fn=lambda: signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM}))
        os.close(writer)
        second.terminate()
        self.assertEqual(second.wait(30), 1)

    def test_it_prints_its_address_serves_and_ends_cleanly(self):
        for ended_by in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            keeper = self.start("--address=" + self.address, preexec_fn=with_no_request_ignored)
            self.assertEqual(keeper.stdout.readline(), self.address + "\n")
            self.assertRegex(keeper.stderr.readline(),
                             "nothing survives a restart .* NOTIFY_SOCKET is not set")
            listed = self.run_tool("--list", "--address", self.address)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertTrue(listed.stdout.startswith("nothing is kept\nnothing survives"))
            listed = self.run_tool("--list", "--json", "--address", self.address)
            self.assertEqual((listed.returncode, listed.stdout), (0, "[]\n"), listed.stderr)
            keeper.send_signal(ended_by)
            self.assertEqual(keeper.wait(30), 0)
            self.assertEqual(keeper.stderr.read(), "")
            self.assertFalse(os.path.exists(self.address))

    def test_requests_that_are_ignored_for_it_do_not_end_it(self):
        for ignored in (signal.SIGINT, signal.SIGHUP):
            keeper = self.start("--address=" + self.address,
                                preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN))
            self.assertEqual(keeper.stdout.readline(), self.address + "\n")
            keeper.send_signal(ignored)
            for _ in range(3):
                listed = self.run_tool("--list", "--address", self.address)
                self.assertEqual(listed.returncode, 0, listed.stderr)
            keeper.terminate()
            self.assertEqual(keeper.wait(30), 0)

    def test_it_outlives_the_readers_of_what_it_prints(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        keeper = subprocess.Popen([TOOL, "keep", "--address=" + self.address], env=self.env,
                                  text=True, stdout=subprocess.PIPE, stderr=writer)
        self.addCleanup(keeper.stdout.close)
        self.addCleanup(keeper.wait, 30)
        self.addCleanup(keeper.kill)
        self.assertEqual(keeper.stdout.readline(), self.address + "\n")
        listed = self.run_tool("--list", "--address", self.address)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)

    def test_a_listing_that_cannot_be_written_is_an_error(self):
        keeper = self.start("--address=" + self.address)
        keeper.stdout.readline()
        for where in (">/dev/full", ">&-", "<&- >&-"):
            done = subprocess.run(
                ["sh", "-c", f'"$0" keep --list --address "$1" {where}', TOOL, self.address],
                env=self.env, text=True, timeout=30, capture_output=True, check=False)
            self.assertEqual(done.returncode, 1, (where, done.stderr))
            self.assertIn("could not be written", done.stderr, where)

    def test_it_loads_no_driver(self):
        keeper = self.start("--address=" + self.address)
        keeper.stdout.readline()
        maps = pathlib.Path(f"/proc/{keeper.pid}/maps").read_text()
        self.assertIn("libc", maps)
        for name in ("libcuda", "nvidia", "hostdriver"):
            self.assertNotIn(name, maps)

    def test_the_default_address_is_the_users_own(self):
        self.env["XDG_RUNTIME_DIR"] = str(self.folder)
        self.env.pop("NVIDIA_DRA_LOCAL_IPC_DIR", None)
        keeper = self.start()
        self.assertEqual(keeper.stdout.readline(),
                         f"{self.folder}/vmmshare/keeper-{os.geteuid()}\n")
        self.assertEqual(self.run_tool("--list").returncode, 0)
        second = self.run_tool()
        self.assertEqual(second.returncode, 1)
        self.assertIn("living process", second.stderr)
        self.assertIn("A keeper may run there already: `vmmshare keep --list --address="
                      f"{self.folder}/vmmshare/keeper-{os.geteuid()}` asks it", second.stderr)

    def test_systemd_is_told_that_it_serves(self):
        notify = str(self.folder / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(notify)
            systemd.settimeout(30)
            keeper = self.start("--address=" + self.address,
                                env={**self.env, "NOTIFY_SOCKET": notify})
            self.assertEqual(keeper.stdout.readline(), self.address + "\n")
            self.assertEqual(systemd.recv(4096), b"READY=1")
            keeper.terminate()
            self.assertEqual(keeper.wait(30), 0)
            self.assertEqual(keeper.stderr.read(), "")

    def test_what_cannot_be_asked_or_dropped_is_an_error(self):
        alone = self.run_tool("--list", "--address", self.address)
        self.assertEqual(alone.returncode, 1)
        self.assertIn("vmmshare keep", alone.stderr)
        # That of systemd's unit is not where clients look by themselves.
        self.assertIn(UNIT_LISTENS_AT.replace("%i", "USER"), alone.stderr)
        keeper = self.start("--address=" + self.address)
        keeper.stdout.readline()
        dropped = self.run_tool("--drop", "weights", "--address", self.address)
        self.assertEqual(dropped.returncode, 1)
        self.assertIn("weights", dropped.stderr)
        self.assertIn("nothing is kept", dropped.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user, too")
    def test_a_keeper_of_another_user_lets_in_whom_it_was_started_with(self):
        self.folder.chmod(0o755)
        tool = shutil.copy(TOOL, self.folder)  # Where that user may come.
        as_other = {"user": OTHER, "group": OTHER, "extra_groups": []}
        try:
            subprocess.run([tool, "--version"], timeout=30, capture_output=True, check=True, **as_other)
        except (OSError, subprocess.SubprocessError) as error:
            self.skipTest(f"another user cannot run {tool}: {error}")

        def ask():
            return subprocess.run(
                [tool, "keep", "--list", "--address", self.address, f"--allow-user={os.geteuid()}"],
                env=self.env, text=True, timeout=30, capture_output=True, check=False, **as_other)

        keeper = self.start("--address=" + self.address)
        keeper.stdout.readline()
        refused = ask()
        self.assertEqual(refused.returncode, 1, refused.stdout)
        # The client has said all that it can: what is missing is the keeper's own.
        self.assertIn("lets in whom it was started with --allow-user", refused.stderr)
        self.assertIn("0755", refused.stderr)
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)

        # One that lets in somebody else has a socket that others reach, and hangs up on them.
        keeper = self.start("--address=" + self.address, f"--allow-user={OTHER + 1}")
        keeper.stdout.readline()
        refused = ask()
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("hung up before anything came from it", refused.stderr)
        self.assertIn(f"started with --allow-user={OTHER}", refused.stderr)
        ask()
        keeper.terminate()
        self.assertEqual(keeper.wait(30), 0)
        # Whom it hangs up on learns nothing: who runs it does, and once of each user.
        said = keeper.stderr.read()
        self.assertRegex(said, f"vmmshare keep: process [0-9]+ of user {OTHER} is turned away")
        self.assertIn(f"only these users may connect: 0, {OTHER + 1}. Others are named", said)
        self.assertEqual(said.count("turned away"), 1, said)

        keeper = self.start("--address=" + self.address, f"--allow-user={OTHER}")
        keeper.stdout.readline()
        listed = ask()
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("nothing is kept", listed.stdout)

    def test_too_few_descriptors_are_an_error_with_figures(self):
        result = self.run_tool("--address", self.address, preexec_fn=few_descriptors)
        self.assertEqual(result.returncode, 1)
        self.assertIn("128 descriptors", result.stderr)
        self.assertIn("LimitNOFILE", result.stderr)

    def test_a_hard_limit_as_shells_have_it_does(self):
        for limit in (256, 1024):
            address = f"{self.address}-{limit}"
            keeper = self.start("--address=" + address, preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (limit, limit)))
            self.assertEqual(keeper.stdout.readline(), address + "\n")

    def test_a_soft_limit_does_not_matter(self):
        keeper = self.start("--address=" + self.address, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
        self.assertEqual(keeper.stdout.readline(), self.address + "\n")

    def test_words_that_make_no_sense(self):
        for word, says in (("--max-names=0", "from 1 on"), ("--max-bytes=5X", "K, M, G or T"),
                           ("--quota-bytes=99999999T", "K, M, G or T"),
                           ("--max-names=1K", "from 1 on"), ("--drop=a b", "A-Z a-z"),
                           ("--list=x", "takes no value"), ("--frob", "unknown option"),
                           ("--frob=1", "unknown option"), ("word", "unexpected word"),
                           ("--allow-user=", "needs a value"),
                           ("--allow-user=-1", "nobody has this name"),
                           ("--allow-user=4294967295", "too large"),
                           ("--allow-user=4294967296", "too large"),
                           ("--allow-user=no such user", "nobody has this name"),
                           ("--address", "needs a value")):
            result = self.run_tool(word)
            self.assertEqual(result.returncode, 2, word)
            self.assertIn(says, result.stderr)
        both = self.run_tool("--list", "--drop=x")
        self.assertEqual(both.returncode, 2)

    def test_help_names_every_option(self):
        text = self.run_tool("--help").stdout
        for option in ("address", "max-names", "max-bytes", "max-connections", "quota-names", "quota-bytes",
                       "allow-user", "list", "drop", "help"):
            self.assertIn("--" + option, text)
        usage = subprocess.run([TOOL, "--help"], text=True, capture_output=True, check=True)
        self.assertIn("  keep ", usage.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
