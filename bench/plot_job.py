#!/usr/bin/env python3
"""Draws what bench_job measured.

usage: bench_job --format=csv > FILE; plot_job.py FILE OUT.svg     (needs matplotlib)
"""

import csv
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"  # Text stays text.
matplotlib.rcParams["svg.hashsalt"] = "vmmshare"
from matplotlib import pyplot  # noqa: E402

PANELS = [("busy_ms", "a rank's time on a core, ms"), ("got", "bytes a rank fetches"),
          ("put", "bytes a rank publishes")]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(12, 3.6), layout="constrained")
    for axis, (column, title) in zip(axes, PANELS):
        for step in sorted({row["step"] for row in rows}):
            points = [(int(row["ranks"]), float(row[column])) for row in rows
                      if row["step"] == step]
            axis.loglog(*zip(*points), marker="o", label=step)
        ranks = sorted({int(row["ranks"]) for row in rows})
        if column != "put":
            last = next(float(row[column]) for row in reversed(rows) if row["step"] == "handshake")
            axis.loglog(ranks, [last * n / ranks[-1] for n in ranks], ":", color="gray",
                        label="linear")
        else:
            axis.set_ylim(100, 10000)
        axis.set_xticks(ranks, [str(n) for n in ranks], fontsize=7)
        axis.minorticks_off()
        axis.set_xlabel("ranks")
        axis.set_title(title, fontsize=10)
        axis.grid(True, alpha=0.3)
    axes[0].legend()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
