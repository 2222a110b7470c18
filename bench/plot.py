#!/usr/bin/env python3
"""Draws what the benchmarks measured, as SVG (needs matplotlib).

usage: plot.py compare REPORT.json FOLDER    what vmmshare-bench --json wrote: a file a chart
       plot.py traces TABLE OUT.svg [TORCH ...]   what bench_trace and replay_torch.py printed
       plot.py job TABLE.csv OUT.svg         what bench_job --format=csv printed

Exits with 77 and says so where matplotlib is missing, once its input is read.
"""

import csv
import json
import os
import re
import sys

# Readable on a light ground and on a dark one, for the ground is left out.
GRAY = "#6e7781"
STYLE = {
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "vmmshare",
    "savefig.transparent": True,
    **{f"{what}.color": GRAY for what in ("text", "xtick", "ytick", "grid")},
    **{f"axes.{what}color": GRAY for what in ("edge", "label", "title")},
    "legend.framealpha": 0,
}
# The same colour for the same route in every chart.
COLOURS = {
    "legacy IPC, a handle each": "#6e7781",
    "cuMemAlloc": "#6e7781",
    "cuMemAllocAsync": "#bf5b04",
    "stream-ordered pool IPC": "#bf5b04",
    "bare VMM calls": "#8250df",
    "vmmshare dedicated": "#218bff",
    "vmmshare pool": "#2da44e",
    "legacy IPC, own 2 MiB each": "#fa4549",
    "legacy IPC, handles cached": "#e85aad",
    "legacy IPC, arena": "#339d9b",
}
OTHERS = "#bf8700"
# A trace's file, and how its program's description begins in bench_trace's table.
PROGRAMS = {
    "transformer_training": ("training of a transformer", "transformer,\ntraining"),
    "growing_inference": ("inference with growing", "growing\ninference"),
    "mixture_of_experts": ("training of a mixture", "mixture of\nexperts"),
    "data_loader_8_streams": ("a data loader", "data loader,\n8 streams"),
    "serving_32_streams": ("a serving loop", "serving,\n32 streams"),
}
TORCH = re.compile(r"(\w+)\.trace  PyTorch expandable_segments:(\w+) .*?([\d.]+) x  ([\d.]+) ns")
JOB_PANELS = [("busy_ms", "a rank's time on a core, ms"), ("got", "bytes a rank fetches"),
              ("put", "bytes a rank publishes")]


def time_text(ns, _=None):
    for unit in ("ns", "us", "ms"):
        if ns < 999.5:
            return f"{ns:.3g} {unit}"
        ns /= 1000
    return f"{ns:.3g} s"


def bytes_text(size, _=None):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


