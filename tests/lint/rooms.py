#!/usr/bin/env python3
"""Draws docs/rooms.svg: the rooms, as the build's own lists have them.

usage: rooms.py [--root FOLDER]     (writes the picture; the rule RoomsPicture compares it)

A room is a folder whose CMakeLists.txt has a vmmshare_room() or, inside vmm/, some other
target; its caption is the first sentence of that file's first comment. It stands one floor
above the highest room that it names as DEPENDS or links.
"""

import argparse
import pathlib
import re
import sys
from html import escape

from tree import Tree

PICTURE = "docs/rooms.svg"
WIDTH, ROW, BOX, MARGIN = 900, 96, 58, 20


def named_in(text):
    """The rooms that a CMakeLists.txt names as DEPENDS, or links."""
    linked = " ".join(re.findall(r"(?:DEPENDS|target_link_libraries\()[^)]*", text))
    return {n.removesuffix("_parts") for n in re.findall(r"vmmshare(?:::|_)(\w+)", linked)}


def rooms_of(tree):
    """Folder -> (caption, the rooms that it needs)."""
    found = {}
    # The target vmm is a name for the rooms that it lists.
    all_of_vmm = named_in(tree.text("vmm/CMakeLists.txt")) if tree.has("vmm/CMakeLists.txt") else set()
    for name in tree.sources("CMakeLists.txt"):
        folder = name.rpartition("/")[0]
        if not re.fullmatch(r"fabric|platform|vmm/\w+", folder):
            continue
        text = tree.text(name)
        comment = re.match(r"((?:#.*\n)+)", text)
        caption = re.sub(r"\n?# ?", " ", comment.group(1)).strip() if comment else ""
        needs = named_in(text)
        if "vmm" in needs:
            needs |= all_of_vmm
        found[folder] = (caption.split(". ")[0].rstrip("."), needs - {folder.split("/")[-1]})
    return found


def floors_of(rooms):
    """Folder -> its floor, from 0. ValueError for rooms that need each other."""
    by_name = {folder.split("/")[-1]: folder for folder in rooms}
    floors = {}

    def floor(folder, below=()):
        if folder in below:
            raise ValueError(f"{' -> '.join((*below, folder))} is a circle of rooms")
        if folder not in floors:
            floors[folder] = 1 + max((floor(by_name[n], (*below, folder))
                                      for n in rooms[folder][1] if n in by_name), default=-1)
        return floors[folder]

    for folder in rooms:
        floor(folder)
    return floors


def draw(tree):
    rooms = rooms_of(tree)
    floors = floors_of(rooms)
    top = max(floors.values(), default=0)
    height = (top + 1) * ROW + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'  <rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for level in range(top, -1, -1):
        row = sorted(folder for folder, at in floors.items() if at == level)
        y = MARGIN + (top - level) * ROW
        width = (WIDTH - MARGIN * (len(row) + 1)) / len(row)
        for place, folder in enumerate(row):
            x = MARGIN + place * (width + MARGIN)
            fill = "#effaf0" if folder.startswith("vmm/") else "#eef4ff"
            lines.append(f'  <rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX}" rx="6"'
                         f' fill="{fill}" stroke="#333"/>')
            lines.append(f'  <text x="{x + 12:.0f}" y="{y + 22}" font-weight="bold">'
                         f"{escape(folder)}/</text>")
            room_for = int((width - 24) / 6.6)
            caption = rooms[folder][0]
            if len(caption) > room_for:
                caption = caption[:room_for].rpartition(" ")[0].rstrip(",:") + " …"
            lines.append(f'  <text x="{x + 12:.0f}" y="{y + 43}" fill="#333">'
                         f"{escape(caption)}</text>")
        if level:
            middle, end = WIDTH / 2, y + ROW - 6
            lines.append(f'  <path d="M{middle:.0f} {y + BOX + 6} V{end} m-5 -7 l5 7 l5 -7"'
                         ' fill="none" stroke="#333"/>')
    return "\n".join(lines) + "\n</svg>\n"


def rooms_picture(tree):
    """docs/rooms.svg shows the rooms that the build has."""
    if not rooms_of(tree):
        return
    try:
        drawn = draw(tree)
    except ValueError as circle:
        yield str(circle)
        return
    if not tree.has(PICTURE) or tree.text(PICTURE) != drawn:
        yield f"{PICTURE}: not what the build's lists give; run tests/lint/rooms.py"


RULES = {"RoomsPicture": rooms_picture}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    root = pathlib.Path(parser.parse_args().root)
    (root / PICTURE).write_text(draw(Tree(root)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
