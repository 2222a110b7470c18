#!/usr/bin/env python3
"""Runs bench_trace and draws what it printed.

usage: check_plots.py BENCH_TRACE TRACE     (exits with 77 where matplotlib is missing)
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PLOT = pathlib.Path(__file__).with_name("plot_traces.py")
# The system's own has what the system's packages bring.
PYTHONS = [sys.executable, *filter(os.path.exists, ["/usr/bin/python3"])]


def plot(*words):
    for python in PYTHONS:
        done = subprocess.run([python, "-B", PLOT, *words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 77:
            break
    return done


def main():
    program, trace = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        table, torch, out = folder / "table.md", folder / "torch.txt", folder / "out.svg"
        torch.write_text("mixture_of_experts.trace  PyTorch expandable_segments:True"
                         "  live 196.3 MiB  reserved 234.0 MiB  1.192 x  1538 ns\n")
        out.write_text("")
        assert "holds no table" in plot(out, out).stdout
        with open(table, "w", encoding="utf-8") as file:
            subprocess.run([program, "--driver=host", "--replays=1", trace], stdout=file,
                           check=True)
        done = plot(table, out, torch)
        if done.returncode == 77:
            print(done.stdout, end="")
            return 77
        assert done.returncode == 0, done.stdout
        drawn = out.read_text(encoding="utf-8")
        for word in ("vmmshare pool", "cuMemAllocAsync", "PyTorch, expandable", "mixture of"):
            assert word in drawn, word
    return 0


if __name__ == "__main__":
    sys.exit(main())
