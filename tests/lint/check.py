#!/usr/bin/env python3
"""Checks the sources against the project's own rules.

usage: check.py [--root FOLDER] [RULE ...]     (without a RULE: all of them)
"""

import argparse
import pathlib
import sys

import code_rules
import docs_rules
import package_rules
import rooms
from tree import Tree

RULES = code_rules.RULES | docs_rules.RULES | package_rules.RULES | rooms.RULES
WARN_LENGTH = 350


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("rules", nargs="*", metavar="RULE", help=", ".join(RULES))
    arguments = parser.parse_args()
    unknown = [r for r in arguments.rules if r not in RULES]
    if unknown:
        parser.error(f"unknown rule {unknown[0]}; there are {', '.join(RULES)}")
    tree = Tree(arguments.root)
    if not tree.files:
        parser.error(f"{arguments.root} holds no files")
    breaches = 0
    for name in arguments.rules or RULES:
        for finding in RULES[name](tree):
            print(f"{finding} [{name}]")
            breaches += 1
    if not arguments.rules or "FileLength" in arguments.rules:
        for name in tree.sources():
            length = len(tree.text(name).splitlines())
            if WARN_LENGTH < length <= code_rules.LIMIT and not name.startswith("tests/"):
                print(f"note: {name} has {length} lines, more than {WARN_LENGTH}")
    print(f"{len(tree.files)} files, {breaches} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
