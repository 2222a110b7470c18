"""Rules for the documents. Each takes a Tree and yields one finding a breach."""

import pathlib
import posixpath
import re
import sys
import textwrap

from tree import lines_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
import snippets  # noqa: E402

FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)


def slug(heading):
    """The anchor that GitHub gives to a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = re.sub(r"[^\w\- ]", "", plain.strip().lower())
    return plain.replace(" ", "-")


def anchors(text):
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", text), re.M):
        base = slug(heading)
        count = seen.get(base, 0)
        seen[base] = count + 1
        found.add(base if count == 0 else f"{base}-{count}")
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links_resolve(tree):
    """Every relative link leads to a file, and its anchor to a heading."""
    for name in tree.sources(".md"):
        text = FENCE.sub("", tree.text(name))
        text = re.sub(r"`[^`\n]*`", "", text)
        links = re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", text)
        links += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M)
        for link in links:
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), path)) if path else name
            if not (tree.has(target) or tree.has_folder(target)):
                yield f"{name}: the link {link} leads nowhere"
            elif anchor and target.endswith(".md") and anchor not in anchors(tree.text(target)):
                yield f"{name}: the link {link} names a heading that {target} lacks"


NAMED_FILE = re.compile(
    r"(?<![\w/.$*{}-])((?:vmm|fabric|platform|tests|bench|docs|\.cmake|\.ci|\.github)"
    r"/[\w./-]*\w\.(?:h|cc|md|py|cmake|json|yml|txt))(?![\w*])")


def named_files_exist(tree):
    """A file of ours that a document names is there."""
    for name in tree.sources(".md"):
        for line, text in lines_of(tree.text(name)):
            for path in NAMED_FILE.findall(text):
                if not tree.has(path):
                    yield f"{name}:{line}: {path} does not exist"


def named_tasks_exist(tree):
    """A task of ./dev that a document names is one."""
    if not tree.has("dev"):
        return
    tasks = {"help"}
    for name in ["dev", *(name for name in tree.sources(".sh") if name.startswith(".dev/"))]:
        tasks |= set(re.findall(r"^task_(\w+)\(\)", tree.text(name), re.M))
    for name in tree.sources(".md"):
        for line, text in lines_of(tree.text(name)):
            for task in re.findall(r"(?<!\w)\./dev ([a-z]\w*)", text):
                if task not in tasks:
                    yield f"{name}:{line}: ./dev has no task {task}"


def snippet_users(tree, one):
    """The sources that compile, or run, a snippet of C++, C or Python."""
    name = f"{posixpath.basename(one.page)[:-3]}.{one.what}"
    suffixes, folder, how = (((".cc", ".c"), "tests/docs/", f"<{name}.inc>")
                             if one.language in ("c", "cpp") else
                             ((".py",), "tests/python/", f'"{name}"'))
    return [f for f in tree.sources(*suffixes) if f.startswith(folder) and how in tree.text(f)]


def snippets_are_run(tree):
    """What README and docs/ show as code is compiled or run, or the page says why it is not."""
    for name in tree.sources(".md"):
        if name != "README.md" and not name.startswith("docs/"):
            continue
        for one in snippets.snippets_of(name, tree.text(name)):
            where = f"{name}:{one.line}"
            if one.language not in snippets.LANGUAGES | snippets.PLAIN:
                yield (f"{where}: a fence of {one.language or 'no language'}; expected one of "
                       f"{', '.join(sorted(snippets.LANGUAGES | snippets.PLAIN))}")
            elif one.language in snippets.PLAIN:
                continue
            elif one.kind == "quoted":
                shown = tree.has(one.what) and tree.text(one.what)
                if not shown or not any(textwrap.indent(one.text, " " * deep) in shown
                                        for deep in (0, 2, 4)):
                    yield f"{where}: is not in {one.what} to the letter"
            elif one.kind == "snippet" and not snippet_users(tree, one):
                yield f"{where}: nothing in tests/ compiles or runs the snippet {one.what}"
            elif not one.kind:
                yield f"{where}: nothing says whether it is run: see tests/docs/snippets.py"


DELIMITER_ROW = re.compile(r"\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?")


def cells_of(row):
    """How many cells a row of a table has; a `|` that is escaped parts none, any other does, in code too."""
    bare = row.replace("\\|", "").strip()
    return bare.removeprefix("|").removesuffix("|").count("|") + 1


def tables_are_whole(tree):
    """Each row of a table has as many cells as its head, and stands on one line."""
    for name in tree.sources(".md"):
        # Fences are left blank, so that the numbers of lines stay.
        text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), tree.text(name))
        expected, before = 0, ""
        for line, row in enumerate(text.splitlines(), 1):
            if not expected and before and "|" in row and DELIMITER_ROW.fullmatch(row.strip()):
                expected = cells_of(before)
            if not row.strip():
                expected = 0
            elif expected and cells_of(row) != expected:
                yield (f"{name}:{line}: a row of {cells_of(row)} cells in a table of {expected}; "
                       "expected a row a line, `\\|` where no cell ends, in code too, and an empty line after the table")
            before = row


PROMISES = "docs/promises.md"
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.M)
PYTHON_CLASS = re.compile(r"^class (\w+)\(.*?(?=^\S|\Z)", re.M | re.S)


def tests_of(tree):
    """Every test that the sources hold, as Suite.Name; of pytest, file.test; lint.Rule."""
    found = set()
    for name in tree.sources(".cc"):
        if name.startswith("tests/"):
            found |= {".".join(pair) for pair in CPP_TEST.findall(tree.text(name))}
    for name in tree.sources(".py"):
        text = tree.text(name)
        if name.startswith("tests/lint/"):
            found |= {f"lint.{rule}" for rule in re.findall(r'^    "(\w+)": \w+,$', text, re.M)}
        elif name.startswith("tests/"):
            for suite in PYTHON_CLASS.finditer(text):
                found |= {f"{suite[1]}.{test}"
                          for test in re.findall(r"^    def (test_\w+)", suite[0], re.M)}
            found |= {f"{name.split('/')[-1][:-3]}.{test}"
                      for test in re.findall(r"^def (test_\w+)", text, re.M)}
    return found


def promised_tests_exist(tree):
    """Every promise names a test, and each that is named is there."""
    if not tree.has(PROMISES):
        return
    tests = tests_of(tree)
    for line, text in lines_of(tree.text(PROMISES)):
        cells = [cell.strip() for cell in text.strip("| \n").split("|")]
        if not text.startswith("|") or cells[0] in ("promise", "---"):
            continue
        named = re.findall(r"`(\w+\.\w+)`", cells[-1])
        if not named:
            yield f"{PROMISES}:{line}: no test is named"
        for test in named:
            if test not in tests:
                yield f"{PROMISES}:{line}: there is no test {test}"


WALKS = "docs/design.md"
WALK = re.compile(r"^### (Life of [^\n]*): (\d+) sources$(.*?)(?=^#|\Z)", re.M | re.S)
MOST_SOURCES = {"Life of an allocation": 12, "Life of a block": 9}


def calls(text, function):
    """Whether `text` names a function beside its definitions; make() may be a Make()."""
    short = function.split("::")[-1]
    uses = re.findall(rf"\b{short}\b", text, re.I)
    return len(uses) > len(definitions(text, function))


def definitions(text, function):
    return re.findall(rf"^(?:\w[\w:<>*& ,]* )?{re.escape(function)}\(", text, re.M)


def walks_are_true(tree):
    """Each step of a walk is defined where it says, and called by a step before it."""
    if not tree.has(WALKS):
        return
    walks = WALK.findall(tree.text(WALKS))
    for name in set(MOST_SOURCES) - {walk[0] for walk in walks}:
        yield f"{WALKS}: there is no walk '### {name}: N sources'"
    for name, stated, text in walks:
        steps = re.findall(r"^\| `([\w:]+)` \| `([\w./]+)` \| ([^|]*)\|", text, re.M)
        before = []
        for function, path, what in steps:
            source = tree.text(path) if tree.has(path) else ""
            if not definitions(source, function):
                yield f"{WALKS}: {name}: {path} has no {function}()"
            if "the program" not in what and not any(
                    calls(tree.text(one), function) for one in before if tree.has(one)):
                yield f"{WALKS}: {name}: nothing before {function}() calls it"
            before.append(path)
        count = len(set(before))
        if count != int(stated):
            yield f"{WALKS}: {name} has {count} sources, not {stated}"
        if count > MOST_SOURCES.get(name, count):
            yield f"{WALKS}: {name} has {count} sources; at most {MOST_SOURCES[name]}"


VERSION = re.compile(r"^  VERSION ([0-9.]+)$", re.M)
VERSIONED = {"vmm/python/pyproject.toml": r'^version = "([^"]+)"$',
             ".packaging/conda/recipe.yaml": r'^  version: "([^"]+)"$',
             ".packaging/spack/packages/vmmshare/package.py": r'^    version\("([^"]+)"\)$',
             ".packaging/vcpkg/vmmshare/vcpkg.json": r'^  "version-semver": "([^"]+)",$',
             "docs/changelog.md": r"^## ([0-9.]+)"}


def one_version(tree):
    """Packages and recipes have the version of the project, and the changelog begins with it."""
    found = VERSION.search(tree.text("CMakeLists.txt")) if tree.has("CMakeLists.txt") else None
    if not found:
        return
    for name, pattern in VERSIONED.items():
        if not tree.has(name):
            yield f"{name}: is missing, or the list of files with the version is old"
            continue
        stated = re.search(pattern, tree.text(name), re.M)
        if not stated or stated[1] != found[1]:
            yield (f"{name}: has version {stated[1] if stated else 'none'}, CMakeLists.txt has "
                   f"{found[1]}")


RULES = {
    "SnippetsAreRun": snippets_are_run,
    "TablesAreWhole": tables_are_whole,
    "OneVersion": one_version,
    "LinksResolve": links_resolve,
    "NamedFilesExist": named_files_exist,
    "NamedTasksExist": named_tasks_exist,
    "PromisedTestsExist": promised_tests_exist,
    "WalksAreTrue": walks_are_true,
}
