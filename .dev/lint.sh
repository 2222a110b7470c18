# ./dev lint, after build/dev is configured. Sourced by ./dev.
# Every part runs, so that one run shows everything; then it fails if one did.

# What clang-tidy reads in a unity build is included, and no header.
as_one=(--checks=-bugprone-suspicious-include,-google-global-names-in-headers
  --header-filter='/(vmm|fabric|platform|bench|tests|docs/examples)/[^/].*\.(h|cc)$')

lint() {
  local failed=0 log=build/dev/log
  lint_part "the project's own rules" rules python3 -B tests/lint/check.py
  lint_part "the rules catch spoilt trees" rules-test python3 -B tests/lint/check_test.py
  lint_part "the tools catch a spoilt file" tools-test lint_tools_test
  lint_part "layout (clang-format 14; mend it with ./dev format)" format lint_format
  lint_part "cppcheck" cppcheck lint_cppcheck
  lint_part "clang-tidy" tidy lint_tidy
  [ $failed = 0 ] || fail "lint found something (whole logs: $log/lint-*.log)"
  say "lint found nothing"
}

lint_part() {
  local what=$1 log=build/dev/log/lint-$2.log started=$SECONDS
  shift 2
  if "$@" >"$log" 2>&1; then
    say "passed: $what ($((SECONDS - started)) s)"
  else
    say "FAILED: $what ($((SECONDS - started)) s)"
    tail -n 60 "$log"
    failed=1
  fi
}

lint_format() {
  git ls-files -z '*.cc' '*.h' | xargs -0 -P "$(nproc)" -n 16 clang-format-14 --dry-run -Werror
}

# A negative control: each tool must report a file that breaks its rules; clang-tidy
# also one that is part of a unity build.
lint_tools_test() {
  local spoilt=build/dev/tests/spoilt.cc unity_source=build/dev/log/spoilt.cc
  local found found_in_unity check
  echo "#include \"$PWD/$spoilt\"" >$unity_source
  cat >$spoilt <<'CODE'
#include <string>
#include "platform/base/mutex.h"
int First( ) { int a[2] = {}; return a[2]; }
int* Second() { return 0; }
struct Third {
  int Get() { return held; }
  vmm::platform::Mutex mutex;
  int held ABSL_GUARDED_BY(mutex) = 0;
};
const std::string kFourth("destroyed while threads may use it");
CODE
  ! clang-format-14 --dry-run -Werror $spoilt || return 1
  found=$(! clang-tidy --quiet --config-file=.clang-tidy $spoilt -- -std=c++20 -I . \
    -Wthread-safety -Wexit-time-destructors) || return 1
  found_in_unity=$(! clang-tidy --quiet --config-file=.clang-tidy "${as_one[@]}" $unity_source -- \
    -std=c++20 -I . -Wthread-safety -Wexit-time-destructors) || return 1
  for check in modernize-use-nullptr clang-diagnostic-{thread-safety-analysis,exit-time-destructors}; do
    grep -qF "[$check," <<<"$found" || return 1
    grep -qF "[$check," <<<"$found_in_unity" || return 1
  done
  ! cppcheck --quiet --error-exitcode=1 $spoilt
}

# Without the system's headers: cppcheck then checks our code, not theirs. What
# needs them is clang-tidy's, and so is passing by value. Its own -j leaves a core
# waiting most of the time.
# Returning *std::move(x) is no local's move, tests look at what was moved, and
# the compiler knows better which functions return.
lint_cppcheck() {
  git ls-files -z '*.cc' | xargs -0 -P "$(nproc)" -n 24 \
    cppcheck --quiet --std=c++20 --language=c++ --library=googletest \
    --library=tests/lint/cppcheck.cfg -I . \
    --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=passedByValue --suppress=returnStdMoveLocal --suppress=missingReturn \
    --suppress='accessMoved:tests/*' \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --template='{file}:{line}: {severity}: {message} [{id}]'
}

# One process a file; the longest first, so that no core is left waiting. Each
# file is read without the precompiled headers of the build, so that an include
# it lacks is an error here. No object of the library may be destroyed at exit,
# when its threads may still use it. With --unity the files are those of the unity
# build, and a source is part of one: that takes half of the time, but an include
# that another source of it has is not missed, and checks that look at what is
# written in the file itself alone look at none.
lint_tidy() {
  local tidy=build/dev/log/tidy together=()
  mkdir -p $tidy
  [ ${#unity[@]} = 0 ] || together=("${as_one[@]}")
  sed -E "s/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//g; s/ -fpch-preprocess//g
    s|( -c $PWD/(build/dev/)?(vmm\|platform\|fabric)/)| -Wexit-time-destructors\1|" \
    build/dev/compile_commands.json >$tidy/compile_commands.json
  # Of each file the .clang-tidy of its folder, which is another one's for what CMake
  # wrote, and the file.
  python3 - build/dev/compile_commands.json <<'PYTHON' >build/dev/log/tidy-files.txt
import json, os, pathlib, re, sys
root = os.getcwd()
files = {os.path.normpath(os.path.join(c["directory"], c["file"]))
         for c in json.load(open(sys.argv[1]))}

def sources(file):
    included = re.findall(r'^#include "(.*)"', pathlib.Path(file).read_text(), re.M)
    return included if "/Unity/unity_" in file else [file]

def size(file):
    return sum(os.path.getsize(f) for f in sources(file))

ours = [f for f in files if f.startswith(root + "/") and
        ("/Unity/unity_" in f or not f.startswith(root + "/build/"))]
for file in sorted(ours, key=size, reverse=True):
    folder = pathlib.Path(sources(file)[0]).parent
    while not (folder / ".clang-tidy").exists():
        folder = folder.parent
    print(f"--config-file={folder}/.clang-tidy", file, sep="\n")
PYTHON
  # GCC's own warning flags mean nothing to clang; its noise lines neither. Its
  # library deprecates what its own std::stable_sort uses: a deprecation is said
  # by the compiler, which knows whose it is.
  xargs -P "$(nproc)" -n 2 -d '\n' clang-tidy -p $tidy --quiet ${together[@]+"${together[@]}"} \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations \
    --extra-arg=-Wthread-safety \
    <build/dev/log/tidy-files.txt 2> >(
      grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed ' || true
    )
}
