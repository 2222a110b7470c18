"""Runs vmmshare-bench for a moment and checks the files it writes.

    check_output.py PROGRAM DIRECTORY whole|figures|exhausted|left_out|failed|interrupted

whole: The JSON must be what Google Benchmark's own tools read, all routes must
be in it, and it must say that the host-memory driver is no GPU. The Markdown
must show the tables, and the plots that check_plots.py looks at.
figures: The JSON's counts are those of what was done, and its times those of the tables.
exhausted: A route that fails gives back what it had.
left_out: A route for which the memory does not suffice ends neither its scenario nor the run.
failed: What was measured before an error is written.
interrupted: Asked to end, it does, whatever it measures.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import uuid

ROUTES = {"legacy", "legacy-2MiB", "legacy-cached", "legacy-arena", "pool-ipc", "bare", "dedicated", "pool"}
NUMBERS = ("real_time", "cpu_time", "iterations", "repetitions", "threads")


def check(holds, what):
    if not holds:
        sys.exit(f"check_output.py: {what}")


def check_benchmark(entry):
    name = entry["name"]
    for key in NUMBERS:
        check(isinstance(entry[key], (int, float)) and entry[key] >= 0, f"{name}: no {key}")
    check(entry["time_unit"] == "ns", f"{name}: the unit is {entry['time_unit']}")
    if entry["run_type"] == "iteration":
        check(name == entry["run_name"], f"{name}: run_name is {entry['run_name']}")
        check(entry["repetition_index"] < entry["repetitions"], f"{name}: repetition_index")
    else:
        check(entry["run_type"] == "aggregate", f"{name}: run_type is {entry['run_type']}")
        check(name == f"{entry['run_name']}_{entry['aggregate_name']}", f"{name}: aggregate_name")


def measure(program, report, *options, status=0, **variables):
    """How it ended, with `variables` in its environment, and the JSON it wrote."""
    run = subprocess.run([program, "--driver=host", f"--json={report}", *options], check=False,
                         env={**os.environ, **variables}, capture_output=True, text=True)
    check(run.returncode == status,
          f"{options}, {variables}: it ended with {run.returncode}: {run.stdout}{run.stderr}")
    check(report.is_file(), f"{options}, {variables}: what was measured is not in a file")
    return run, json.loads(report.read_text(encoding="utf-8"))


def names_of(found):
    return {e["run_name"] for e in found["benchmarks"]}


def figures(program, folder):
    # By lots of 16, the last of each of two turns a smaller one.
    _, found = measure(program, folder / "lots.json", "--quick", "--scenario=kth", "--routes=pool", "--blocks=300")
    for name in ("export", "import"):
        done = sum(e["iterations"] for e in found["benchmarks"]
                   if e["run_name"] == f"kth/pool/same/early/{name}" and e["run_type"] == "iteration")
        check(0 < done <= 2 * 304, f"{name}: {done} iterations for two times 300 blocks")

    # An eighth of the memory at once.
    _, found = measure(program, folder / "fewer.json", "--quick", "--scenario=alloc", VMMSHARE_HOST_MEMORY="128M")
    live = [e["live"] for e in found["benchmarks"] if e["name"] == "alloc/pool/2MiB/threads:1_median"]
    check(len(live) == 1 and 1 <= live[0] <= 8, f"of 2 MiB a batch had {live}")

    # So little time that few tensors are shared.
    run, found = measure(program, folder / "scaled.json", "--quick", "--scenario=tensors", "--routes=pool",
                         "--budget=0.000001")
    lines = run.stdout.splitlines()
    for when in ("early", "late"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"A model's tensors, {when} subscriber"))
        header, row = (re.split("  +", line.strip()) for line in lines[at + 1:at + 3])
        told = sum(nanoseconds(row[header.index(column)]) for column in ("CPU, owner", "importer"))
        entry = next(e for e in found["benchmarks"] if e["name"] == f"tensors/pool/same/{when}/readable_median")
        check(entry["tensors_shared"] == 128, f"{when}: shared {entry['tensors_shared']}")
        check(abs(entry["cpu_time"] - told) <= 0.02 * told,
              f"{when}: the CPU time is {entry['cpu_time']}; the table has {told}: {row}")


def nanoseconds(text):
    number, unit = text.split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


def exhausted(program, folder):
    """Of two routes that need more than half of the memory each, the first fails."""
    run, found = measure(program, folder / "exhausted.json", "--scenario=footprint", "--routes=bare,dedicated,pool",
                         VMMSHARE_HOST_MEMORY="3G",
                         VMMSHARE_HOST_FAIL="cuMemImportFromShareableHandle:500:OUT_OF_MEMORY")
    check("bare VMM calls: not available: " in run.stdout, f"the first did not fail: {run.stdout}")
    check({f"footprint/{route}/same" for route in ("dedicated", "pool")} <= names_of(found),
          f"what the first had the others lack: {run.stdout}")

    # The same where its blocks are made, and what is free then cannot be asked.
    run, found = measure(program, folder / "unasked.json", "--quick", "--scenario=kth",
                         "--routes=legacy-2MiB,dedicated", VMMSHARE_HOST_MEMORY="1G",
                         VMMSHARE_HOST_FAIL="cuMemGetInfo:2:OUT_OF_MEMORY")
    check("legacy IPC, own 2 MiB each: not available: cuMemGetInfo()" in run.stdout,
          f"the first did not fail: {run.stdout}")
    check("kth/dedicated/same/early/cpu" in names_of(found), f"what the first had the other lacks: {run.stdout}")


def left_out(program, folder):
    """Too little memory already for the blocks that warm up; then for an import in the midst."""
    run, found = measure(program, folder / "memory.json", "--quick", "--scenario=kth,copy",
                         "--routes=legacy-2MiB,dedicated,pool", VMMSHARE_HOST_MEMORY="200M")
    names = names_of(found)
    for route in ("legacy IPC, own 2 MiB each", "vmmshare dedicated"):
        check(f"note: {route}: not available: " in run.stdout, f"{route} is not left out: {run.stdout}")
    for when in ("early", "late"):
        check(f"kth/pool/same/{when}/cpu" in names, f"no kth/pool, {when}, in {sorted(names)}")
    check(any(name.startswith("copy/") for name in names), f"no copy in {sorted(names)}")

    run, found = measure(program, folder / "import.json", "--quick", "--scenario=kth", "--routes=dedicated,pool",
                         VMMSHARE_HOST_FAIL="cuMemImportFromShareableHandle:500:OUT_OF_MEMORY")
    names = names_of(found)
    check("note: vmmshare dedicated: not available: the importer: " in run.stdout, f"no import failed: {run.stdout}")
    for name in ("kth/pool/same/early/cpu", "kth/dedicated/same/late/cpu"):
        check(name in names, f"no {name} in {sorted(names)}")


def failed(program, folder):
    """A scenario that fails loses nothing of those before it."""
    run, found = measure(program, folder / "failed.json", "--quick", "--corrupt", "--scenario=alloc,first", "--enforce",
                         f"--markdown={folder}/failed.md", status=1)
    check("error: DATA_LOSS: scenario first" in run.stderr, f"its error is not the scenario's: {run.stderr}")
    partial = found["context"].get("partial", "")
    check("ended in scenario first" in partial and "its owner wrote" in partial,
          f"the JSON does not say that it is partial, and why: {partial}")
    check(any(e["name"].startswith("alloc/") for e in found["benchmarks"]), "the figures of alloc are lost")
    check("its owner wrote" in (folder / "failed.md").read_text(encoding="utf-8"),
          "the Markdown does not say why it is partial")


def interrupt(program, report, scenario, line, options):
    """Asks it to end at `line`; returns how it ended, and its output."""
    with subprocess.Popen([program, "--driver=host", f"--json={report}", f"--scenario={scenario}", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            # It measures from here on.
            while line not in (read := run.stderr.readline()):
                check(read, f"{scenario}: it ended before it was interrupted")
            run.send_signal(signal.SIGTERM)
            out, _ = run.communicate(timeout=60)
        finally:
            run.kill()
    return run.returncode, out


def check_interrupted(program, folder, scenario, line, *options):
    """Asked to end, it says what its tables lack, here and in the files."""
    report = folder / "interrupted.json"
    for _ in range(20):
        status, out = interrupt(program, report, scenario, line, options)
        if status != 0:
            break
        # On a busy machine the signal may come after the last of a few steps. Then once more.
    name = line.split(":")[0].split(",")[0]
    check(status == 1, f"{scenario}: interrupted, it ended with {status}")
    check(f"partial: ended in scenario {name}" in out,
          f"{scenario}: its output does not say that it is partial: {out}")
    check("partial" in json.loads(report.read_text(encoding="utf-8"))["context"],
          f"{scenario}: the JSON does not say that it is partial")


def interrupted(program, folder):
    check_interrupted(program, folder, "kth,copy", "kth, early", "--quick", "--iterations=1000", "--budget=1000")
    check_interrupted(program, folder, "copy", "copy:", "--quick", "--iterations=100000")
    check_interrupted(program, folder, "footprint", "footprint:")
    check_interrupted(program, folder, "reclaim", "reclaim:", "--iterations=200")


def whole(program, folder):
    _, found = measure(program, folder / "report.json", "--quick", "--plots=plots", f"--markdown={folder}/report.md",
                       "--scenario=alloc,first,kth,copy")
    context = found["context"]
    check("partial" not in context, "a whole run says that it is partial")
    for key in ("date", "device", "driver", "granularity", "handle_kind", "clock", "commit"):
        check(context[key], f"the context has no {key}")
    check(context["not_a_gpu_figure"] == "host-memory driver: not a GPU figure",
          "the context does not say that this is no GPU figure")
    for scenario in ("alloc", "first", "kth", "copy"):
        check("timed" in context[f"timed.{scenario}"].lower(), f"what {scenario} times is not said")

    entries = found["benchmarks"]
    for entry in entries:
        check_benchmark(entry)
    names = [(e["name"], e.get("repetition_index")) for e in entries]
    check(len(names) == len(set(names)), "two benchmarks have the same name")
    kth = {e["run_name"].split("/")[1] for e in entries if e["run_name"].startswith("kth/")}
    check(ROUTES <= kth, f"routes of kth are {sorted(kth)}")
    first = [e for e in entries if e["name"] == "first/pool/2MiB/same/total_median"]
    check(len(first) == 1 and first[0]["real_time"] > 0, "no first/pool/2MiB/same/total_median")

    # The pool's path calls nothing; that legacy's does shows that it is counted.
    calls = {e["run_name"].split("/")[1]: e for e in entries
             if e["run_name"].startswith("kth_calls/") and e["run_type"] == "iteration"}
    check(ROUTES <= set(calls), f"routes of kth_calls are {sorted(calls)}")
    check(calls["legacy"]["driver_calls"] > 0, "legacy IPC calls no driver")
    check(calls["pool"]["driver_calls"] == 0, "the pool's shares call the driver")
    check(calls["pool"]["shares_with_system_call"] == 0, "the pool's shares make system calls")
    if calls["pool"]["system_calls_watched"]:
        check(calls["bare"]["shares_with_system_call"] > 0, "bare calls make no system call")

    markdown = (folder / "report.md").read_text(encoding="utf-8")
    check("### The k-th share of 64 KiB, late subscriber, same GPU" in markdown, "the Markdown lacks a table")
    check("### Targets" in markdown, "the Markdown lacks the targets")
    check("](plots/kth_early_same.svg)" in markdown, "the Markdown does not show the plots")


def main(program, directory, what):
    folder = pathlib.Path(directory)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Devices of its own: what runs beside this takes memory too, and looks at what is free.
    os.environ["VMMSHARE_HOST_INSTANCE"] = f"bench-{uuid.uuid4().hex[:12]}"
    {"whole": whole, "figures": figures, "exhausted": exhausted, "left_out": left_out, "failed": failed,
     "interrupted": interrupted}[what](program, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
