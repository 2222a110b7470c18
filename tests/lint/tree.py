"""The files of a source tree, as the rules see them."""

import pathlib
import re
import subprocess


class Tree:
    """The sources below a folder: what git tracks or would track.

    Without git (an unpacked release) it is every file outside build/.
    """

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = sorted(self._list())
        self._known = set(self.files)

    def _list(self):
        if (self.root / ".git").exists():
            listed = subprocess.run(
                ["git", "-c", f"safe.directory={self.root}", "ls-files", "-z",
                 "--cached", "--others", "--exclude-standard"],
                cwd=self.root, check=True, capture_output=True, text=True)
            names = listed.stdout.split("\0")
            return [n for n in names if n and (self.root / n).is_file()]
        found = (p.relative_to(self.root) for p in self.root.rglob("*") if p.is_file())
        return [p.as_posix() for p in found if p.parts[0] not in ("build", ".git")]

    def has(self, name):
        return name in self._known

    def has_folder(self, name):
        prefix = name.rstrip("/") + "/"
        return any(f.startswith(prefix) for f in self.files)

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8")

    def sources(self, *suffixes):
        return [f for f in self.files if f.endswith(suffixes or (".h", ".cc"))]


def lines_of(text):
    """Pairs of a line number and a line; a backslash joins lines."""
    number, joined = 0, ""
    for line in text.splitlines():
        number += 1
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield number, joined + line
        joined = ""


def includes_of(text):
    """Triples of line number, opening character and path of each #include."""
    for number, line in lines_of(text):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1), match.group(2)
