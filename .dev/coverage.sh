# Which lines and branches of the rooms the tests run. Sourced by ./dev; uses its
# say, fail, logged, need_tests, build.
#
# A process that is killed, or ends by _exit(), loses what it counted: the victims
# of tests/kill and forked children are not in the figures. A test that looks at
# a program's symbols, files or standard error may meet what counts, and fail
# here alone: the report is made all the same, and they are named.

coverage_suites='^(unit|os|conformance|gpu|ipc|fuzz|tool|job|c|sweep|kill|hostile)$'

# task_coverage [-- CTEST ARGS]
task_coverage() {
  if [ "${1:-}" = -- ]; then shift; fi
  local folder=build/coverage venv=build/coverage/venv failed
  [ "$prebuilt" = 1 ] || need_tests
  build coverage
  if ! cmp -s .dev/coverage.txt $venv/complete; then
    say "installing gcovr into $venv"
    rm -rf $venv
    logged $folder/log/venv.log python3 -m venv $venv
    logged $folder/log/pip.log $venv/bin/pip install --quiet -r .dev/coverage.txt
    cp .dev/coverage.txt $venv/complete
  fi
  find $folder -name '*.gcda' -delete
  say "testing $folder"
  # Each point of the sweeps and kills runs the same lines over and over.
  env VMMSHARE_SWEEP_EVERY="${VMMSHARE_SWEEP_EVERY:-3}" VMMSHARE_KILL_EVERY="${VMMSHARE_KILL_EVERY:-15}" \
    VMMSHARE_STOP_EVERY="${VMMSHARE_STOP_EVERY:-45}" VMMSHARE_JOB_KILLS="${VMMSHARE_JOB_KILLS:-100}" \
    VMMSHARE_MODEL_OPERATIONS="${VMMSHARE_MODEL_OPERATIONS:-100000}" \
    VMMSHARE_STALE_TICKETS="${VMMSHARE_STALE_TICKETS:-100000}" \
    ctest --test-dir $folder -j "$(nproc)" --output-on-failure -L "$coverage_suites" "$@" \
    >$folder/log/test.log 2>&1 || true
  grep -q '% tests passed' $folder/log/test.log || fail "no test ran: $folder/log/test.log"
  failed=$(sed -n '/The following tests FAILED/,$p' $folder/log/test.log)
  # Meanwhile gcov's files lie at the top level; they are in .gitignore.
  say "reading what was counted"
  logged $folder/log/gcovr.log $venv/bin/gcovr --root . -j "$(nproc)" --exclude-throw-branches \
    --merge-mode-functions separate --gcov-ignore-parse-errors all \
    --filter 'vmm/' --filter 'platform/' --filter 'fabric/' --exclude 'build/' \
    --json $folder/report.json $folder
  python3 -B .dev/coverage.py $folder/report.json $folder/coverage.md $folder/uncovered.txt
  sed -n '/% tests passed/p' $folder/log/test.log
  [ -z "$failed" ] || say "failed in this build: $failed"
  say "the table is $folder/coverage.md; what never ran is named in $folder/uncovered.txt"
}
