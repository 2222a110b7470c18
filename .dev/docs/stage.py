#!/usr/bin/env python3
"""Lays out what Sphinx reads: docs/, a page for each public header, and the sources they name.

usage: stage.py REPOSITORY BUILD

BUILD/stage gets the pages, BUILD/Doxyfile-cpp and BUILD/Doxyfile-c what Doxygen is to read.

docs/*.md become pages of the same names. Their links to files that are no pages lead to pages
that show the file. What is new each time is written; pages that did not change stay as they are.
"""

import pathlib
import posixpath
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "lint"))
from code_rules import installed_headers  # noqa: E402
from docs_rules import FENCE  # noqa: E402
from tree import Tree  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".py": "python", ".txt": "cmake", ".md": "markdown", ".yaml": "yaml"}

# The table of contents: a caption, and pages of docs/.
CONTENTS = [
    ("What you want", ["sharing", "pool", "weights", "pipeline", "jobs", "doctor", "legacy_ipc",
                       "pytorch", "windows"]),
    ("Guides", ["install", "tickets", "testing", "containers", "keeper", "leases",
                "ordering", "lifetime", "sleep", "fabric", "mps", "python", "c"]),
    ("Facts", ["benchmarks", "benchmarks/h100", "benchmarks/h100x2", "platforms", "errors",
               "security", "promises", "reliability", "non_goals", "wire_format"]),
    ("Inside", ["design", "porting", "contributing", "releasing"]),
]
ROOMS = {
    "vmm": "the umbrella header, which most programs include",
    "vmm/memory": "devices, allocations, contexts, what a pointer is",
    "vmm/share": "tickets, endpoints, transfers, imports",
    "vmm/pool": "pools and the blocks of others",
    "vmm/sync": "fences and events",
    "vmm/queue": "rings of buffers",
    "vmm/job": "ranks, symmetric memory, barriers",
    "vmm/keeper": "memory under names",
    "vmm/weights": "tensor sets",
    "fabric": "fabric handles, NVML, PMIx",
    "platform": "the driver and the operating system",
}
INTERFACES = """
## Interfaces

Every type, call and error: [C++](/api/cpp.md), [C](/api/c.md), [Python](/api/python/vmmshare/index).
"""
# What is one table to read as it stands.
SOURCE_ONLY = {"platform/cuda/driver_table.h"}


class Stage:
    def __init__(self, tree, target):
        self.tree, self.target, self.written = tree, target, set()

    def write(self, name, text):
        """Only what differs, so that Sphinx reads again only that."""
        path = self.target / name
        self.written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def copy(self, name, to):
        path = self.target / to
        self.written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.tree.root / name, path)

    def clean(self):
        for path in self.target.rglob("*"):
            ours = path.relative_to(self.target).parts[:2] != ("api", "python")  # autoapi's
            if ours and path.is_file() and path not in self.written:
                path.unlink()

    def show(self, name):
        """A page with the text of a file; returns its name."""
        page = f"source/{name}.md"
        if self.target / page not in self.written:
            language = LANGUAGES.get(posixpath.splitext(name)[1], "text")
            self.copy(name, f"source/{name}.raw")
            self.write(page, f"# {name}, the source\n\n```{{literalinclude}} {posixpath.basename(name)}.raw\n"
                             f":language: {language}\n:linenos:\n```\n")
        return page

    def show_folder(self, folder):
        page = f"source/{folder}/index.md"
        files = [f for f in self.tree.files if f.startswith(folder + "/")
                 and (posixpath.splitext(f)[1] in (".cc", ".h", ".py", ".yaml")
                      or f.endswith("/Containerfile"))]
        rows = "".join(f"- [{f[len(folder) + 1:]}](/{self.show(f)})\n" for f in files)
        self.write(page, f"# {folder}\n\n{rows}")
        return page


def page_of(stage, name):
    """Where the site has the repository's file or folder `name`; None: nowhere."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/") and name.endswith((".md", ".svg")):
        return name[len("docs/"):]
    if stage.tree.has(name):
        return stage.show(name)
    return stage.show_folder(name) if stage.tree.has_folder(name) else None


def relink(stage, name, text):
    """`text` of docs/`name`, with links to files of the repository made links to pages."""
    folder = posixpath.dirname(name)

    def lead(link):
        if re.match(r"[a-z][a-z0-9+.-]*:", link[2]):
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        page = page_of(stage, target)
        # A link that leads nowhere stays, and Sphinx says so.
        return f"{link[1]}/{page}{link[3]}" if page else link[0]

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(lead, text[last:fence.start()]), fence[0]]
        last = fence.end()
    return "".join(parts) + LINK.sub(lead, text[last:])


def toctree(caption, pages, depth=1):
    if not pages:
        return ""
    lines = "\n".join(pages)
    return (f"\n```{{toctree}}\n:hidden:\n:maxdepth: {depth}\n:caption: {caption}\n\n"
            f"{lines}\n```\n")


def stage_docs(stage):
    for name in stage.tree.files:
        if not name.startswith("docs/") or name.startswith("docs/examples/"):
            continue
        page = name[len("docs/"):]
        if not name.endswith(".md"):
            stage.copy(name, page)
            continue
        text = relink(stage, name, stage.tree.text(name))
        if page == "index.md":
            text += INTERFACES
            listed = {one for _, pages in CONTENTS for one in pages}
            more = [f[len("docs/"):-3] for f in stage.tree.sources(".md") if f.startswith("docs/")]
            for caption, pages in [*CONTENTS, ("More", sorted({*more} - listed - {"index"}))]:
                text += toctree(caption, [p for p in pages if stage.tree.has(f"docs/{p}.md")])
            text += toctree("Interfaces", ["api/cpp", "api/c", "api/python/vmmshare/index"], 2)
            text += toctree("Sources", ["source/docs/examples/index",
                                        "source/vmm/python/vmmshare/index",
                                        "source/vmm/python/core/index"])
        stage.write(page, text)
    for folder in "docs/examples", "vmm/python/vmmshare", "vmm/python/core":
        stage.show_folder(folder)


def header_page(stage, header, project):
    stage.write(f"api/{header}.md", f"""# {header}

