"""Negative controls: a sound tree passes every rule, each spoilt one is caught."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

import rooms
from check import RULES
from tree import Tree

SOUND = {
    "README.md": "# Title\n\nSee [the guide](docs/guide.md#first-steps--more) and `vmm/a.h`.\n",
    "docs/guide.md": "# Guide\n\n## First steps & more\n\nRun ./dev test. [up](../README.md)\n\n"
                     "| a | b |\n| --- | ---: |\n| `x \\| y` | a \\| b |\n\nProse | a\n\n---\n",
    "dev": "task_test() {\n}\n",
    "platform/CMakeLists.txt": "vmmshare_room(platform SOURCES os/os_${os}.cc)\n"
                               "if(P MATCHES \"^(x|y)$\" AND NOT MSVC)\n  target_sources(p PRIVATE base/x86.cc)\n",
    "platform/os/os_win.cc": "return OsError(static_cast<int>(::GetLastError()), \"F()\");\n",
    "platform/os/os_posix.cc": "#ifdef __linux__\n#endif\nssize_t n;\nreturn LastError().Of(absl::StrCat(a));\n",
    "platform/base/x86.cc": "__attribute__((target(\"avx\"))) int f();\n",
    "platform/hostdriver/CMakeLists.txt": "add_library(h driver.cc)\n",
    "platform/hostdriver/driver.cc": "#include <cuda.h>\n#include <sys/mman.h>\n",
    "fabric/CMakeLists.txt": "vmmshare_room(fabric)\n",
    "vmm/CMakeLists.txt": "vmmshare_room(vmm SOURCES a.cc)\n",
    "vmm/a.h": "// A.\n#ifndef VMMSHARE_VMM_A_H_\n#define VMMSHARE_VMM_A_H_\n"
               "#endif  // VMMSHARE_VMM_A_H_\n",
    "vmm/a.cc": "#include \"vmm/a.h\"\n\n#include \"absl/status/status.h\"\n"
                "auto p = std::filesystem::path(std::u8string(n)).u8string();  // Not .string().\n"
                "int x;  // NOLINT(misc-something)\nMutex m;\nint n ABSL_GUARDED_BY(m);\nMutex w;  // Of writers.\n"
                "//   NOT_FOUND  gone, or never\n//              there\n//   else       bad\n// Prose.\n",
}



def picture_of(files):
    """The picture that rooms.py draws of a tree."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return rooms.draw(Tree(folder))


SOUND[rooms.PICTURE] = picture_of(SOUND)

# A rule, a file that breaks it (None removes the file), and a part of the report.
WALK = ("### Life of a block: 0 sources\n\n### Life of an allocation: 0 sources\n"
        "| step | source | |\n| --- | --- | --- |\n")

def msvc(**changes):
    """Presets for MSVC, with one thing other than it should be."""
    preset = {"name": "msvc", "condition": {"lhs": "${hostSystemName}", "rhs": "Windows"},
              "cacheVariables": {"CMAKE_CXX_COMPILER": "cl", "VCPKG_MANIFEST_DIR": "${sourceDir}/.packaging/msvc"},
              "toolchainFile": "vcpkg.cmake"}
    preset.update(changes)
    return json.dumps({"configurePresets": [preset],
                       "buildPresets": [{"name": "msvc", "configurePreset": "msvc"}]})


SOUND["CMakePresets.json"] = msvc()
SOUND[".github/workflows/w.yml"] = "run: cmake --preset msvc\n"
SOUND[".cmake/Dependencies.cmake"] = "find_package(absl QUIET)\nfind_package(nlohmann_json 3.11 QUIET)\n"
SOUND[".packaging/msvc/vcpkg.json"] = '{"dependencies": [{"name": "abseil"}, "nlohmann-json"]}\n'
SOUND[".packaging/vcpkg/v/vcpkg.json"] = '{"name": "v", "supports": "windows"}\n'
SOUND[".packaging/vcpkg/v/portfile.cmake"] = ""
SOUND["docs/app/vcpkg.json"] = '{"name": "app", "dependencies": ["v"]}\n'
SOUND["docs/app/vcpkg-configuration.json"] = '{"overlay-ports": ["../../.packaging/vcpkg"]}\n'

