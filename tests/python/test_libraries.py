"""bench/libraries: vmmshare's rows on the host-memory driver, and rows that go wrong."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

RUN = pathlib.Path(__file__).resolve().parents[2] / "bench" / "libraries" / "run.py"
ON_HOST = ["tensors/vmmshare arrays", "jobs/vmmshare over a pipe", "ordering/vmmshare fences",
           "ordering/stream memory operations"]


def start(folder, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-B", str(RUN), f"--json={folder}/report.json",
         f"--markdown={folder}/report.md", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment})


class Finished:
    def __init__(self, process, folder):
        self.out, self.err = process.communicate(timeout=120)
        self.code = process.returncode
        written = folder / "report.json"
        if written.exists():
            self.report = json.loads(written.read_text())
            self.text = (folder / "report.md").read_text()
            self.rows = {f"{row['section']}/{row['name']}": row for row in self.report["rows"]}

    def why(self, name):
        return self.rows[name]["status"], self.rows[name]["why"]


def run(folder, *words, **environment):
    return Finished(start(folder, *words, **environment), folder)


def test_vmmshares_rows_are_whole_and_the_others_say_why_not(tmp_path):
    done = run(tmp_path, "--driver=host", "--quick", "--seconds=110", "--commit=abc123")
    assert done.code == 0, done.err
    assert done.out == done.text
    for name in ON_HOST:
        assert done.why(name) == ("whole", ""), done.err
    tensors = done.rows["tensors/vmmshare arrays"]["figures"]
    assert [(one["count"], one["nbytes"]) for one in tensors] == [(200, 65536), (2000, 65536)]
    for one in tensors:
        assert 0 < one["open_ms"]["p50"] < one["ms"]["p50"] <= one["ms"]["p99"]
        assert one["reserved"] >= one["count"] * one["nbytes"]
    jobs = done.rows["jobs/vmmshare over a pipe"]["figures"]
    assert [one["kind"] for one in jobs] == ["start", "size", "size"]
    kinds = [one["kind"] for one in done.rows["ordering/vmmshare fences"]["figures"]]
    assert kinds == ["barrier", "barrier_call", "one_way", "round_trip", "round_trip_call"]
    assert done.why("tensors/torch.multiprocessing") == ("missing", "needs a GPU")
    for said in ("**Partial:** tensors/vmmshare.torch", "**Quick:**",
                 "**Host memory: not GPU figures.**", "commit abc123", "| vmmshare arrays | ", "200 x 64 KiB",
                 "| vmmshare fences | ",
                 "- **torch.multiprocessing, no figures:** needs a GPU"):
        assert said in done.text, done.text


def test_rows_that_a_quick_run_leaves_out(tmp_path):
    names = ["legacy IPC arena: addresses", "vmmshare ring"]
    done = run(tmp_path, "--driver=host", "--seconds=110", f"--only={','.join(names)}")
    assert done.code == 0, done.err
    assert [(row["name"], row["status"]) for row in done.report["rows"]] == [
        (name, "whole") for name in names], done.err
    assert len(done.report["rows"][0]["figures"]) == 4
    assert "Partial" not in done.text and "| vmmshare ring | " in done.text


def test_spoilt_contents_are_noticed(tmp_path):
    done = run(tmp_path, "--driver=host", "--quick", "--sections=tensors,jobs", "--corrupt",
               "--seconds=110")
    assert done.code == 1
    status, why = done.why("tensors/vmmshare arrays")
    assert status == "failed" and "read 0 and 2989 in the first and the last of 200" in why
    status, why = done.why("jobs/vmmshare over a pipe")
    assert status == "failed" and "rank 0 read 2989 in rank 1's memory; expected 101" in why
    assert "- **vmmshare over a pipe, no figures:** ValueError" in done.text


def test_a_row_that_goes_wrong_leaves_the_others(tmp_path):
    done = run(tmp_path, "--driver=host", "--quick", "--sections=jobs", "--seconds=90",
               "--plant=fail,hang,crash,missing,orphan")
    assert done.code == 1
    assert done.why("jobs/vmmshare over a pipe") == ("whole", "")
    assert done.why("planted/fail")[0] == "failed"
    assert done.why("planted/fail")[1].startswith("ValueError: planted")
    assert done.why("planted/hang")[0] == "late"
    assert done.why("planted/hang")[1].startswith("stopped at its deadline of 2 s")
    assert done.why("planted/crash")[0] == "failed"
    assert done.why("planted/crash")[1].startswith("ended with -6")
    assert done.why("planted/missing") == (
        "missing", "not loadable: ModuleNotFoundError: No module named "
                   "'a_library_that_nobody_has'")
    assert done.why("planted/orphan")[0] == "failed"
    assert done.why("planted/orphan")[1].startswith("the peer ended with 7")
    for name in ("fail", "hang", "crash", "orphan"):  # What was measured by then is kept.
        assert done.rows[f"planted/{name}"]["figures"], name
        assert f"- **{name}, incomplete:** " in done.text
    assert "- **missing, no figures:** not loadable" in done.text
    assert ("**Partial:** planted/fail, planted/hang, planted/crash, planted/missing, "
            "planted/orphan") in done.text


def test_a_library_that_does_not_load_in_time_is_not_waited_for(tmp_path):
    done = run(tmp_path, "--driver=host", "--quick", "--sections=jobs", "--seconds=40",
               "--plant=slow")
    assert done.code == 1
    assert done.why("planted/slow") == (
        "late", "its libraries were not loaded within the deadline")
    assert done.why("jobs/vmmshare over a pipe") == ("whole", "")


def test_multicast_is_off_whatever_the_caller_has(tmp_path):
    done = run(tmp_path, "--driver=host", "--quick", "--sections=", "--plant=environment",
               NCCL_NVLS_ENABLE="1", NVSHMEM_DISABLE_NVLS="0")
    assert ("NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1"
            in done.why("planted/environment")[1])


def processes_with(mark):
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:  # It has ended, or is another user's.
            pass
    return found


def test_a_run_that_is_interrupted_says_so_and_leaves_no_process(tmp_path):
    mark = f"of-{tmp_path}"
    process = start(tmp_path, "--driver=host", "--seconds=60", "--sections=jobs", "--quick",
                    "--plant=hang", VMMSHARE_TEST_MARK=mark)
    until = time.monotonic() + 60
    for line in process.stderr:  # Its rows are ready, and the first hangs.
        if "have their libraries" in line:
            break
        assert time.monotonic() < until
    assert len(processes_with(mark)) > 4  # Two rows of two, and this.
    process.send_signal(signal.SIGTERM)
    done = Finished(process, tmp_path)
    assert done.code == 1
    assert "**Partial:** the run was interrupted." in done.text
    assert done.why("jobs/vmmshare over a pipe") == ("late", "not run")
    until = time.monotonic() + 20  # Peers end as soon as the system gets to it.
    while left := processes_with(mark):
        assert time.monotonic() < until, left
        time.sleep(0.01)


def test_wrong_words_are_refused(tmp_path):
    for words, said in ((["--sections=jobs,none"], "there is no 'none'; there are tensors, jobs"),
                        (["--driver=host", "--devices=0,99"], "--devices=0,99: expected two of"),
                        (["--driver=host", "--plant=none"], "there is no 'none'")):
        done = run(tmp_path, *words)
        assert done.code == 2 and said in done.err, done.err
    done = run(tmp_path, CUDA_VISIBLE_DEVICES="-1")
    assert done.code == 2 and "--driver=host needs no GPU" in done.err
