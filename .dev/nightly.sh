# What CI has no time for. Sourced by ./dev; uses its say, fail and build.
#
# A part is a function nightly_NAME. It builds what it runs, runs it by `limited`,
# and says by `figure` what came of it. Its whole output is build/nightly/NAME.log.

# The parts, and how many hours each may take; with --short it is 10 minutes, and 30
# where a build of its own is in it. What `build` does before is not counted.
nightly_parts='sweep:1 kill:12 stop:4 hostile:2 models:2 soak:12 calls:4 spin:1 valgrind:2 asan:4 tsan:4
  windows:2 aarch64:6 upgrade:1 coverage:2 mutants:8 fuzz:10'

# task_nightly [--short] [PART...]
task_nightly() {
  local short=0 folder=$PWD/build/nightly failed=0 known='' chosen=() argument part
  for part in $nightly_parts; do known+=" ${part%:*}"; done
  for argument in "$@"; do
    case $argument in
      --short) short=1 ;;
      *)
        case "$known " in
          *" $argument "*) chosen+=("$argument") ;;
          *) fail "nightly has no part $argument; there are:$known" ;;
        esac
        ;;
    esac
  done
  mkdir -p "$folder"
  {
    printf 'commit %s, %s, %s cores%s\n\n' "$(git describe --always --dirty 2>/dev/null)" \
      "$(date -u '+%F %R UTC')" "$(nproc)" "$([ $short = 0 ] || echo ', --short')"
    printf '| part | result | s | figure |\n| --- | --- | ---: | --- |\n'
  } >"$folder/summary.md"
  for part in $nightly_parts; do
    if [ ${#chosen[@]} -gt 0 ]; then
      case " ${chosen[*]} " in *" ${part%:*} "*) ;; *) continue ;; esac
    fi
    nightly_part "${part%:*}" "${part#*:}"
  done
  cat "$folder/summary.md"
  say "every part's output is in $folder"
  [ $failed = 0 ] || fail "a part of the night failed"
}

# nightly_part NAME HOURS: runs it, and adds its line to the table.
nightly_part() {
  local name=$1 started=$SECONDS limit=$(($2 * 3600)) deadline='' rc=0 result=passed
  if [ $short = 1 ]; then
    case $name in aarch64 | upgrade | windows) limit=1800 ;; *) limit=600 ;; esac
  fi
  say "nightly: $name"
  rm -rf "$folder/$name.figure" "$folder/$name"
  mkdir -p "$folder/$name"
  # Not as part of a condition: there a shell goes on after a command that failed.
  set +e
  (
    set -e
    nightly_"$name"
  ) >"$folder/$name.log" 2>&1 </dev/null
  rc=$?
  set -e
  if [ $rc = 124 ] || [ $rc = 137 ]; then
    result='NOT IN TIME' failed=1
  elif [ $rc != 0 ]; then
    result=FAILED failed=1
  fi
  [ $rc = 0 ] || tail -n 30 "$folder/$name.log"
  printf '| %s | %s | %d | %s |\n' "$name" "$result" $((SECONDS - started)) \
    "$(cat "$folder/$name.figure" 2>/dev/null)" >>"$folder/summary.md"
}

# limited COMMAND...: as long as the part has left.
limited() {
  local left
  start_clock
  left=$((deadline - SECONDS))
  [ $left -gt 0 ] || return 124
  timeout --kill-after=20 $left "$@"
}
start_clock() { [ -n "$deadline" ] || deadline=$((SECONDS + limit)); }
figure() { printf '%s' "$*" >"$folder/$name.figure"; }
# often LONG SHORT: the number for this night.
often() { if [ $short = 0 ]; then echo "$1"; else echo "$2"; fi; }
# The sum of the numbers that come in, a line each.
sum() { awk '{n += $1} END {printf "%d", n}'; }

# Every driver call and system call of the main operations fails in turn.
nightly_sweep() {
  local program programs=(vmm pool fence barrier ring job weights)
  programs=("${programs[@]/%/_sweep_test}")
  build dev "${programs[@]}" platform_sweep_test
  export VMMSHARE_SWEEP_REPORT=$folder/sweep/points VMMSHARE_SWEEP_EVERY VMMSHARE_SWEEP_PAIRS VMMSHARE_SWEEP_ALL
  VMMSHARE_SWEEP_EVERY=$(often 1 5) VMMSHARE_SWEEP_PAIRS=1 VMMSHARE_SWEEP_ALL=$(often 1 0)
  for program in "${programs[@]/#/sweep/}" os/platform_sweep_test; do
    limited "build/dev/tests/$program" --gtest_brief=1
  done
  figure "$(sed -n 's/.*: \([0-9]*\) points.*/\1/p' "$VMMSHARE_SWEEP_REPORT" | sum) fault points of" \
    "$(wc -l <"$VMMSHARE_SWEEP_REPORT") operations," \
    "$(sed -n 's/.* and \([0-9]*\) pairs$/\1/p' "$VMMSHARE_SWEEP_REPORT" | sum) pairs, nothing left behind"
}