def draw_chart(pyplot, chart, path):
    figure, axis = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    value_text = time_text if chart["y_is_time"] else "{:.4g}".format
    for series in chart["series"]:
        axis.plot(*zip(*series["points"]), marker="o", markersize=4, label=series["name"],
                  color=COLOURS.get(series["name"], OTHERS))
    if chart["series"]:
        axis.set_xscale("log", base=2)
        if chart["x_is_bytes"]:
            axis.xaxis.set_major_formatter(bytes_text)
    for at, (name, value) in enumerate(chart["bars"]):
        bars = axis.bar([at], [value], 0.7, label=name, color=COLOURS.get(name, OTHERS))
        axis.bar_label(bars, [value_text(value)], fontsize=8)
    if chart["bars"]:
        axis.set_xticks([])
    if chart["logarithmic"]:
        axis.set_yscale("log")
    if chart["y_is_time"]:
        axis.yaxis.set_major_formatter(time_text)
    axis.set_title(chart["title"], loc="left", fontsize=11)
    axis.set_xlabel(chart["x_label"])
    axis.set_ylabel(chart["y_label"])
    axis.grid(True, axis="both" if chart["series"] else "y", alpha=0.3)
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8)
    figure.text(0.99, 0.01, chart["note"], ha="right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def compare(report, folder):
    with open(report, encoding="utf-8") as file:
        charts = json.load(file)["charts"]

    def draw(pyplot):
        os.makedirs(folder, exist_ok=True)
        for chart in charts:
            draw_chart(pyplot, chart, os.path.join(folder, chart["file"] + ".svg"))
    return draw


def read_traces(path):
    """{allocator: {program: (reserved over live, p50 in ns, p99 in ns)}}"""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 10 or not re.fullmatch(r"[\d.]+", cells[8]):
                continue
            for name, (begins, _) in PROGRAMS.items():
                if cells[0].startswith(begins):
                    found.setdefault(cells[2], {})[name] = (
                        float(cells[8]), float(cells[4]), float(cells[5]))
    if not found:
        sys.exit(f"{path} holds no table of bench_trace")
    return found


def read_torch(paths):
    """The same of PyTorch; its times are means of calls from Python, so they stay out."""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for name, expandable, ratio, _ in TORCH.findall(file.read()):
                label = "PyTorch" + (", expandable segments" if expandable == "True" else "")
                found.setdefault(label, {})[name] = (float(ratio), None, None)
    return found


def traces(table, out, *torch):
    found = {**read_traces(table), **read_torch(torch)}

    def draw(pyplot):
        names = [name for name in PROGRAMS if any(name in rows for rows in found.values())]
        figure, (memory, time) = pyplot.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
        width = 0.8 / len(found)
        for i, (allocator, rows) in enumerate(found.items()):
            at = [n + (i - (len(found) - 1) / 2) * width for n in range(len(names))]
            memory.bar(at, [rows[name][0] if name in rows else 0 for name in names], width,
                       label=allocator)
            timed = [(x, rows[name]) for x, name in zip(at, names)
                     if name in rows and rows[name][1] is not None]
            if timed:
                time.bar([x for x, _ in timed], [row[1] for _, row in timed], width)
                time.plot([x for x, _ in timed], [row[2] for _, row in timed], "_", color=GRAY,
                          markersize=9)
        memory.set_title("reserved at most, over live at most", fontsize=10)
        memory.axhline(1, color=GRAY, linewidth=0.8)
        time.set_title("a call in ns: p50, and p99 as a line", fontsize=10)
        for axis in (memory, time):
            axis.set_yscale("log")
            axis.set_xticks(range(len(names)), [PROGRAMS[name][1] for name in names], fontsize=8)
            axis.grid(True, axis="y", alpha=0.3)
        memory.yaxis.set_major_formatter("{x:g} x")
        memory.set_yticks([1, 2, 5, 10])
        memory.legend(loc="upper left", fontsize=8)
        figure.savefig(out, metadata={"Date": None})
    return draw


def job(table, out):
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        sys.exit(f"{table} holds no table of bench_job")

    def draw(pyplot):
        figure, axes = pyplot.subplots(1, len(JOB_PANELS), figsize=(12, 3.6), layout="constrained")
        ranks = sorted({int(row["ranks"]) for row in rows})
        for axis, (column, title) in zip(axes, JOB_PANELS):
            for step in sorted({row["step"] for row in rows}):
                points = [(int(row["ranks"]), float(row[column])) for row in rows
                          if row["step"] == step]
                axis.loglog(*zip(*points), marker="o", label=step)
            if column == "put":
                axis.set_ylim(100, 10000)
            else:
                last = next(float(row[column]) for row in reversed(rows)
                            if row["step"] == "handshake")
                axis.loglog(ranks, [last * n / ranks[-1] for n in ranks], ":", color=GRAY,
                            label="linear")
            axis.set_xticks(ranks, [str(n) for n in ranks], fontsize=7)
            axis.minorticks_off()
            axis.set_xlabel("ranks")
            axis.set_title(title, fontsize=10)
            axis.grid(True, alpha=0.3)
        axes[0].legend()
        figure.savefig(out, metadata={"Date": None})
    return draw


def main():
    what = {"compare": compare, "traces": traces, "job": job}.get(sys.argv[1] if len(sys.argv) > 3 else "")
    if what is None or (what is not traces and len(sys.argv) != 4):
        sys.exit(__doc__)
    draw = what(*sys.argv[2:])
    try:
        import matplotlib
    except ImportError:
        print("skipped: python3 has no matplotlib")
        return 77
    matplotlib.use("svg")
    from matplotlib import pyplot
    with matplotlib.rc_context(STYLE):
        draw(pyplot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
