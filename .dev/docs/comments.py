#!/usr/bin/env python3
"""Doxygen's input filter: the headers' plain // comments, as Doxygen wants them.

usage: comments.py HEADER

- The comment at the top is the file's; one before a declaration is its.
- A comment behind a declaration, and the lines under it at its column, are that declaration's.
- What is indented is code, or a table of errors: lines of a CODE and what it means.
- docs/PAGE.md in it is a link to that page of the site.
- A namespace in which classes are only declared, ahead of their use, is left out.
- A member named `import` is `import__`, until ./dev docs has the XML: Doxygen 1.9.8 takes it for
  the beginning of an import of C++20's.
"""

import os
import re
import sys

OPENING = re.compile(r"^(\s*)//(?: (.*)|)$")
TRAILING = re.compile(r"^(?P<code>\s*[^\s/}#].*?)\s{1,}// ?(?P<text>\S.*)$")
CODE_ROW = re.compile(r"^([A-Z][A-Z_]{3,}|else)  +(\S.*)$")
ENUM = re.compile(r"^\s*(?:typedef )?enum\b[^;]*\{\s*$")
AHEAD = re.compile(r"^namespace \w+ \{\n(?:(?:class|struct) \w+;\n)+\}.*\n", re.M)
IMPORT = re.compile(r"\bimport\b(?= = )")
PAGE = re.compile(r"\bdocs/(\w+)\.md\b")


def escape(text, top):
    """Outside of `...` nothing is a command or a tag of Doxygen's. `top` leads from the header's
    page to the pages of docs/."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\\@<>&#%])", r"\\\1", parts[i])
        # -- of an option is no dash.
        parts[i] = re.sub(r"--+", r"\\\g<0>", parts[i])
        # A pointer in prose is no emphasis.
        parts[i] = re.sub(r"(?<!\w)\*(\w+)(?![\w*])", r"\\*\1", parts[i])
        parts[i] = PAGE.sub(rf"[docs/\1.md]({top}\1.html)", parts[i])
    return "".join(parts)


def is_code(line):
    """Whether a line, without //, is of an example: indented, and neither a row nor a point."""
    text = line.strip()
    return (bool(text) and len(line) - len(line.lstrip()) >= 2
            and not CODE_ROW.match(text) and not text.startswith("- "))


def prose(lines, top):
    """The lines of one comment, without //, as lines of Doxygen's Markdown."""
    out, row = [], False
    code_open = False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        following = next((one for one in lines[i + 1:] if one.strip()), "")
        if not text:
            out.append("")
            row = row and len(following) - len(following.lstrip()) >= 2
            continue
        coded = CODE_ROW.match(text)
        if indent >= 2 and coded:
            out.append(f"- `{coded[1]}`: {escape(coded[2], top)}")
            row = True
        elif indent >= 2 and row:
            out.append(f"  {escape(text, top)}")
        elif text.startswith("- "):
            out.append(f"- {escape(text[2:], top)}")
            row = True
        elif indent >= 2 or code_open:
            row = False
            if not code_open:
                out.append("@code{.cpp}")
            out.append(line[2:])
            code_open = is_code(following)
            if not code_open:
                out.append("@endcode")
        else:
            if row:
                out.append("")  # Or it goes on with the last row.
            row = False
            out.append(escape(text, top))
    return out


def trailing(line):
    """The code and the comment of a declaration with a comment behind it, or None."""
    found = TRAILING.match(line)
    if not found or re.match(r"clang-format|NO[L]INT", found["text"]) or '"' in found["code"]:
        return None
    return found["code"], found["text"]


def convert(source, top):
    source = IMPORT.sub("import__", AHEAD.sub("", source))
    lines, out, i, first, in_enum = source.splitlines(), [], 0, True, False
    while i < len(lines):
        block = []
        while i < len(lines) and (comment := OPENING.match(lines[i])):
            block.append((comment[1], comment[2] or ""))
            i += 1
        if block:
            texts = prose([text for _, text in block], top)
            if first:
                texts.insert(0, "@file")
            out += [f"{block[0][0]}/// {text}".rstrip() for text in texts]
            first = False
            continue
        behind = trailing(lines[i])
        if behind:
            code, text = behind
            texts, column = [escape(text, top)], lines[i].index("//", len(code))
            i += 1
            while (i < len(lines) and (comment := OPENING.match(lines[i]))
                   and len(comment[1]) == column):
                texts.append(escape(comment[2] or "", top))
                i += 1
            if in_enum:  # Doxygen takes two lines behind the last of an enum for two comments.
                out += [*(f"/// {text}" for text in texts), code]
            else:
                out += [f"{code} ///< {texts[0]}", *(f"///< {text}" for text in texts[1:])]
            continue
        in_enum = bool(ENUM.match(lines[i])) or (in_enum and not lines[i].lstrip().startswith("}"))
        out.append(lines[i])
        i += 1
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    # The page is api/HEADER.html. Doxygen names headers from the root of the repository, or whole.
    name = os.path.relpath(sys.argv[1]).replace(os.sep, "/")
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(convert(header.read(), "../" * (name.count("/") + 1)))