# One of two processes is killed before and after each of its steps.
nightly_kill() {
  build dev killed_test job_kill_test vmm_keeper_restart_test
  export VMMSHARE_KILLS VMMSHARE_KILL_EVERY VMMSHARE_JOB_KILLS
  VMMSHARE_KILLS=$(often 100 1) VMMSHARE_KILL_EVERY=$(often 1 25) VMMSHARE_JOB_KILLS=$(often 10000 12)
  limited build/dev/tests/kill/killed_test --gtest_brief=1
  limited build/dev/tests/job/job_kill_test --gtest_brief=1
  limited build/dev/tests/ipc/vmm_keeper_restart_test --gtest_brief=1
  kills_of kill killed
}

# The same, with one that stands still and goes on later.
nightly_stop() {
  build dev stopped_test
  export VMMSHARE_STOPS VMMSHARE_STOP_EVERY
  VMMSHARE_STOPS=$(often 10 1) VMMSHARE_STOP_EVERY=$(often 1 61)
  limited build/dev/tests/kill/stopped_test --gtest_brief=1
  kills_of stop stopped
}

# kills_of PART WHAT: sums the lines that tests/kill prints.
kills_of() {
  figure "$(sed -n 's/.* steps, \([0-9]*\) points.*/\1/p' "$folder/$1.log" | sum) points, $(
    sed -n 's/.* points, \([0-9]*\) runs.*/\1/p' "$folder/$1.log" | sum) runs $2"
}

# Peers that lie, flood and say nothing.
nightly_hostile() {
  build dev hostile_test
  VMMSHARE_HOSTILE_SESSIONS=$(often 100000 1000)
  export VMMSHARE_HOSTILE_SESSIONS
  limited build/dev/tests/hostile/hostile_test --gtest_brief=1
  figure "$VMMSHARE_HOSTILE_SESSIONS sessions for each server"
}

# Everything at once, for hours: who holds more after each round than before?
nightly_soak() {
  build dev soak_test
  export VMMSHARE_SOAK_SECONDS
  VMMSHARE_SOAK_SECONDS=$(often 42000 120)
  limited build/dev/tests/soak/soak_test --gtest_brief=1
  figure "$(sed -n 's/^soak: \([^;]*\);.*/\1/p' "$folder/soak.log" | tail -n 1), nothing held that was not before"
}

# Random calls of the C interface by two processes, with seeds of their own.
nightly_calls() {
  local seed first=${VMMSHARE_SEED:-1}
  build asan calls_test
  export VMMSHARE_SEED VMMSHARE_CALLS_SECONDS ASAN_OPTIONS=detect_leaks=1:handle_segv=0 \
    UBSAN_OPTIONS=halt_on_error=1:handle_segv=0
  VMMSHARE_CALLS_SECONDS=$(often 600 20)
  for seed in $(seq "$first" $((first + $(often 19 2)))); do
    VMMSHARE_SEED=$seed
    limited build/asan/tests/calls/calls_test --gtest_brief=1 --gtest_filter='Calls.*'
  done
  figure "$(sed -n 's/^calls: \([0-9]*\) in this round$/\1/p' "$folder/calls.log" | sum) calls of the process that" \
    "lives, seeds $first to $VMMSHARE_SEED, no finding"
}

# Random operations, each compared with a model.
nightly_models() {
  local preset tests
  preset=$(often release dev)
  tests=build/$preset/tests
  build "$preset" offset_heap_test stream_heap_test address_table_test vmm_share_table_test \
    vmm_restorable_test
  export VMMSHARE_MODEL_OPERATIONS VMMSHARE_STALE_TICKETS VMMSHARE_RESTORE_OPERATIONS
  VMMSHARE_MODEL_OPERATIONS=$(often 300000000 300000)
  VMMSHARE_STALE_TICKETS=$(often 100000000 100000) VMMSHARE_RESTORE_OPERATIONS=$(often 100000 500)
  limited $tests/unit/offset_heap_test --gtest_brief=1 --gtest_filter='OffsetHeapModel.*'
  limited $tests/unit/stream_heap_test --gtest_brief=1
  limited $tests/unit/address_table_test --gtest_brief=1
  limited $tests/unit/vmm_share_table_test --gtest_brief=1
  limited $tests/ipc/vmm_restorable_test --gtest_brief=1 --gtest_filter='RestorableModel.*'
  figure "$VMMSHARE_MODEL_OPERATIONS operations of each heap and of the address table," \
    "$VMMSHARE_STALE_TICKETS stale tickets, $VMMSHARE_RESTORE_OPERATIONS of releases and restores"
}

