"""Rules for the code. Each takes a Tree and yields one finding a breach."""

import posixpath
import re

from tree import includes_of, lines_of

ROOMS = ("vmm", "fabric", "platform")
BASE, OS = ("platform/base/",), ("platform/base/", "platform/os/")
MEMORY = ("vmm/memory/", "fabric/", "platform/")
SHARE = ("vmm/share/", *MEMORY)
POOL = ("vmm/pool/", *SHARE)
SYNC = ("vmm/sync/", *POOL)
# What a file may include of ours, by the folder it is in; the first that fits.
MAY_INCLUDE = (
    ("platform/hostdriver/", ("platform/hostdriver/",)),
    ("platform/base/", BASE),
    ("platform/os/", OS),
    ("platform/ipc/", ("platform/ipc/", *OS)),
    ("platform/cuda/", ("platform/cuda/", *OS)),
    ("fabric/", ("fabric/", "platform/")),
    ("vmm/memory/", MEMORY),
    ("vmm/share/", SHARE),
    ("vmm/pool/", POOL),
    ("vmm/sync/", SYNC),
    ("vmm/queue/", ("vmm/queue/", *SYNC)),
    ("vmm/job/", ("vmm/job/", *SYNC)),
    ("vmm/keeper/", ("vmm/keeper/", *SHARE)),
    ("vmm/weights/", ("vmm/weights/", "vmm/keeper/", *SHARE)),
    ("vmm/tool/", ("vmm/tool/", "vmm/weights/", "vmm/keeper/", "vmm/job/", "vmm/queue/", *SYNC)),
    ("vmm/python/", ("vmm/python/", "vmm/c/")),
    ("vmm/c/", ("vmm/c/", "vmm/tool/", "vmm/weights/", "vmm/keeper/", "vmm/job/", "vmm/queue/",
                *SYNC)),
    ("vmm/", ("vmm/", "fabric/", "platform/")),
    ("docs/examples/", ("vmm/", "fabric/", "platform/", "docs/examples/")),
    ("bench/", ("vmm/", "fabric/", "platform/", "tests/support/", "bench/",
                "docs/examples/bytes.h", "docs/examples/process.h")),
    ("tests/", ("vmm/", "fabric/", "platform/", "tests/", "bench/trace.h", "bench/compare/results.h")),
)
OURS = ROOMS + ("tests", "bench", "docs")


def includes_point_one_way(tree):
    """The rooms of docs/design.md, from the top down; nothing of the library
    includes tests."""
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


OF_ONE_COMPILER = re.compile(r"__attribute__|__builtin_\w+|__int128|__asm__|__typeof__|\bssize_t\b")


def is_kept_from_msvc(tree, name):
    """Whether a CMakeLists.txt names a source right behind an if(... NOT MSVC)."""
    folder = posixpath.dirname(name)
    while folder:
        lists = posixpath.join(folder, "CMakeLists.txt")
        short = re.escape(posixpath.relpath(name, folder))
        if tree.has(lists) and re.search(rf"^if\(.*\bNOT MSVC\)\n.*[ /]{short}\b", tree.text(lists), re.M):
            return True
        folder = posixpath.dirname(folder)
    return False


def every_compiler_reads_it(tree):
    """What MSVC compiles has no words of GCC and clang, but where Abseil says that they are known."""
    for name in tree.sources(".h", ".cc", ".c"):
        if (not name.startswith((*ROOMS, "bench/", "docs/")) or name.startswith("vmm/python/")
                or re.search(r"_posix\.(h|cc)$", name) or is_kept_from_msvc(tree, name)):
            continue
        before = ""
        for line, text in lines_of(tree.text(name)):
            found = OF_ONE_COMPILER.search(text.split("//")[0])
            if found and not re.match(r"\s*#\s*if ABSL_HAVE_(ATTRIBUTE|BUILTIN)\(", before):
                yield (f"{name}:{line}: MSVC does not know '{found.group(0)}'; leave it to a *_posix file, or to a"
                       " source that CMake takes if(... NOT MSVC)")
            before = text


NARROW_PATH = re.compile(r"\b(?:filesystem|fs)::(?!path\(std::u8string\()\w+|\.(?:generic_)?string\(\)")


def paths_are_utf8(tree):
    """On Windows std::filesystem takes a narrow string for one of the ANSI code page."""
    for name in tree.sources():
        if not name.startswith(ROOMS) or name.startswith("vmm/python/") or re.search(r"_posix\.(h|cc)$", name):
            continue
        for line, text in lines_of(tree.text(name)):
            found = NARROW_PATH.search(text.split("//")[0])
            if found:
                yield (f"{name}:{line}: '{found.group(0)}' goes through the ANSI code page on Windows; write"
                       " std::filesystem::path(std::u8string(...)) and .u8string()")


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


LIMIT = 450


def file_length(tree):
    """A file outside tests/ has at most 450 lines."""
    for name in tree.sources(".h", ".cc", ".py", ".cmake", "CMakeLists.txt", ".sh"):
        length = len(tree.text(name).splitlines())
        if length > LIMIT and not name.startswith("tests/"):
            yield f"{name}: {length} lines; at most {LIMIT}, better below 350: split it"


