"""An owner and an importer with something between them: what the tests of containers share.

A side is an object with command(case, name, words): the words that run `words`, a program of
the build and its arguments, on that side. `case` is the test, `name` is owner or importer.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest
import uuid

PATIENCE = 60  # Seconds, for what takes milliseconds.
USER, OTHER = 12001, 12002  # Users whom no machine has.
FOLDER = "NVIDIA_DRA_LOCAL_IPC_DIR"
NOT_IN_FORCE = "not in force"  # Said by a side on which nothing is as its row says.


class Prefix:
    """A side of this machine's own programs, begun by the words `before`."""

    def __init__(self, before, user=0):
        self.before, self.user = before, user

    def command(self, case, name, words):
        # A library of another user is not loaded.
        own = case.folder / name
        if not own.is_dir():
            own.mkdir()
            for one in (case.hello, case.driver):
                copy = shutil.copy(one, own)
                if os.geteuid() == 0:
                    os.chown(copy, self.user, self.user)
        return [*self.before, *(str(own / pathlib.Path(word).name)
                                if word in (case.hello, case.driver) else word for word in words)]


def as_user(user):
    return ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


def after(before, script):
    """The words `before`, and a shell in which `script` runs first."""
    return [*before, "sh", "-c", script + ' && exec "$@"', "sh"]


def proof(condition):
    """Shell that ends unless `condition` holds: else a row could pass without what it is about."""
    return f"{{ {condition}; }} || {{ echo '{NOT_IN_FORCE}: {condition}' >&2; exit 3; }}"


class TwoSides(unittest.TestCase):
    hello = driver = ""  # Of the build; set by main().
    variables = {}       # Beside those of the machine.

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-containers-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.addCleanup(self.expect_untouched, os.stat(os.devnull))
        os.chmod(folder.name, 0o755)
        self.folder = pathlib.Path(folder.name)
        self.sockets = self.folder / "sockets"
        self.sockets.mkdir()
        self.variables = {FOLDER: str(self.sockets),
                          "VMMSHARE_HOST_INSTANCE": f"containers-{uuid.uuid4().hex[:12]}"}

    def expect_untouched(self, before):
        now = os.stat(os.devnull)
        self.assertEqual((now.st_uid, now.st_gid, now.st_mode),
                         (before.st_uid, before.st_gid, before.st_mode),
                         f"{os.devnull} of this machine was changed")

    def give_sockets_to(self, user, mode=0o755):
        if os.geteuid() == 0:
            os.chown(self.sockets, user, user)
        self.sockets.chmod(mode)

    def shares(self, owner, importer):
        status, said, error = self.run_both(owner, importer)
        self.assertEqual(status, 0, error)
        self.assertIn("opened", said)

    def refuses(self, owner, importer, code, message):
        status, said, error = self.run_both(owner, importer)
        self.expect(status, said, error, code, message)

    def owner_is_refused(self, owner, code, message):
        self.try_out("owner", owner)
        child = self.start("owner", owner)
        said, error = child.communicate("\n", timeout=PATIENCE)
        self.expect(child.returncode, said, error, code, message)

    def expect(self, status, said, error, code, message):
        self.assertEqual(status, 1, said + error)
        self.assertRegex(error, f"(?m)^{code}: ")
        self.assertIn(message, error)

    def run_both(self, owner_side, importer_side):
        self.try_out("owner", owner_side)
        self.try_out("importer", importer_side)
        owner = self.start("owner", owner_side)
        importer = self.start("importer", importer_side, self.ticket_of(owner))
        said, error = importer.communicate(timeout=PATIENCE)
        owners = owner.communicate("\n", timeout=PATIENCE)[1]
        self.assertEqual(owner.returncode, 0, owners)
        return importer.returncode, said, error

    def try_out(self, name, side):
        """Skips this test where the machine does not allow such a side."""
        words = side.command(self, name, [self.hello, "--help"])
        # Pipes, never /dev/null: crun gives what it has as standard input to the container's
        # user, and that would be the machine's own device.
        tried = subprocess.run(words, capture_output=True, text=True, input="",
                               env=os.environ | self.variables, timeout=PATIENCE)
        self.assertNotIn(NOT_IN_FORCE, tried.stderr)
        if tried.returncode != 0 or "DRIVER TICKET" not in tried.stdout:
            self.skipTest(f"not allowed on this machine: {tried.stderr.strip()}")

    def start(self, name, side, *more):
        words = side.command(self, name, [self.hello, self.driver, *more])
        child = subprocess.Popen(words, env=os.environ | self.variables, text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        self.addCleanup(child.communicate, timeout=PATIENCE)
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


def rows_of(suite):
    return [one.__doc__ for name, one in vars(suite).items()
            if name.startswith("test_") and one.__doc__]


def main(module, words, table):
    """words: HELLO DRIVER SOURCE [--table | UNITTEST ARGUMENTS]"""
    TwoSides.hello, TwoSides.driver = (os.path.abspath(one) for one in words[1:3])
    TwoSides.source = pathlib.Path(words[3])
    if words[4:] == ["--table"]:
        print(table())
        return
    unittest.main(module=module, argv=[words[0], *words[4:]])