# Protocols, in every order; and each seeded bug, which must be found.
nightly_spin() {
  local bug model bugs=0 models=0 program=(python3 -B tests/model/model_test.py)
  need spin command:spin "checks the models of protocols in tests/model"
  [ "$prebuilt" = 1 ] || install_missing
  if [ $short = 0 ]; then
    limited "${program[@]}" tests/model/lease.pml IMPORTERS=2
    limited "${program[@]}" tests/model/fence.pml
    limited "${program[@]}" tests/model/fence.pml BUFFERS=2 STREAMS=1
    limited "${program[@]}" tests/model/tensor_set.pml
  fi
  for model in tests/model/*.pml; do
    for bug in $(sed -n 's/^#ifn\{0,1\}def \(BUG_[A-Z_]*\)$/\1/p' "$model" | sort -u); do
      limited "${program[@]}" "$model" "$bug"
      bugs=$((bugs + 1))
    done
    models=$((models + 1))
  done
  figure "$bugs seeded bugs in $models models, all found$([ $short = 0 ] || echo '; the models as they are left out')"
}

# What is read before it was written, and past the end, in all that parses.
nightly_valgrind() {
  local program programs=(platform_frame_test vmm_values_test vmm_protocol_test)
  # These take more than ten minutes.
  [ $short = 1 ] || programs+=(vmm_keeper_test vmm_weights_manifest_test)
  need valgrind command:valgrind "sees reads of memory that nobody wrote"
  build dev "${programs[@]}" fuzz_corpus_test
  programs=("${programs[@]/#/unit/}")
  [ $short = 1 ] || programs+=(fuzz/fuzz_corpus_test)
  for program in "${programs[@]}"; do
    limited valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
      "build/dev/tests/$program" --gtest_brief=1
  done
  figure "${#programs[@]} programs of the parsers, 0 errors"
}

# What `.ci/run` leaves out of a sanitizer's tests and of Windows', and more kills
# and stops than there.
nightly_asan() { nightly_preset asan; }
nightly_tsan() { nightly_preset tsan; }
nightly_preset() {
  local whole=() ran plain=()
  [ $short = 0 ] || whole=(-L '^unit$')
  build "$1"
  ! setarch "$(uname -m)" -R true 2>/dev/null || plain=(setarch "$(uname -m)" -R)
  limited "${plain[@]}" ctest --preset "$1-night" -j "$(nproc)" "${whole[@]}"
  ran=$(sed -n 's/^100% tests passed, 0 tests failed out of //p' "$folder/$1.log")
  figure "$ran tests, none failed"
}
nightly_windows() {
  local whole=()
  [ $short = 0 ] || whole=(-- -L '^unit$')
  limited ./dev test --windows "${whole[@]}"
  figure "$(sed -n 's/^100% tests passed, 0 tests failed out of //p' "$folder/windows.log") tests, none failed"
}

# With pages of 4 KiB, and again with pages of 64 KiB.
nightly_aarch64() {
  local whole=() size
  [ $short = 0 ] || whole=(--folders=unit)
  limited ./dev test --aarch64 "${whole[@]}"
  figure "$(for size in 4096 65536; do
    sed -n 's/^100% tests passed, 0 tests failed out of //p' "build/aarch64/log/test-$size.log"
  done | paste -sd ' ') tests, none failed"
}

# Processes of the previous release beside those of this one.
nightly_upgrade() {
  limited ./dev upgrade
  figure "$(tail -n 1 "$folder/upgrade.log")"
}

# By --short of the unit tests alone. Tests that fail are told in its log: it is
# not their failures that this part is about.
nightly_coverage() {
  build coverage
  limited ./dev coverage --prebuilt $([ $short = 0 ] || echo -- -L '^unit$')
  figure "$(sed -n 's/^| all | [0-9]* | \([0-9.]* %\) | [0-9]* | \([0-9.]* %\) |/lines \1, branches \2/p' \
    build/coverage/coverage.md)"
}

# Sources spoilt in small ways, which tests must notice.
nightly_mutants() {
  local left rc=0
  build dev vmm_values_test vmm_protocol_test vmm_weights_manifest_test vmm_share_table_test \
    platform_frame_test offset_heap_test fuzz_corpus_test vmm_ipc_test fabric_nodes_test \
    vmm_death_test vmm_gpu_test stream_heap_test offset_heap_death_test pool_sweep_test
  start_clock
  left=$((deadline - SECONDS - 60))
  limited python3 -B tests/mutants/mutants.py build/dev "--sample=$(often 0 4)" "--seed=${VMMSHARE_SEED:-1}" \
    "--seconds=$left" "--report=$folder/mutants/report" || rc=$?
  figure "$(sed -n 's/^in all: //p' "$folder/mutants/report")"
  return $rc
}

# The parsers, guided by coverage; the corpora and the count are kept.
nightly_fuzz() {
  local before
  before=$([ ! -f "$fuzz_tally" ] || fuzz_total)
  limited ./dev fuzz "$(often 1200 5)"
  figure "$(($(fuzz_total) - ${before:-0})) executions, no finding; $(fuzz_total) so far"
}
