#!/usr/bin/env python3
"""Jobs that Slurm's srun starts on three nodes, and what becomes of them when a rank, a node
or the controller is lost.

usage: slurm_test.py SYMMETRIC TOOL ROUNDS SOURCE [UNITTEST ARGUMENTS]
"""

import os
import pathlib
import re
import sys
import unittest

SYMMETRIC, TOOL, ROUNDS, SOURCE = (os.path.abspath(each) for each in sys.argv[1:5])
sys.path[:0] = [str(pathlib.Path(SOURCE, "tests/job")), str(pathlib.Path(SOURCE, "tests/tool"))]

import machine  # noqa: E402
import slurm  # noqa: E402

WHY_NOT = slurm.why_not()
FABRIC_CLUSTER = "f0613ff9-b933-c38b-3a87-83fbe59ca8a9"
DEADLINE = 6  # Seconds that ranks give each other where one is lost.

# Says of each rank how it ended, and after how many milliseconds.
TIMED = """
began=$(date +%s%N)
"$@"
status=$?
echo "rank $PMIX_RANK ended with $status after $(( ($(date +%s%N) - began) / 1000000 )) ms"
"""


class OnACluster(unittest.TestCase):
    cluster = None

    @classmethod
    def setUpClass(cls):
        if WHY_NOT:
            raise unittest.SkipTest(WHY_NOT)
        cls.cluster = slurm.Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        self.addCleanup(self.cluster.end_jobs)
        self.machines = {}
        for node in self.cluster.nodes:
            made = machine.Machine(TOOL)
            self.addCleanup(made.close)
            made.offer_channels(made.make_channel())
            made.start_daemon()
            self.machines[node] = made
            self.cluster.set_environment(
                node, VMMSHARE_HOST_INSTANCE=f"slurm-{os.getpid()}",
                VMMSHARE_HOST_FABRIC_ROOT=made.root, VMMSHARE_HOST_FABRIC_CLIQUE=1,
                VMMSHARE_HOST_FABRIC_CLUSTER=FABRIC_CLUSTER)

    def srun(self, *words, ranks=6):
        return ["srun", "--mpi=pmix", f"--nodes={len(self.cluster.nodes)}", f"--ntasks={ranks}",
                "--ntasks-per-node=2", *words]

    def run_job(self, *words):
        done = self.cluster.run(*self.srun(*words))
        return done.returncode, done.stdout + done.stderr

    def expect_ends(self, output, ranks, within, failed):
        """All `ranks` ended, none more than a second after `within` seconds, and just those in
        `failed` with an error."""
        ends = {int(rank): (int(status), int(after)) for rank, status, after in re.findall(
            r"rank (\d+) ended with (\d+) after (\d+) ms", output)}
        self.assertEqual(sorted(ends), sorted(ranks), output)
        for rank, (status, after) in ends.items():
            self.assertEqual(status != 0, rank in failed, f"rank {rank}\n{output}")
            self.assertLessEqual(after, (within + 1) * 1000, f"rank {rank}\n{output}")