# Of the sources of the library, in order of their length: this part has at most so many lines.
MOST = {0.5: 110, 0.9: 250}


def most_files_are_short(tree):
    """Half of the sources of vmm/, platform/ and fabric/ have at most 110 lines, nine of ten 250."""
    lengths = sorted(len(tree.text(name).splitlines()) for name in tree.sources()
                     if name.startswith(("vmm/", "platform/", "fabric/")))
    for part, limit in MOST.items():
        length = lengths[int(len(lengths) * part)] if lengths else 0
        if length > limit:
            yield (f"vmm, platform, fabric: {part:.0%} of {len(lengths)} sources have up to {length} lines; "
                   f"at most {limit}: split the longest by what they do")


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
                       " (Windows): its waiter looks before it locks; use a CondVar")


BARE_LOCK = re.compile(r"\bstd::(\w*mutex|(lock_guard|unique_lock|scoped_lock|shared_lock)\b|condition_variable\w*"
                       r"|call_once|once_flag)")
# The one that wraps them; and two rooms that may not include that.
LOCKS_BARE = ("platform/base/mutex.h", "platform/hostdriver/", "vmm/python/")
MUTEX = re.compile(r"\bMutex (\w+)(?: ABSL_\w+\(\w+\))?;(?!\s*//)")


def locks_say_what_they_guard(tree):
    """Mutexes are platform/base/mutex.h's, and members name the one that guards them."""
    for name in tree.sources(".cc", ".h"):
        if not name.startswith(ROOMS) or name.startswith(LOCKS_BARE):
            continue
        for line, text in lines_of(tree.text(name)):
            found = BARE_LOCK.search(text.split("//")[0])
            if found:
                yield (f"{name}:{line}: clang does not check what '{found.group(0)}' guards; use Mutex,"
                       " MutexLock or CondVar of platform/base/mutex.h")
            found = MUTEX.search(text)
            if found and f"GUARDED_BY({found.group(1)})" not in tree.text(name):
                yield (f"{name}:{line}: nothing says what '{found.group(1)}' guards: ABSL_GUARDED_BY, or, where"
                       " that is no member, a comment behind it")


TIME_OF_DAY = re.compile(r"\babsl::Now\(|\bToChronoTime\b|\bsystem_clock\b|\bCLOCK_REALTIME\b|\bGetSystemTime\w*"
                         r"|\b(Await|Wait)WithDeadline\b")
# Who may ask it: since when and until when something is, for people to read.
ASKS_THE_TIME = re.compile(
    r"platform/os/deadline\.cc|platform/ipc/(speaker_posix|peer_win)\.cc|fabric/exchange\.cc"
    r"|vmm/(share|pool|keeper)/(internal/)?(\w*lease\w*|domain_peers|subscription_recall|session|put|restorable_allocation)\.cc"
    r"|vmm/c/(convert|lease)\.cc|vmm/python/\S*|platform/hostdriver/\S*")


def waits_go_by_a_steady_clock(tree):
    """The time of day, which can be set, is no measure of a wait: platform/os/deadline.h."""
    for name in tree.sources(".cc", ".h"):
        if not name.startswith(ROOMS) or ASKS_THE_TIME.fullmatch(name):
            continue
        for line, text in lines_of(tree.text(name)):
            found = TIME_OF_DAY.search(text)
            if found and not text.lstrip().startswith("//"):
                yield f"{name}:{line}: '{found.group(0)}' is the time of day, which can be set; use a Deadline"


ERROR_BESIDE_A_CALL = re.compile(
    r"\b((?:Get)?LastError\(\)(?:\.code\(\))?|errno)\)?,\s*[\w:]+\(|\b(?:OsError|ErrnoToStatus)\(\s*(errno),")


def the_last_error_is_read_first(tree):
    """No argument beside errno or GetLastError() is a call: compilers order arguments as they like, and what a call
    allocates may set another error. LastError() of platform/os/os_error.h reads it first, whatever is beside it."""
    for name in tree.sources(".cc", ".h", ".c"):
        for found in ERROR_BESIDE_A_CALL.finditer(tree.text(name)):
            line = tree.text(name).count("\n", 0, found.start()) + 1
            asked = found.group(1) or found.group(2)
            yield (f"{name}:{line}: the argument behind {asked} may be made before it is asked; read it first,"
                   " as LastError().Of() does")


STRICT = re.compile(r'WARNINGS_AS_ERRORS|COMPILE_WARNING_AS_ERROR|-Werror|/WX')


def presets_tolerate_warnings(tree):
    """No preset turns warnings into errors; what CI runs does, where it knows the compiler."""
    for line, text in lines_of(tree.text("CMakePresets.json") if tree.has("CMakePresets.json") else ""):
        if STRICT.search(text):
            yield (f"CMakePresets.json:{line}: a user's compiler warns of what ours did not know;"
                   " leave errors to ./dev --werror")
    if tree.has(".ci/run") and "./dev test --werror" not in tree.text(".ci/run"):
        yield ".ci/run: no step builds with --werror"


