"""Rules for the code. Each takes a Tree and yields one finding a breach."""

import posixpath
import re

from tree import includes_of, lines_of

ROOMS = ("vmm", "fabric", "platform")
# What a file may include of ours, by the folder it is in; the first that fits.
MAY_INCLUDE = (
    ("platform/hostdriver/", ("platform/hostdriver/",)),
    ("platform/", ("platform/",)),
    ("fabric/", ("fabric/", "platform/")),
    ("vmm/", ("vmm/", "fabric/", "platform/")),
    ("docs/examples/", ("vmm/", "fabric/", "platform/", "docs/examples/")),
    ("bench/", ("vmm/", "fabric/", "platform/", "tests/support/", "bench/")),
    ("tests/", ("vmm/", "fabric/", "platform/", "tests/")),
)
OURS = ROOMS + ("tests", "bench", "docs")


def includes_point_one_way(tree):
    """vmm -> fabric -> platform; nothing of the library includes tests."""
    for name in tree.sources():
        allowed = next((a for folder, a in MAY_INCLUDE if name.startswith(folder)), None)
        if allowed is None:
            yield f"{name}: no rule says what a file of this folder may include"
            continue
        for line, opened, path in includes_of(tree.text(name)):
            at = f"{name}:{line}"
            ours = path.split("/")[0] in OURS
            if path.startswith(".") or (opened == '"' and ours and not tree.has(path)):
                yield f"{at}: \"{path}\" is no file, spelled from the repository's root"
            elif opened == '"' and "/" not in path:
                yield f"{at}: spell \"{path}\" from the repository's root"
            elif ours and not path.startswith(allowed):
                yield f"{at}: may not include {path}; allowed here: {', '.join(allowed)}"
            elif (ours and path.startswith("platform/hostdriver/")
                  and not name.startswith(("platform/hostdriver/", "tests/"))):
                yield f"{at}: only tests may look into the host-memory driver"
            elif (name.startswith("platform/hostdriver/") and not ours
                  and "/" in path and not path.startswith(("sys/", "linux/"))):
                yield f"{at}: the host-memory driver includes only itself, cuda.h and the system"


PLATFORM_MACRO = re.compile(
    r"\b(_WIN32|_WIN64|WIN32|_MSC_VER|__MINGW\w*|__CYGWIN__|__linux\w*|linux|__unix\w*|unix"
    r"|__APPLE__|__MACH__|__FreeBSD__|__ANDROID__|_POSIX_\w+)\b")


def no_platform_conditionals(tree):
    """Per-OS code lives in *_posix and *_win files, not under #if."""
    for name in tree.sources():
        if re.search(r"_(posix|win)\.(h|cc)$", name):
            continue
        for line, text in lines_of(tree.text(name)):
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif|elifdef|elifndef)\b", text):
                found = PLATFORM_MACRO.search(text)
                if found:
                    yield (f"{name}:{line}: {found.group(1)} in a conditional; per-OS code"
                           " belongs in a file named *_posix.cc or *_win.cc")


def header_guards(tree):
    """A header's guard is VMMSHARE_, its path, and an underscore."""
    for name in tree.sources(".h"):
        guard = "VMMSHARE_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper() + "_"
        directives = [t.strip() for _, t in lines_of(tree.text(name))
                      if t.lstrip().startswith("#")]
        wanted = [f"#ifndef {guard}", f"#define {guard}"]
        if directives[:2] != wanted or directives[-1] != f"#endif  // {guard}":
            yield f"{name}: expected the header guard {guard}, closed by '#endif  // {guard}'"


TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "bench", "dev",
             "docs", "fabric", "platform", "tests", "vmm"}


def top_level_entries(tree):
    """The top level holds the rooms and what a repository needs."""
    for entry in sorted({f.split("/")[0] for f in tree.files}):
        if entry not in TOP_LEVEL and not entry.startswith("."):
            yield f"{entry}: does not belong at the top level"


LIMIT = 500


def file_length(tree):
    """A file outside tests/ has at most 500 lines."""
    for name in tree.sources(".h", ".cc", ".py", ".cmake", "CMakeLists.txt", ".sh"):
        length = len(tree.text(name).splitlines())
        if length > LIMIT and not name.startswith("tests/"):
            yield f"{name}: {length} lines; at most {LIMIT}, better below 350: split it"


MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SUPPRESSION = re.compile(
    r"no_sanitize|__[alt]san_(disable|enable|ignore\w*|default_\w+|on_\w+)"
    r"|__ubsan_default_\w+|__(SANITIZE_\w+)__|__has_feature\(\w*sanitizer\)")
VAGUE_NOLINT = re.compile(r"NOLINT(NEXTLINE|BEGIN|END)?(?!\w)(?!\([a-z])")


def no_marks(tree):
    """No unfinished work, no sanitizer suppressions, no nameless NOLINT."""
    for name in tree.sources(".h", ".cc", ".py", ".cmake", "CMakeLists.txt", ".md", ".sh", "dev"):
        if name.startswith("tests/lint/"):
            continue
        for line, text in lines_of(tree.text(name)):
            for pattern, say in ((MARK, "a mark of unfinished work"),
                                 (SUPPRESSION, "code that hides from a sanitizer"),
                                 (VAGUE_NOLINT, "a NOLINT that names no check")):
                found = pattern.search(text)
                if found:
                    yield f"{name}:{line}: '{found.group(0)}' is {say}"


def every_source_is_built(tree):
    """Every .cc is named in the CMakeLists.txt of its folder or one above."""
    for name in tree.sources(".cc"):
        folder, listed = posixpath.dirname(name), False
        while True:
            lists = posixpath.join(folder, "CMakeLists.txt")
            short = posixpath.relpath(name, folder or ".")
            per_os = re.sub(r"_(posix|win)\.cc$", "_${os}.cc", short)
            if tree.has(lists):
                text = tree.text(lists)
                names = [short, per_os]
                if "}.cc" in text:  # foreach(test a_test ...) ... ${test}.cc
                    names.append(short.removesuffix(".cc"))
                listed = any(re.search(rf"(?<![\w/.]){re.escape(n)}(?![\w.])", text)
                             for n in names)
            if listed or not folder:
                break
            folder = posixpath.dirname(folder)
        if not listed:
            yield f"{name}: no CMakeLists.txt builds it"


WITHOUT_FUTEX = re.compile(r"#\s*include\s*<(latch|barrier|semaphore)>")


def waits_are_on_condition_variables(tree):
    """No std::latch, std::barrier or std::counting_semaphore."""
    for name in tree.sources():
        for line, text in lines_of(tree.text(name)):
            found = WITHOUT_FUTEX.search(text)
            if found:
                yield (f"{name}:{line}: <{found.group(1)}> loses wakes where libstdc++ has no futex"
                       " (Windows): its waiter looks before it locks; use a condition_variable")


RULES = {
    "IncludesPointOneWay": includes_point_one_way,
    "NoPlatformConditionals": no_platform_conditionals,
    "HeaderGuards": header_guards,
    "TopLevelEntries": top_level_entries,
    "FileLength": file_length,
    "NoMarks": no_marks,
    "EverySourceIsBuilt": every_source_is_built,
    "WaitsAreOnConditionVariables": waits_are_on_condition_variables,
}