```{{eval-rst}}
.. doxygenfile:: {posixpath.basename(header)}
   :project: {project}
   :sections: briefdescription detaileddescription innerclass innernamespace public-type public-static-func public-func public-static-attrib public-attrib define enum typedef func var
```

[The header itself](/{stage.show(header)})
""")


def gist(stage, header):
    """The first sentence of the header's comment."""
    comment = []
    for line in stage.tree.text(header).splitlines():
        if not line.startswith("// "):
            break
        comment.append(line[3:].strip())
    return re.split(r"(?<=\.)\s+(?=[A-Z`]|docs/)", " ".join(comment))[0]


def entries(stage, headers):
    """A list of headers, and what each is about."""
    return "".join(
        f"- [{h}](/{stage.show(h) if h in SOURCE_ONLY else f'api/{h}.md'}): {gist(stage, h)}\n"
        for h in headers)


def stage_api(stage, headers):
    c_headers = [h for h in headers if h.startswith("vmm/c/")]
    text = "# C++\n\n`#include <vmm/vmm.h>` and link `vmmshare::vmm`; what else there is, by room:\n"
    for room, about in ROOMS.items():
        own = [h for h in headers if posixpath.dirname(h) == room
               or (room == "platform" and h.startswith("platform/"))]
        text += f"\n## {room}\n\n{about[0].upper()}{about[1:]}.\n\n"
        text += entries(stage, own)
        own = [h for h in own if h not in SOURCE_ONLY]
        text += toctree(room, [f"/api/{h}" for h in own])
        for header in own:
            header_page(stage, header, "cpp")
    stage.write("api/cpp.md", text)
    text = "# C\n\nRules, and what each header is about: [the C interface](/c.md).\n\n"
    text += entries(stage, c_headers)
    stage.write("api/c.md", text + toctree("C", [f"/api/{h}" for h in c_headers]))
    for header in c_headers:
        header_page(stage, header, "c")
    listed = {h for room in ROOMS for h in headers if posixpath.dirname(h) == room}
    left = [h for h in headers if h not in listed and not h.startswith(("vmm/c/", "platform/"))]
    if left:
        sys.exit(f"stage.py: no room of ROOMS has {', '.join(left)}")


def public_headers(tree):
    """What is installed. Breathe knows files by their last name alone, so it must be one's."""
    c_headers = {f for f in tree.sources(".h") if posixpath.dirname(f) == "vmm/c"}
    headers = {h for h, _ in installed_headers(tree)} - c_headers
    for some in (c_headers, headers):
        names = [posixpath.basename(h) for h in some]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            sys.exit(f"stage.py: two headers are called {', '.join(twice)}; the pages want names "
                     f"of their own")
    return sorted(headers | c_headers)


def write_doxyfiles(headers, build):
    c_headers = [h for h in headers if h.startswith("vmm/c/")]
    more = "OPTIMIZE_OUTPUT_FOR_C = YES\nEXTENSION_MAPPING = h=C\n"
    for language, read, extra in (("cpp", sorted(set(headers) - set(c_headers) - SOURCE_ONLY), ""),
                                  ("c", c_headers, more)):
        (build / f"xml-{language}").mkdir(parents=True, exist_ok=True)
        (build / f"Doxyfile-{language}").write_text(
            f"@INCLUDE = .dev/docs/Doxyfile\nINPUT = {' '.join(read)}\n"
            f"OUTPUT_DIRECTORY = {build}/xml-{language}\n{extra}", encoding="utf-8")


def main():
    build = pathlib.Path(sys.argv[2])
    stage = Stage(Tree(sys.argv[1]), build / "stage")
    headers = public_headers(stage.tree)
    stage_docs(stage)
    stage_api(stage, headers)
    stage.clean()
    write_doxyfiles(headers, build)


if __name__ == "__main__":
    main()
