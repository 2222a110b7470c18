# Which lines and branches of the rooms the tests run. Sourced by ./dev; uses its
# say, fail, logged, need_tests, build.
#
# Counters lie in files that all processes of a program map: what is killed or ends
# by _exit() has counted. A test that looks at a program's symbols, files or
# standard error may meet what counts, and fail here alone: the report is made all
# the same, and they are named.

coverage_suites='^(unit|os|death|conformance|gpu|ipc|fuzz|tool|job|c|calls|sweep|kill|hostile|soak|standin|python)$'

# task_coverage [-- CTEST ARGS]
task_coverage() {
  if [ "${1:-}" = -- ]; then shift; fi
  local folder=$PWD/build/coverage failed objects
  [ "$prebuilt" = 1 ] || {
    need_coverage
    optional=1 need_python
    need_tests
  }
  build coverage
  rm -rf "$folder/counters"
  mkdir -p "$folder/counters"
  say "testing build/coverage"
  # Each point of the kills runs the same lines over and over.
  env LLVM_PROFILE_FILE="$folder/counters/%c%m.profraw" \
    VMMSHARE_KILL_EVERY="${VMMSHARE_KILL_EVERY:-15}" VMMSHARE_STOP_EVERY="${VMMSHARE_STOP_EVERY:-45}" \
    VMMSHARE_JOB_KILLS="${VMMSHARE_JOB_KILLS:-100}" \
    VMMSHARE_MODEL_OPERATIONS="${VMMSHARE_MODEL_OPERATIONS:-100000}" \
    VMMSHARE_STALE_TICKETS="${VMMSHARE_STALE_TICKETS:-100000}" \
    ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure -L "$coverage_suites" "$@" \
    >"$folder/log/test.log" 2>&1 || true
  grep -q '% tests passed' "$folder/log/test.log" || fail "no test ran: build/coverage/log/test.log"
  failed=$(sed -n '/The following tests FAILED/,$p' "$folder/log/test.log")
  say "reading what was counted"
  logged "$folder/log/merge.log" llvm-profdata-16 merge --sparse -o "$folder/counters.profdata" \
    "$folder"/counters/*.profraw
  # All that there is to run, which no one program has.
  logged "$folder/log/whole.log" clang++-16 -shared -fprofile-instr-generate -o "$folder/whole.so" \
    -Wl,--whole-archive "$folder"/{platform,fabric}/*.a "$folder"/vmm/*/*.a -Wl,--no-whole-archive
  objects=(--object "$folder/whole.so" --object "$folder/vmm/c/libvmmshare.so.1" --object
    "$folder/vmm/tool/vmmshare" --object "$folder/platform/hostdriver/libvmmshare_hostdriver.so")
  llvm-cov-16 export --format=text --instr-profile "$folder/counters.profdata" "${objects[@]}" \
    >"$folder/report.json" 2>"$folder/log/export.log" || fail "build/coverage/log/export.log says why"
  python3 -B .dev/coverage.py "$folder/report.json" "$PWD" "$folder/coverage.md" "$folder/uncovered.txt"
  sed -n '/% tests passed/p' "$folder/log/test.log"
  [ -z "$failed" ] || say "failed in this build: $failed"
  say "the table is build/coverage/coverage.md; what never ran is named in build/coverage/uncovered.txt"
}
