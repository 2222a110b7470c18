# Peers of the previous release and of this tree, alive at once. Sourced by ./dev;
# uses its say, fail, logged, build, need_python, cuda_headers.
# shellcheck shell=bash disable=SC2154

# As long as nothing is released: the first revision with the C interface.
first_interface=2aaec7e302b65ec4ba22812ccfde2a3fbb3a5abc

# The library and the tool of what is built in folder $1, in folder $2.
release_folder() {
  mkdir -p "$2"
  cp -L "$1/vmm/c/libvmmshare.so.1" "$1/vmm/tool/vmmshare" "$2/"
}

# build_previous FOLDER REVISION: its sources in FOLDER/source, built in FOLDER/build.
build_previous() {
  local folder=$1 revision=$2
  # The sources are as old as their commit: objects of a later one would seem to be of them.
  [ "$(cat "$folder/revision" 2>/dev/null)" = "$revision" ] || rm -rf "$folder/build"
  rm -rf "$folder/source"
  mkdir -p "$folder/source" "$folder/log"
  git archive "$revision" | tar -x -C "$folder/source"
  echo "$revision" >"$folder/revision"
  say "building $revision in $folder/build"
  logged "$folder/log/configure.log" cmake -S "$folder/source" -B "$folder/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DVMMSHARE_BUILD_TESTS=OFF -DVMMSHARE_BUILD_BENCH=OFF \
    "-DVMMSHARE_CUDA_INCLUDE_DIR=$(cuda_headers)"
  logged "$folder/log/build.log" cmake --build "$folder/build" -j "$(nproc)" \
    --target vmmshare_c vmmshare_tool
}

# task_upgrade [REVISION]: the newest tag of a release without it.
task_upgrade() {
  local folder=$PWD/build/upgrade revision=${1:-} hostdriver
  hostdriver=$PWD/build/release/platform/hostdriver/libvmmshare_hostdriver.so
  [ -n "$revision" ] ||
    revision=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || echo "$first_interface")
  git rev-parse -q --verify "$revision^{commit}" >/dev/null ||
    fail "upgrade: this clone has no $revision; a shallow one gets it by: git fetch --unshallow --tags"
  if [ "$prebuilt" = 0 ]; then
    need_python
    build release vmmshare_c vmmshare_tool vmmshare_hostdriver
    build_previous "$folder" "$revision"
    release_folder "$folder/build" "$folder/previous"
    release_folder build/release "$folder/current"
    # As programs are that nobody compiles again.
    logged "$folder/log/peer.log" "${CC:-cc}" -std=c99 -Wall -Wextra -Wno-missing-field-initializers \
      "-I$folder/source" tests/upgrade/peer.c -o "$folder/peer" \
      "-L$folder/previous" -l:libvmmshare.so.1 -ldl
  fi
  say "previous is $revision, current this tree"
  python3 -B tests/upgrade/upgrade_test.py "$folder/peer" "$hostdriver" "$folder/previous" "$folder/current" ||
    fail "upgrade: a pair that neither shared nor named its versions"
}
