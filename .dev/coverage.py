#!/usr/bin/env python3
"""Tables of gcovr's JSON report: lines and branches of each room, and what never ran.

usage: coverage.py REPORT.json TABLE.md UNCOVERED.txt

A room is a folder of sources; what lies in its internal/ is the room's. A branch counts unless
the compiler made it for an exception: gcovr left those out (--exclude-throw-branches).
"""

import collections
import json
import pathlib
import posixpath
import sys


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


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else ""


def room_of(name):
    """vmm/share/internal/dial.cc is vmm/share's; fabric/pmix.cc is fabric's."""
    folders = [part for part in posixpath.dirname(name).split("/") if part != "internal"]
    return "/".join(folders[:2])


def lines_of(file):
    """The lines of a file: a template's are one, whatever it was made for."""
    found = collections.defaultdict(lambda: [0, {}])
    for line in file["lines"]:
        if line.get("gcovr/excluded") or line.get("gcovr/noncode"):
            continue
        one = found[line["line_number"]]
        one[0] += line["count"]
        for number, branch in enumerate(line.get("branches", [])):
            if not branch.get("gcovr/excluded"):
                one[1][number] = one[1].get(number, 0) + branch["count"]
    return found


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
    """The table of rooms, and the lines that never ran, by file."""
    rooms, uncovered = collections.defaultdict(Counts), []
    for file in sorted(files, key=lambda file: file["file"]):
        counts, missed, half = rooms[room_of(file["file"])], [], []
        for number, (count, branches) in lines_of(file).items():
            counts.lines += 1
            counts.lines_run += count > 0
            counts.branches += len(branches)
            counts.branches_run += sum(taken > 0 for taken in branches.values())
            if count == 0:
                missed.append(number)
            elif not all(branches.values()):
                half.append(number)
        if missed:
            uncovered.append(f"{file['file']}: never ran: {ranges(missed)}")
        if half:
            uncovered.append(f"{file['file']}: one way only: {ranges(half)}")
    whole = Counts()
    for counts in rooms.values():
        whole.add(counts)
    table = ["| room | lines | run | branches | taken |", "| --- | ---: | ---: | ---: | ---: |"]
    table += [rooms[name].row(name) for name in sorted(rooms)] + [whole.row("all")]
    return table, uncovered


def main():
    source, table_file, uncovered_file = map(pathlib.Path, sys.argv[1:])
    table, uncovered = report(json.loads(source.read_text())["files"])
    table_file.write_text("\n".join(table) + "\n")
    uncovered_file.write_text("\n".join(uncovered) + "\n")
    print("\n".join(table))


if __name__ == "__main__":
    main()