QUIET_GREP = re.compile(r"(?<!\|)\|\s*(?:[a-z]*grep)\s+(?:-\S+\s+)*(?:-[a-zA-Z]*q|--quiet|--silent)")


def pipes_are_read_to_their_end(tree):
    """`grep -q` at a pipe's end leaves at the first match; who writes on is ended by SIGPIPE, and pipefail, which
    the scripts have, takes that for a failure: by chance, as soon as the text is long."""
    for name in tree.files:
        if not name.endswith(".sh") and name not in ("dev", ".ci/run", "tests/package/run"):
            continue
        text = re.sub(r"^[ \t]*#.*|\\$", "", tree.text(name), flags=re.M)
        for found in QUIET_GREP.finditer(text):
            line = text.count("\n", 0, found.end()) + 1
            yield f"{name}:{line}: grep -q leaves the pipe before its end; write grep -q PATTERN <<<\"$(COMMAND)\""


CODES = ("OK|CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS"
         "|PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE"
         "|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED")
TABLE_ROW = re.compile(rf"(\s*//\s{{2,}})(?:(?:{CODES})(?:, (?:{CODES}))*|else)(?:\s{{2,}}\S|,$| as )")
MERGED_ROW = re.compile(rf"\s*//.*[a-z.);]\s+(?:{CODES}|else)\s{{2,}}\S")


def error_tables(tree):
    """In a comment's table of errors each row begins with its code."""
    for name in tree.sources():
        column = None  # Where the rows of a table begin, inside one.
        for number, text in enumerate(tree.text(name).splitlines(), 1):
            if MERGED_ROW.match(text):
                yield f"{name}:{number}: two rows of a table of errors on one line"
            row, comment = TABLE_ROW.match(text), re.match(r"(\s*//\s*)\S", text)
            if row:
                column = len(row.group(1))
            elif not comment or column is None or len(comment.group(1)) < column:
                column = None
            elif len(comment.group(1)) == column:
                yield f"{name}:{number}: no row of the table of errors above, and not indented as more of one"


def installed_headers(tree):
    """The headers in the HEADERS of each room: name by name, with the CMakeLists.txt."""
    for name in tree.sources("CMakeLists.txt"):
        for listed in re.findall(r"^vmmshare_room\(.*?HEADERS\s+(.*?)(?:SOURCES|DEPENDS|\))",
                                 tree.text(name), re.M | re.S):
            for header in listed.split():
                yield posixpath.join(posixpath.dirname(name), header), name


def installed_headers_are_closed(tree):
    """What is installed includes of ours only what is installed, and nothing internal."""
    installed = dict(installed_headers(tree))
    for header, build in installed.items():
        if "/internal/" in header:
            yield f"{build}: {header} is internal and would be installed"
        for included in re.findall(r'^#include "([^"]+)"', tree.text(header), re.M):
            if tree.has(included) and included not in installed:
                yield f"{header}: includes {included}, which is not installed"


# What a program must read of vmmshare before its own first line.
MAX_INSTALLED_HEADERS = 45
MAX_UMBRELLA_HEADERS = 32
UMBRELLA = "vmm/vmm.h"


def the_house_is_small(tree):
    """How many headers of C++ are installed, and how many of them vmm/vmm.h brings along."""
    installed = {header for header, _ in installed_headers(tree)}
    if len(installed) > MAX_INSTALLED_HEADERS:
        yield f"{len(installed)} headers are installed, more than {MAX_INSTALLED_HEADERS}"
    brought, left = set(), [UMBRELLA] if tree.has(UMBRELLA) else []
    while left:
        for _, _, path in includes_of(tree.text(left.pop())):
            if path not in brought and tree.has(path):
                brought.add(path)
                left.append(path)
    if len(brought) > MAX_UMBRELLA_HEADERS:
        yield f"{UMBRELLA}: brings {len(brought)} headers along, more than {MAX_UMBRELLA_HEADERS}"


RULES = {
    "IncludesPointOneWay": includes_point_one_way,
    "NoPlatformConditionals": no_platform_conditionals,
    "EveryCompilerReadsIt": every_compiler_reads_it,
    "PathsAreUtf8": paths_are_utf8,
    "HeaderGuards": header_guards,
    "TopLevelEntries": top_level_entries,
    "FileLength": file_length,
    "MostFilesAreShort": most_files_are_short,
    "NoMarks": no_marks,
    "EverySourceIsBuilt": every_source_is_built,
    "LocksSayWhatTheyGuard": locks_say_what_they_guard,
    "WaitsAreOnConditionVariables": waits_are_on_condition_variables,
    "WaitsGoByASteadyClock": waits_go_by_a_steady_clock,
    "TheLastErrorIsReadFirst": the_last_error_is_read_first,
    "PresetsTolerateWarnings": presets_tolerate_warnings,
    "PipesAreReadToTheirEnd": pipes_are_read_to_their_end,
    "ErrorTables": error_tables,
    "InstalledHeadersAreClosed": installed_headers_are_closed,
    "TheHouseIsSmall": the_house_is_small,
}
