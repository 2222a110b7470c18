#!/usr/bin/env python3
"""Draws what bench_trace printed, and PyTorch's allocator beside it where that was measured.

usage: plot_traces.py TABLE OUT.svg [OUTPUT_OF_REPLAY_TORCH ...]     (needs matplotlib)

Exits with 77 and says so where matplotlib is missing, once the tables are read.
"""

import re
import sys

# A trace's file, and how its program's description begins in bench_trace's table.
PROGRAMS = {
    "transformer_training": ("training of a transformer", "transformer,\ntraining"),
    "growing_inference": ("inference with growing", "growing\ninference"),
    "mixture_of_experts": ("training of a mixture", "mixture of\nexperts"),
    "data_loader_8_streams": ("a data loader", "data loader,\n8 streams"),
    "serving_32_streams": ("a serving loop", "serving,\n32 streams"),
}
TORCH = re.compile(r"(\w+)\.trace  PyTorch expandable_segments:(\w+) .*?([\d.]+) x  ([\d.]+) ns")


def read_table(path):
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


def draw(found, out):
    try:
        import matplotlib
    except ImportError:
        print("skipped: python3 has no matplotlib")
        return 77
    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # Text stays text.
    matplotlib.rcParams["svg.hashsalt"] = "vmmshare"
    from matplotlib import pyplot

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
            time.plot([x for x, _ in timed], [row[2] for _, row in timed], "_", color="black",
                      markersize=9)
    memory.set_title("reserved at most, over live at most", fontsize=10)
    memory.axhline(1, color="gray", linewidth=0.8)
    time.set_title("a call in ns: p50, and p99 as a line", fontsize=10)
    for axis in (memory, time):
        axis.set_yscale("log")
        axis.set_xticks(range(len(names)), [PROGRAMS[name][1] for name in names], fontsize=8)
        axis.grid(True, axis="y", alpha=0.3)
    memory.yaxis.set_major_formatter("{x:g} x")
    memory.set_yticks([1, 2, 5, 10])
    memory.legend(loc="upper left", fontsize=8)
    figure.savefig(out, metadata={"Date": None})
    return 0


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    return draw({**read_table(sys.argv[1]), **read_torch(sys.argv[3:])}, sys.argv[2])


if __name__ == "__main__":
    sys.exit(main())
