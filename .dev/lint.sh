# ./dev lint, after build/dev is configured. Sourced by ./dev.
# Every part runs, so that one run shows everything; then it fails if one did.

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

# A negative control: each tool must report a file that breaks its rules.
lint_tools_test() {
  local spoilt=build/dev/log/spoilt.cc found check
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
  for check in modernize-use-nullptr clang-diagnostic-{thread-safety-analysis,exit-time-destructors}; do
    grep -qF "[$check," <<<"$found" || return 1
  done
  ! cppcheck --quiet --error-exitcode=1 $spoilt
}

# Without the system's headers: cppcheck then checks our code, not theirs. What
# needs them is clang-tidy's, and so is passing by value.
# Returning *std::move(x) is no local's move, tests look at what was moved, and
# the compiler knows better which functions return.
lint_cppcheck() {
  git ls-files '*.cc' >build/dev/log/cppcheck-files.txt
  cppcheck --quiet --std=c++20 --language=c++ --library=googletest \
    --library=tests/lint/cppcheck.cfg -I . -j "$(nproc)" \
    --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=passedByValue --suppress=returnStdMoveLocal --suppress=missingReturn \
    --suppress='accessMoved:tests/*' \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
    --template='{file}:{line}: {severity}: {message} [{id}]' \
    --file-list=build/dev/log/cppcheck-files.txt
}

# One process a file; the longest first, so that no core is left waiting. Each
# file is read without the precompiled headers of the build, so that an include
# it lacks is an error here. No object of the library may be destroyed at exit,
# when its threads may still use it.
lint_tidy() {
  local tidy=build/dev/log/tidy
  mkdir -p $tidy
  sed -E "s/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//g; s/ -fpch-preprocess//g
    s|( -c $PWD/(vmm\|platform\|fabric)/)| -Wexit-time-destructors\1|" \
    build/dev/compile_commands.json >$tidy/compile_commands.json
  python3 - build/dev/compile_commands.json <<'PYTHON' >build/dev/log/tidy-files.txt
import json, os, sys
root = os.getcwd()
files = {os.path.normpath(os.path.join(c["directory"], c["file"]))
         for c in json.load(open(sys.argv[1]))}
ours = [f for f in files if f.startswith(root + "/") and not f.startswith(root + "/build/")]
print("\n".join(sorted(ours, key=os.path.getsize, reverse=True)))
PYTHON
  # GCC's own warning flags mean nothing to clang; its noise lines neither. Its
  # library deprecates what its own std::stable_sort uses: a deprecation is said
  # by the compiler, which knows whose it is.
  xargs -P "$(nproc)" -n 1 -d '\n' clang-tidy -p $tidy --quiet \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations \
    --extra-arg=-Wthread-safety \
    <build/dev/log/tidy-files.txt 2> >(
      grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed ' || true
    )
}