SPOILT = [
    ("PresetsAreWhole", {"CMakePresets.json": "{,}\n"}, "is no JSON"),
    ("PresetsAreWhole", {"CMakePresets.json": msvc(condition={})}, "not for Windows alone"),
    ("PresetsAreWhole", {"CMakePresets.json": msvc(cacheVariables={"CMAKE_CXX_COMPILER": "g++"})}, "not cl"),
    ("PresetsAreWhole", {"CMakePresets.json": msvc(cacheVariables={"CMAKE_CXX_COMPILER": "cl"})},
     "holds no vcpkg.json"),
    ("PresetsAreWhole", {"CMakePresets.json": msvc(name="msvc2")}, "msvc2 has no build preset"),
    ("PresetsAreWhole", {"CMakePresets.json": msvc(name="other")}, "which is no configure preset"),
    ("PresetsAreWhole", {".github/workflows/w.yml": "run: ctest --preset mvsc\n"}, "no preset mvsc"),
    ("ManifestsNameWhatThereIs", {".packaging/msvc/vcpkg.json": "{'a'}\n"}, "is no JSON"),
    ("ManifestsNameWhatThereIs", {".packaging/msvc/vcpkg.json": "{}\n"}, "port abseil is missing"),
    ("ManifestsNameWhatThereIs", {".packaging/vcpkg/v/vcpkg.json": '{"name": "w"}\n'}, "folder of its name"),
    ("ManifestsNameWhatThereIs",
     {".packaging/vcpkg/v/vcpkg.json": '{"name": "v", "supports": "linux"}\n'}, "does not support Windows"),
    ("ManifestsNameWhatThereIs", {"docs/app/vcpkg.json": '{"name": "app", "dependencies": ["w"]}\n'},
     "holds no port"),
    ("ManifestsNameWhatThereIs", {".packaging/vcpkg/vcpkg.json": '{"name": "set"}\n'}, "holds no port"),
    ("PackagesHaveTheNotices", {".packaging/conda/recipe.yaml": "license_file: LICENSE\n"}, "does not take"),
    ("PackagesHaveTheNotices", {".packaging/debian/copyright": "Files: *\n"}, "is missing"),
    ("PackagesHaveTheNotices",
     {".packaging/debian/copyright": "Copyright: 2000, A Name\n",
      ".packaging/third-party-notices.txt": "Copyright (c) 2000 Another <a@b.c>, All rights reserved.\n"},
     "lacks '2000, Another'"),
    ("IncludesPointOneWay", {"platform/os/b.h": '#include "vmm/a.h"\n'}, "may not include vmm/a.h"),
    ("IncludesPointOneWay", {"fabric/b.h": "#include <vmm/a.h>\n"}, "may not include vmm/a.h"),
    ("IncludesPointOneWay",
     {"vmm/pool/p.h": "", "vmm/memory/b.h": '#include "vmm/pool/p.h"\n'},
     "may not include vmm/pool/p.h"),
    ("IncludesPointOneWay",
     {"vmm/job/j.h": "", "vmm/queue/b.cc": '#include "vmm/job/j.h"\n'},
     "may not include vmm/job/j.h"),
    ("IncludesPointOneWay",
     {"platform/ipc/c.h": "", "platform/os/b.h": '#include "platform/ipc/c.h"\n'},
     "may not include platform/ipc/c.h"),
    ("IncludesPointOneWay",
     {"tests/t.h": "", "vmm/b.h": '#include "tests/t.h"\n'}, "may not include tests/t.h"),
    ("IncludesPointOneWay",
     {"vmm/pool/p.h": "", "vmm/python/b.cc": '#include "vmm/pool/p.h"\n'},
     "may not include vmm/pool/p.h"),
    ("IncludesPointOneWay",
     {"vmm/c/c.h": "", "vmm/tool/b.cc": '#include "vmm/c/c.h"\n'},
     "may not include vmm/c/c.h"),
    ("IncludesPointOneWay", {"vmm/b.h": '#include "a.h"\n'}, "from the repository's root"),
    ("IncludesPointOneWay", {"vmm/b.h": '#include "../vmm/a.h"\n'}, "from the repository's root"),
    ("IncludesPointOneWay",
     {"platform/hostdriver/driver.cc": '#include "absl/status/status.h"\n'},
     "includes only itself"),
    ("IncludesPointOneWay",
     {"platform/hostdriver/l.h": "", "vmm/b.h": '#include "platform/hostdriver/l.h"\n'},
     "only tests may look"),
    ("NoPlatformConditionals", {"vmm/a.cc": "#if defined(_WIN32)\n#endif\n"}, "vmm/a.cc:1: _WIN32"),
    ("NoPlatformConditionals", {"vmm/a.cc": "#if 0 || \\\n  __linux__\n#endif\n"}, "__linux__"),
    ("NoPlatformConditionals", {"vmm/a.cc": "#if 0\n#elif _MSC_VER > 1\n#endif\n"}, "_MSC_VER"),
    ("EveryCompilerReadsIt",
     {"vmm/a.cc": "int f(int i) {\n  return __builtin_popcount(i);\n}\n"}, "vmm/a.cc:2: MSVC does not know"),
    ("EveryCompilerReadsIt",
     {"vmm/a.h": "#ifdef A\n#define F __attribute__((f))\n#endif\n"}, "does not know '__attribute__'"),
    ("EveryCompilerReadsIt",
     {"platform/base/c_x86.cc": "__attribute__((target(\"avx\"))) int f();\n",
      "platform/CMakeLists.txt": "if(X86)\n  target_sources(p PRIVATE base/c_x86.cc)\nendif()\n"},
     "platform/base/c_x86.cc:1: MSVC"),
    ("PathsAreUtf8", {"vmm/a.cc": "auto p = std::filesystem::path(folder) / name;\n"}, "'filesystem::path'"),
    ("PathsAreUtf8", {"platform/os/b.cc": "if (std::filesystem::exists(folder)) f();\n"}, "'filesystem::exists'"),
    ("PathsAreUtf8", {"platform/os/os_win.cc": "return path.lexically_normal()\n    .string();\n"},
     "platform/os/os_win.cc:2: '.string()'"),
    ("HeaderGuards", {"vmm/a.h": "#pragma once\n"}, "VMMSHARE_VMM_A_H_"),
    ("HeaderGuards",
     {"vmm/a.h": "#ifndef VMM_A_H_\n#define VMM_A_H_\n#endif  // VMM_A_H_\n"},
     "VMMSHARE_VMM_A_H_"),
    ("TopLevelEntries", {"scripts/run.sh": ""}, "scripts"),
    ("FileLength", {"vmm/a.cc": "\n" * 451}, "451 lines"),
    ("MostFilesAreShort",
     {f"vmm/{i}.cc": "\n" * 111 for i in range(20)}, "50% of"),
    ("MostFilesAreShort",
     {**{f"vmm/s{i}.cc": "" for i in range(20)}, **{f"fabric/l{i}.cc": "\n" * 251 for i in range(5)}},
     "up to 251 lines"),
    ("NoMarks", {"vmm/a.cc": "// TODO: more\n"}, "unfinished"),
    ("NoMarks", {"vmm/a.cc": "int x;  // NOLINT\n"}, "names no check"),
    ("NoMarks", {"vmm/a.cc": "__attribute__((no_sanitize(\"thread\"))) int f();\n"}, "hides"),
    ("EverySourceIsBuilt", {"vmm/forgotten.cc": ""}, "vmm/forgotten.cc"),
    ("EverySourceIsBuilt", {"vmm/CMakeLists.txt": "aa.cc\n"}, "vmm/a.cc"),
    ("LocksSayWhatTheyGuard", {"vmm/a.cc": "std::lock_guard<std::mutex> lock(m);\n"}, "std::lock_guard"),
    ("LocksSayWhatTheyGuard", {"fabric/b.cc": "  std::condition_variable_any changed;\n"}, "std::condition"),
    ("LocksSayWhatTheyGuard", {"vmm/a.h": "  mutable platform::Mutex mutex_;\n  int n_;\n"}, "'mutex_'"),
    ("WaitsAreOnConditionVariables", {"vmm/a.cc": "#include <latch>\n"}, "loses wakes"),
    ("WaitsGoByASteadyClock",
     {"vmm/a.cc": "const absl::Time end = absl::Now() + patience;\n"}, "use a Deadline"),
    ("TheLastErrorIsReadFirst",
     {"platform/os/os_win.cc": "return OsError(static_cast<int>(::GetLastError()),\n               absl::StrCat(a, b));\n"},
     "platform/os/os_win.cc:1"),
    ("TheLastErrorIsReadFirst",
     {"platform/os/os_posix.cc": "\nreturn MapError(errno, absl::StrCat(a, b));\n"}, "platform/os/os_posix.cc:2"),
    ("TheLastErrorIsReadFirst",
     {"platform/os/os_posix.cc": "return OsError(\n    errno, call);\n"}, "behind errno"),
    ("TheLastErrorIsReadFirst",
     {"platform/os/os_posix.cc": "return MapError(LastError(), absl::StrCat(a));\n"}, "behind LastError()"),
    ("PresetsTolerateWarnings",
     {"CMakePresets.json": '{"cacheVariables": {"VMMSHARE_WARNINGS_AS_ERRORS": "ON"}}\n'},
     "CMakePresets.json:1"),
    ("PresetsTolerateWarnings", {".ci/run": "step ./dev test\n"}, "--werror"),
    ("PipesAreReadToTheirEnd", {"dev": "if ldconfig -p | grep -q 'libcuda'; then\nfi\n"}, "dev:1: grep -q"),
    ("PipesAreReadToTheirEnd", {".dev/a.sh": "a ||\n  b |\n  grep -E -iq c\n"}, ".dev/a.sh:3: grep -q"),
    ("ErrorTables",
     {"vmm/a.cc": "//   NOT_FOUND  gone (checked first) INTERNAL  else\n"}, "two rows"),
    ("ErrorTables",
     {"vmm/a.cc": "//   NOT_FOUND  gone, or never\n//   there\n"}, "no row of the table"),
    ("InstalledHeadersAreClosed",
     {"vmm/pool/CMakeLists.txt": "# Blocks.\nvmmshare_room(\n  pool\n  HEADERS\n    p.h)\n",
      "vmm/pool/p.h": '#include "vmm/pool/q.h"\n', "vmm/pool/q.h": ""}, "which is not installed"),
    ("InstalledHeadersAreClosed",
     {"vmm/pool/CMakeLists.txt": "# B.\nvmmshare_room(\n  pool\n  HEADERS\n    internal/p.h)\n",
      "vmm/pool/internal/p.h": ""}, "is internal"),
    ("TheHouseIsSmall",
     {"vmm/pool/CMakeLists.txt":
          "# B.\nvmmshare_room(\n  pool\n  HEADERS\n" + "".join(f"    h{i}.h\n" for i in range(46)) + ")\n",
      **{f"vmm/pool/h{i}.h": "" for i in range(46)}}, "46 headers are installed"),
    ("TheHouseIsSmall",
     {"vmm/vmm.h": "".join(f'#include "vmm/pool/h{i}.h"\n' for i in range(32)),
      "vmm/pool/h0.h": '#include "vmm/pool/more.h"\n', "vmm/pool/more.h": "",
      **{f"vmm/pool/h{i}.h": "" for i in range(1, 32)}}, "brings 33 headers along"),
    ("RoomsPicture", {"vmm/pool/CMakeLists.txt": "# Blocks.\nvmmshare_room(pool)\n"},
     "not what the build's lists give"),
    ("RoomsPicture",
     {"vmm/a/CMakeLists.txt": "vmmshare_room(a DEPENDS vmmshare::b)\n",
      "vmm/b/CMakeLists.txt": "vmmshare_room(b DEPENDS vmmshare::a)\n"}, "is a circle"),
    ("SnippetsAreRun",
     {"README.md": "<!-- quoted: docs/hello.py -->\n```python\nx = 1\ny = 2\n```\n",
      "docs/hello.py": "def f():\n    x = 1\n    y = 3\n"}, "to the letter"),
    ("SnippetsAreRun", {"README.md": "```cpp\nint main() {}\n```\n"}, "whether it is run"),
    ("SnippetsAreRun", {"README.md": "```\nint main() {}\n```\n"}, "no language"),
    ("SnippetsAreRun", {"docs/a.md": "<!-- snippet: one -->\n```cpp\nf();\n```\n",
                        "tests/docs/a.cc": "#include <a.two.inc>\n",
                        "tests/docs/CMakeLists.txt": "a.cc\n"}, "compiles or runs"),
    ("TablesAreWhole", {"README.md": "| a | b |\n| --- | --- |\n| 1 | broken in\ntwo | \n"}, "README.md:4: a row"),
    ("TablesAreWhole", {"README.md": "| a | b |\n| :-- | --: |\n| 1 |\n"}, "README.md:3: a row of 1"),
    ("TablesAreWhole", {"README.md": "| a | b |\n| - | - |\n| 1 | 2 | 3 |\n"}, "in a table of 2"),
    ("TablesAreWhole", {"README.md": "| a | b |\n| - | - |\n| `1 | 2` | 3 |\n"}, "README.md:3: a row of 3"),
    ("TablesAreWhole", {"README.md": "| a | b |\n| --- |\n"}, "README.md:2: a row of 1"),
    ("TablesAreWhole", {"README.md": "```c\n\n```\na | b\n--- | ---\n1\n"}, "README.md:6: a row of 1"),
    ("LinksResolve", {"README.md": "[gone](docs/gone.md)\n"}, "leads nowhere"),
    ("LinksResolve", {"README.md": "[g](docs/guide.md#second)\n"}, "lacks"),
    ("LinksResolve", {"README.md": "[g]\n\n[g]: docs/gone.md\n"}, "leads nowhere"),
    ("NamedFilesExist", {"README.md": "```c++\n#include <vmm/gone.h>\n```\n"}, "vmm/gone.h"),
    ("PromisedTestsExist",
     {"docs/promises.md": "| promise | test |\n| --- | --- |\n| It flies. | `Bird.Flies` |\n",
      "tests/t_test.cc": "TEST(Bird, Swims) {}\n", "tests/CMakeLists.txt": "t_test.cc\n"},
     "no test Bird.Flies"),
    ("PromisedTestsExist", {"docs/promises.md": "| It flies. | by hand |\n"}, "no test is named"),
    ("WalksAreTrue", {"docs/design.md": "# Design\n"}, "no walk '### Life of a block"),
    ("WalksAreTrue", {"docs/design.md": WALK + "| `A::C` | `vmm/a.cc` | |\n"}, "has no A::C()"),
    ("WalksAreTrue", {"docs/design.md": WALK + "| `A::B` | `vmm/b.cc` | |\n",
                      "vmm/b.cc": "void A::B() {}\n"}, "nothing before A::B() calls it"),
    ("WalksAreTrue", {"docs/design.md": WALK + "| `A::B` | `vmm/b.cc` | the program |\n",
                      "vmm/b.cc": "void A::B() {}\n"}, "has 1 sources, not 0"),
    ("OneVersion", {"CMakeLists.txt": "project(\n  a\n  VERSION 1.2.3\n)\n",
                    "docs/changelog.md": "# Changelog\n\n## 1.2.2\n"}, "has version 1.2.2"),
    ("NamedTasksExist", {"docs/guide.md": "Run `./dev fly`.\n"}, "no task fly"),
]


class CheckTest(unittest.TestCase):
    def findings(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**SOUND, **changes}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            tree = Tree(folder)
            return {rule: list(check(tree)) for rule, check in RULES.items()}

    def test_sound_tree_passes_every_rule(self):
        for rule, found in self.findings({}).items():
            self.assertEqual(found, [], rule)

    def test_every_rule_has_a_spoilt_tree(self):
        self.assertEqual({rule for rule, _, _ in SPOILT}, set(RULES))

    def test_ctest_runs_every_rule(self):
        listed = pathlib.Path(__file__).with_name("CMakeLists.txt").read_text(encoding="utf-8")
        self.assertEqual([rule for rule in RULES if f"\n  {rule}" not in listed], [])

    def test_spoilt_trees_are_caught(self):
        for rule, changes, part in SPOILT:
            with self.subTest(rule=rule, changes=changes):
                found = self.findings(changes)[rule]
                self.assertTrue(any(part in f for f in found), f"{part!r} not in {found}")


if __name__ == "__main__":
    unittest.main()