class Slurm(OnACluster):
    def test_symmetric_memory_goes_between_its_nodes(self):
        status, output = self.run_job(SYMMETRIC, "--driver=host", "--size=2M", "--timeout=60")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"6 ranks of job slurm\.pmix\.\d+\.\d+")
        found = dict(re.findall(r"rank (\d+) on .* mapped as (\w+ \w+), all as written", output))
        # Ranks are dealt out in twos, and each has what its left neighbour wrote.
        self.assertEqual(found, {str(rank): "POSIX fd" if rank % 2 else "fabric handle"
                                 for rank in range(6)}, output)

    def test_a_rank_that_finds_another_word_fails_the_job(self):
        status, output = self.run_job(SYMMETRIC, "--driver=host", "--size=2M", "--timeout=60",
                                      "--corrupt=3")
        self.assertNotEqual(status, 0, output)
        self.assertIn("rank 4 does not have what rank 3 wrote", output)

    def test_a_late_round_costs_what_an_early_one_does(self):
        outputs = []
        for _ in range(3):  # The machine may get busy in the middle of one.
            status, output = self.run_job(ROUNDS, "200", "20000")
            self.assertEqual(status, 0, output)
            found = re.search(r"rounds 10 to 49 took ([\d.]+) ms, the last 40 ([\d.]+) ms", output)
            self.assertTrue(found, output)
            early, late = map(float, found.groups())
            if late <= 4 * early:
                return
            outputs.append(output)
        self.fail("\n".join(outputs))

    def test_a_rank_that_is_missing_in_a_late_round_is_named(self):
        with self.cluster.running(*self.srun(ROUNDS, "5", "3000", "3")) as job:
            # One says which libpmix that is.
            output = "".join(job.stdout.readline() for _ in range(6))
        # Rank 2, on its node, is one of those that name it.
        self.assertEqual(len(re.findall(r"rank [01245]: .* no word came from rank 3: ", output)),
                         5, output)

    def test_doctor_says_that_all_reach_all(self):
        status, output = self.run_job(TOOL, "doctor", "--job", "--driver=host", "--timeout=60",
                                      "--require=fabric")
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("how a rank (row)"), 1, output)

    def test_doctor_names_the_node_that_has_no_channel(self):
        channel = self.machines["node2"].root / machine.CHANNELS / "channel0"
        channel.unlink()
        doctor = 'exec "$0" doctor --job --root="$VMMSHARE_HOST_FABRIC_ROOT" "$@"'
        status, output = self.run_job("sh", "-c", doctor, TOOL, "--driver=host", "--timeout=60",
                                      "--require=fabric")
        self.assertNotEqual(status, 0, output)
        self.assertIn("[no-channel]", output)
        self.assertIn("mknod", output)
        self.assertRegex(output, r"rank [45] \(host node2, GPU-")

    def test_a_rank_that_does_not_come_is_named(self):
        choose = ('test "$PMIX_RANK" != 3 || exec sleep 30; ' + TIMED)
        # A busy machine may let others be late too: in one job of three none is.
        for _ in range(3):
            with self.cluster.running(*self.srun(
                    "sh", "-c", choose, "sh", TOOL, "doctor", "--job", "--driver=host",
                    f"--timeout={DEADLINE}")) as job:
                output = self.read_until(job, ends=5)
            # Whoever prints the report carries the status.
            self.expect_ends(output, {0, 1, 2, 4, 5}, DEADLINE, failed={0})
            if "no card came from rank 3" in output:
                break
        self.assertIn("no card came from rank 3", output)

    def test_a_rank_that_is_killed_is_named_and_nobody_waits_past_the_deadline(self):
        self.lose(lambda rank_3: os.kill(rank_3, 9), lost={3})

    def test_a_node_that_is_lost_is_named_and_nobody_waits_past_the_deadline(self):
        self.addCleanup(self.cluster.start_node, "node1")
        self.lose(lambda _: self.cluster.kill_all_on("node1"), lost={2, 3})

    def test_a_job_goes_on_while_the_controller_is_lost(self):
        go = self.cluster.folder / f"go.{self.id()}"
        wait = f'while [ ! -e {go} ]; do sleep 0.05; done; exec "$@"'
        with self.cluster.running(*self.srun(
                "sh", "-c", f"echo rank $PMIX_RANK began; {wait}", "sh", SYMMETRIC,
                "--driver=host", "--size=2M", "--timeout=60")) as job:
            began = self.read_until(job, began=6)
            self.cluster.kill_controller()
            go.touch()
            output = began + self.read_until(job, written=6)
            self.cluster.start_controller()
            self.assertEqual(job.wait(slurm.PATIENCE), 0, output)
        go.unlink()

    def lose(self, end, lost):
        """Ends rank 3 or its node once all ranks have begun; the others go to symmetric memory,
        which names one that is lost."""
        go, pid = (self.cluster.folder / f"{name}.{self.id()}" for name in ("go", "pid"))
        script = (f'echo rank $PMIX_RANK began; if [ "$PMIX_RANK" = 3 ]; then echo $$ > {pid}; '
                  f'exec sleep 600; fi; while [ ! -e {go} ]; do sleep 0.05; done; ' + TIMED)
        with self.cluster.running(*self.srun(
                "--no-kill", "--kill-on-bad-exit=0", "sh", "-c", script, "sh", SYMMETRIC,
                "--driver=host", "--size=2M", f"--timeout={DEADLINE}")) as job:
            began = self.read_until(job, began=6)
            end(int(pid.read_text()))
            go.touch()
            output = began + self.read_until(job, ends=6 - len(lost))
        go.unlink()
        left = set(range(6)) - lost
        self.expect_ends(output, left, DEADLINE, failed=left)
        # Slurm's server on a node may be busy with one that is lost: then its ranks hear of no
        # others, and say so.
        errors = re.findall(r"symmetric: error: (?:.*from ranks? ([\d, ]+): |.*)", output)
        self.assertEqual(len(errors), len(left), output)
        for named in errors:
            self.assertLessEqual(lost, {int(rank) for rank in named.split(", ")}, output)

    def read_until(self, job, began=0, ends=0, written=0):
        """What the job prints until so many ranks began, ended, or found what was written."""
        output = ""
        while (output.count(" began") < began or output.count(" ended with ") < ends or
               output.count("all as written") < written):
            line = job.stdout.readline()
            self.assertNotEqual(line, "", f"{output}\n{self.cluster.logs()}")
            output += line
        return output


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
