#!/usr/bin/env python3
"""What README.md and docs/ show as code.

usage: snippets.py REPOSITORY OUT     writes OUT/PAGE.NAME.inc for each snippet of C++ and C

A fence says its language. Code of a LANGUAGES has one line before its fence, in a comment that
a page does not show:

    <!-- snippet: NAME -->        tests/docs compiles it, and runs it where it can; of Python,
                                  tests/python/test_docs.py runs it
    <!-- quoted: FILE -->         it is in that file to the letter, which is compiled and run
    <!-- not run: WHY -->         it is neither
"""

import pathlib
import re
import sys
import textwrap
import typing

LANGUAGES = {"c", "cmake", "cpp", "python", "sh"}
PLAIN = {"ini", "text", "yaml"}  # Output, drawings, files of other programs.
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.M | re.S)
MARK = re.compile(r"<!-- (snippet|quoted|not run): ((?:(?!-->).)+?) -->\n\Z", re.S)


class Snippet(typing.NamedTuple):
    page: str
    line: int  # Of its first line.
    language: str
    kind: str  # "snippet", "quoted", "not run"; empty: nothing says what it is.
    what: str  # The name, the file, the reason.
    text: str


def snippets_of(page, text):
    for fence in FENCE.finditer(text):
        mark = MARK.search(text, 0, fence.start())
        yield Snippet(page, text.count("\n", 0, fence.start()) + 2, fence[2],
                      mark[1] if mark else "", " ".join(mark[2].split()) if mark else "",
                      textwrap.dedent(fence[3]))


def pages(root):
    """README.md and what is in docs/, by name."""
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def named(root, language):
    """The snippets of a language, by PAGE.NAME."""
    return {f"{pathlib.PurePath(page).stem}.{one.what}": one
            for page, text in pages(root) for one in snippets_of(page, text)
            if one.kind == "snippet" and one.language == language}


def main():
    root, out = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for language in ("cpp", "c"):
        for name, one in named(root, language).items():
            target = out / f"{name}.inc"
            text = f'#line {one.line} "{root / one.page}"\n{one.text}'
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
