#!/usr/bin/env python3
"""Tables of llvm-cov's JSON export: lines and branches of each room, and what never ran.

usage: coverage.py EXPORT.json ROOT TABLE.md UNCOVERED.txt

A room is a folder of sources below ROOT; what lies in its internal/ is the room's. A branch is one
of the two ways on from a condition of the source: of an if, a loop, a && or ||, a ?:, or a case. A
template's or a macro's line counts once, whatever it is made for.
"""

import collections
import json
import pathlib
import posixpath
import sys

ROOMS = ("fabric/", "platform/", "vmm/")
CODE, EXPANSION, SKIPPED, GAP, BRANCH = range(5)  # Kinds of regions.


class Counts:
    def __init__(self):
        self.lines = self.lines_run = self.branches = self.branches_run = 0

    def add(self, other):
        self.lines += other.lines
        self.lines_run += other.lines_run
        self.branches += other.branches
        self.branches_run += other.branches_run

    def row(self, name):
        return (f"| {name} | {self.lines} | {share(self.lines_run, self.lines)} "
                f"| {self.branches} | {share(self.branches_run, self.branches)} |")


class File:
    """What ran of a file: lines by number, ways on from conditions by place."""

    def __init__(self):
        self.lines = collections.Counter()
        self.ways = collections.Counter()


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else ""


def room_of(name):
    """vmm/share/internal/dial.cc is vmm/share's; fabric/pmix.cc is fabric's."""
    folders = [part for part in posixpath.dirname(name).split("/") if part != "internal"]
    return "/".join(folders[:2])


def lines_of(regions):
    """The lines of a function's code and how often each ran: the innermost region has the say."""
    lines = {}
    # A region that contains others comes before them.
    for begin, _, end, end_column, count, _, _, kind in regions:
        if kind == CODE:
            # A region that ends before the first sign of a line does not have it.
            for line in range(begin, end + (end_column > 1)):
                lines[line] = count
    return lines


def add_function(function, files, name_of):
    """One function's lines and branches; one that was made several times comes several times."""
    names = [name_of(name) for name in function["filenames"]]
    expanded = {}  # The file of a macro's text: where it was used.
    for begin, column, _, _, _, file, other, kind in function["regions"]:
        if kind == EXPANSION:
            expanded[other] = (file, begin, column)
    by_file = collections.defaultdict(list)
    for region in function["regions"]:
        by_file[region[5]].append(region)
    for file, regions in by_file.items():
        # What a macro does counts where it is used.
        if file not in expanded and names[file] is not None:
            for line, count in lines_of(regions).items():
                files[names[file]].lines[line] += count
    for begin, column, _, _, yes, no, file, _, _ in function["branches"]:
        place = [(begin, column)]
        while file in expanded:
            file, *used = expanded[file]
            place.append(tuple(used))
        if names[file] is not None:
            place = tuple(reversed(place))
            files[names[file]].ways[(place, True)] += yes
            files[names[file]].ways[(place, False)] += no


def files_of(export, root):
    def name_of(path):
        name = path.removeprefix(root.rstrip("/") + "/")
        return name if name.startswith(ROOMS) else None

    files = collections.defaultdict(File)
    for function in export["data"][0]["functions"]:
        add_function(function, files, name_of)
    return files


def ranges(numbers):
    """[3, 4, 5, 9] is 3-5, 9."""
    spans = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def report(files):
    """The table of rooms, and what never ran, by file."""
    rooms, uncovered = collections.defaultdict(Counts), []
    for name, file in sorted(files.items()):
        counts = rooms[room_of(name)]
        missed = [line for line, count in file.lines.items() if count == 0]
        half = {place[0][0] for (place, _), count in file.ways.items() if count == 0}
        counts.lines += len(file.lines)
        counts.lines_run += len(file.lines) - len(missed)
        counts.branches += len(file.ways)
        counts.branches_run += sum(count > 0 for count in file.ways.values())
        if missed:
            uncovered.append(f"{name}: never ran: {ranges(missed)}")
        if half - set(missed):
            uncovered.append(f"{name}: one way only: {ranges(half - set(missed))}")
    whole = Counts()
    for counts in rooms.values():
        whole.add(counts)
    table = ["| room | lines | run | branches | taken |", "| --- | ---: | ---: | ---: | ---: |"]
    table += [rooms[name].row(name) for name in sorted(rooms)] + [whole.row("all")]
    return table, uncovered


def main():
    source, root, table_file, uncovered_file = sys.argv[1:]
    table, uncovered = report(files_of(json.loads(pathlib.Path(source).read_text()), root))
    pathlib.Path(table_file).write_text("\n".join(table) + "\n")
    pathlib.Path(uncovered_file).write_text("\n".join(uncovered) + "\n")
    print("\n".join(table))


if __name__ == "__main__":
    main()
