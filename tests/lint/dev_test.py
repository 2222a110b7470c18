"""What ./dev says of what a system lacks, and what it makes of what it runs: with stand-ins for all that it calls."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Of all packages there are `cmake`, and `lld`, which another package provides.
APT_GET = """#!/bin/sh
for word; do case $word in clang-16 | clang-format-14) exit 100 ;; esac; done
echo "apt-get $*" >>"$APT_LOG"
"""
APT_CACHE = """#!/bin/sh
candidate='(none)'
[ "$2" != cmake ] || candidate=3.25.1-1
printf '%s:\\n  Installed: (none)\\n  Candidate: %s\\n' "$2" "$candidate"
sleep 0.1
printf '  Version table:\\n'
printf ' *** %s 500\\n' "$candidate"
"""
INSTALL = """
set -euo pipefail
say() { printf 'dev: %s\\n' "$*"; }
fail() { printf 'dev: error: %s\\n' "$*" >&2; exit 1; }
logged() { shift; "$@"; }
id() { echo 0; }
source "$MACHINE"
missing=("$@")
install_missing
"""


@unittest.skipUnless(shutil.which("bash"), "bash, in which ./dev is written, is not here")
class InstallMissing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-dev-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
            path = self.folder / name
            path.write_text(text)
            path.chmod(0o755)

    def install(self, *packages):
        return subprocess.run(
            ["bash", "-c", INSTALL, "bash", *packages], cwd=self.folder, text=True, timeout=60, capture_output=True,
            env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "APT_LOG": str(self.folder / "log"),
                 "MACHINE": str(ROOT / ".dev/machine.sh")}, check=False)

    def test_packages_that_the_system_lacks_are_named_with_systems_that_have_them(self):
        done = self.install("cmake", "clang-16", "clang-format-14")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no package clang-16 clang-format-14.", done.stderr)
        self.assertIn("Debian 12", done.stderr)

    def test_what_can_be_had_is_installed(self):
        done = self.install("cmake", "lld")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("install -y --no-install-recommends cmake lld", (self.folder / "log").read_text())


# As a user who may install nothing. What is wanted, as need() takes it, is in "$@", three words each.
INSTALL_NOTHING = """
set -euo pipefail
say() { printf 'dev: %s\\n' "$*"; }
fail() { printf 'dev: error: %s\\n' "$*" >&2; exit 1; }
id() { echo 1000; }
sudo() { return 1; }
source "$MACHINE"
while [ $# -gt 0 ]; do
  need "$1" "$2" "$3"
  shift 3
done
wants_more() {
  local optional=1
  need more command:vmmshare-no-such-tool "is for some tests"
}
wants_more
install_missing
install_missing
echo "went on"
"""
NAMES = """
set -euo pipefail
source "$MACHINE"
need() { echo "$1"; }
"$1"
"""


@unittest.skipUnless(shutil.which("bash"), "bash, in which ./dev is written, is not here")
class WithoutRights(unittest.TestCase):
    def bash(self, script, *words):
        with tempfile.TemporaryDirectory(prefix="vmmshare-dev-") as folder:
            for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
                path = pathlib.Path(folder, name)
                path.write_text(text)
                path.chmod(0o755)
            return subprocess.run(
                ["bash", "-c", script, "bash", *words], cwd=folder, text=True, timeout=60, capture_output=True,
                stdin=subprocess.DEVNULL, check=False,
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "APT_LOG": f"{folder}/log",
                     "MACHINE": str(ROOT / ".dev/machine.sh")})

    def test_a_library_that_cmake_fetches_is_no_reason_to_stop(self):
        done = self.bash(INSTALL_NOTHING, "libsome-dev", "header:vmmshare/no/such.h", "a library")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("apt-get install -y --no-install-recommends libsome-dev more"), 1)
        self.assertIn("going on: CMake fetches", done.stdout)
        self.assertIn("went on", done.stdout)

    def test_a_tool_is_and_it_is_named(self):
        done = self.bash(INSTALL_NOTHING, "libsome-dev", "header:vmmshare/no/such.h", "a library",
                         "a-tool", "command:vmmshare-no-such-tool", "a tool")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("cannot go on without a-tool: ", done.stderr)
        self.assertIn("apt-get install -y --no-install-recommends libsome-dev a-tool more", done.stderr)
        self.assertNotIn("went on", done.stdout)

    def test_who_only_builds_needs_no_checker_of_models(self):
        built, tested = (self.bash(NAMES, task).stdout.split() for task in ("need_build", "need_tests"))
        self.assertIn("cmake", built)
        self.assertNotIn("spin", built)
        self.assertIn("spin", tested)


# A loader with a driver's library, who then says more than a pipe takes.
LDCONFIG = """#!/bin/sh
echo '	libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1'
head -c 200000 /dev/zero | tr '\\0' x
"""
KNOWS_DRIVER = """
set -euo pipefail
source "$MACHINE"
loader_knows_driver
"""


@unittest.skipUnless(shutil.which("bash"), "bash, in which ./dev is written, is not here")
class LoaderKnowsDriver(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-dev-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ask(self, ldconfig):
        path = self.folder / "ldconfig"
        path.write_text(ldconfig)
        path.chmod(0o755)
        return subprocess.run(
            ["bash", "-c", KNOWS_DRIVER], cwd=self.folder, text=True, timeout=60, capture_output=True, check=False,
            env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "MACHINE": str(ROOT / ".dev/machine.sh")})

    def test_whatever_else_the_loader_says(self):
        done = self.ask(LDCONFIG)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_loader_that_has_another_library_or_fails_knows_none(self):
        for ldconfig in ("#!/bin/sh\necho '	libcuda.so (libc6) => /libcuda.so'\n", "#!/bin/sh\nexit 1\n"):
            done = self.ask(ldconfig)
            self.assertEqual(done.returncode, 1, done.stderr)


# `vmmshare keep --address=ADDRESS` with a part of the line first, and engines that say where they were sent.
KEEPER = """#!/bin/sh
address=${2#--address=}
printf %s "${address%r}"
sleep 0.3
echo r
echo 'vmmshare keep: a note' >&2
touch "${address%/*}/serves"
exec sleep 60
"""
FAILING_KEEPER = """#!/bin/sh
echo "vmmshare: error: $2: too few descriptors" >&2
exit 1
"""
ENGINES = """#!/bin/sh
address=${1#--address=}
[ -e "${address%/*}/serves" ] || echo "nobody serves there yet"
echo "engines with $2"
"""


@unittest.skipUnless(shutil.which("bash"), "bash, in which ./dev is written, is not here")
class Dev(unittest.TestCase):
    """./dev itself, with stand-ins for what it builds and runs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vmmshare-dev-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copy(ROOT / "dev", self.folder)
        shutil.copytree(ROOT / ".dev", self.folder / ".dev")

    def put(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_dev(self, *words, **env):
        return subprocess.run(
            ["bash", str(self.folder / "dev"), *words], cwd=self.folder, text=True, timeout=60, capture_output=True,
            stdin=subprocess.DEVNULL, env={**os.environ, **env}, check=False)

    def test_it_works_in_its_own_folder_whatever_cdpath_says(self):
        with tempfile.TemporaryDirectory(prefix="vmmshare-dev-") as elsewhere:
            pathlib.Path(elsewhere, self.folder.name).mkdir()
            done = subprocess.run(
                ["bash", f"{self.folder.name}/dev", "help"], cwd=self.folder.parent, text=True, timeout=60,
                capture_output=True, stdin=subprocess.DEVNULL, env={**os.environ, "CDPATH": elsewhere}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("usage: ./dev TASK"), done.stdout)

    def run_ctest(self, said, status):
        self.put("bin/ctest", f"#!/bin/sh\nprintf '{said}'\nexit {status}\n")
        return self.run_dev("test", "--prebuilt", "--", "-N", PATH=f"{self.folder}/bin:{os.environ['PATH']}")

    def test_tests_that_are_only_listed_are_printed(self):
        done = self.run_ctest("  Test #1: unit.One\\n\\nTotal Tests: 1\\n", 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("  Test #1: unit.One\nTotal Tests: 1\n", done.stdout)

    def test_where_no_test_ran_the_error_says_so(self):
        done = self.run_ctest("Test project /x\\nNo tests were found!!!\\n", 8)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("No tests were found!!!", done.stdout)
        self.assertIn("tests failed (whole log: ", done.stderr)

    def test_of_tests_that_passed_the_summary_is_printed(self):
        done = self.run_ctest("1/1 Test #1: unit.One ... Passed 0.1 sec\\n\\n"
                              "100%% tests passed, 0 tests failed out of 1\\n\\nLabel Time\\n", 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("\n100% tests passed, 0 tests failed out of 1\nLabel Time\n"), done.stdout)

    def test_a_benchmark_that_fails_keeps_no_other_from_running(self):
        for name, status in (("bench_keeper", 1), ("bench_pool", 0), ("bench_trace", 1), ("vmmshare-bench", 0)):
            self.put(f"build/release/bench/{name}", f'#!/bin/sh\necho "{name} $1"\nexit {status}\n')
        done = self.run_dev("bench", "--prebuilt", "--driver=host")
        for said in ("bench_pool --driver=host\n", "bench_trace --driver=host\n", "vmmshare-bench --json="):
            self.assertIn(f"\n{said}", done.stdout)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("dev: error: failed, why is above: bench_keeper bench_trace\n", done.stderr)

    def demo_weights(self, keeper):
        self.put("build/dev/vmm/tool/vmmshare", keeper)
        self.put("build/dev/docs/examples/engines", ENGINES)
        return self.run_dev("demo", "weights", "--prebuilt", "--driver=host")

    def test_the_demonstration_of_weights_waits_for_its_keeper(self):
        done = self.demo_weights(KEEPER)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("engines with --driver=host", done.stdout)
        self.assertNotIn("nobody serves there yet", done.stdout)

    def test_and_says_why_that_does_not_serve(self):
        done = self.demo_weights(FAILING_KEEPER)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("too few descriptors", done.stderr)
        self.assertNotIn("engines with", done.stdout)


if __name__ == "__main__":
    unittest.main()
