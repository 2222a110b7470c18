#!/usr/bin/env python3
"""Draws what a benchmark wrote, or writes while it runs for a moment.

usage: check_plots.py compare REPORT.json
       check_plots.py traces BENCH_TRACE TRACE
       check_plots.py job BENCH_JOB

Exits with 77 where matplotlib is missing. Every plot must be well-formed and self-contained.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

PLOT = pathlib.Path(__file__).with_name("plot.py")
# The system's own has what the system's packages bring.
PYTHONS = [sys.executable, *filter(os.path.exists, ["/usr/bin/python3"])]


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout


def plot(*words):
    for python in PYTHONS:
        done = subprocess.run([python, "-B", PLOT, *words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 77:
            break
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    return done


def check(path, *words):
    drawn = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("}svg"), path
    assert not re.search(r'href="(?!#)', drawn) and "@import" not in drawn, f"{path}: not self-contained"
    for word in words:
        assert word in drawn, f"{path}: no {word}"


def check_compare(folder, report):
    plots = folder / "plots"
    charts = json.loads(pathlib.Path(report).read_text(encoding="utf-8"))["charts"]
    assert len(charts) >= 5, f"{len(charts)} charts"
    done = plot("compare", report, plots)
    assert done.returncode == 0, done.stdout
    for chart in charts:
        names = [one["name"] for one in chart["series"]] + [name for name, _ in chart["bars"]]
        assert names, f"{chart['file']}: nothing is drawn"
        check(plots / f"{chart['file']}.svg", chart["title"], "not a GPU figure", *names)


def check_traces(folder, program, trace):
    table, torch, out = folder / "table.md", folder / "torch.txt", folder / "out.svg"
    torch.write_text("mixture_of_experts.trace  PyTorch expandable_segments:True"
                     "  live 196.3 MiB  reserved 234.0 MiB  1.192 x  1538 ns\n")
    out.write_text("")
    assert "holds no table" in plot("traces", out, out).stdout
    table.write_text(run(program, "--driver=host", "--replays=1", trace), encoding="utf-8")
    done = plot("traces", table, out, torch)
    assert done.returncode == 0, done.stdout
    check(out, "vmmshare pool", "cuMemAllocAsync", "PyTorch, expandable", "mixture of")


def check_job(folder, program):
    table, out = folder / "table.csv", folder / "out.svg"
    table.write_text(run(program, "--format=csv", "--ranks=2,4"), encoding="utf-8")
    done = plot("job", table, out)
    assert done.returncode == 0, done.stdout
    check(out, "handshake", "linear", "bytes a rank publishes")


def main():
    what = {"compare": check_compare, "traces": check_traces, "job": check_job}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        what(pathlib.Path(folder), *sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
