# 64-bit Arm on an x86-64 machine: Debian's cross compiler, its arm64 packages
# and qemu-user. Sourced by ./dev; uses its say, fail, logged, need,
# install_missing, run_ctest. Not run by it: a real Arm machine.

need_aarch64() {
  need_build
  need g++-aarch64-linux-gnu command:aarch64-linux-gnu-g++ "compiles for aarch64"
  need qemu-user command:qemu-aarch64 "runs programs for aarch64"
  local package library
  for package in libabsl-dev:absl_status libgtest-dev:gtest libgmock-dev:gmock libbenchmark-dev:benchmark; do
    library=${package#*:}
    need "${package%:*}:arm64" "glob:/usr/lib/aarch64-linux-gnu/lib$library.*" "for aarch64"
  done
}

# apt installs packages of another architecture only once it knows of it.
know_arm64() {
  [ ${#missing[@]} -gt 0 ] && command -v dpkg >/dev/null || return 0
  case " $(dpkg --print-foreign-architectures | tr '\n' ' ') " in *' arm64 '*) return 0 ;; esac
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  say "dpkg --add-architecture arm64"
  "${as_root[@]}" dpkg --add-architecture arm64 || fail "as root: dpkg --add-architecture arm64"
}

build_aarch64() {
  [ "$prebuilt" = 0 ] || return 0
  need_aarch64
  know_arm64
  install_missing
  check_versions
  fetch_cuda_headers
  use_ccache
  say "configuring build/aarch64"
  logged build/aarch64/log/configure.log cmake --preset aarch64 \
    "-DVMMSHARE_CUDA_INCLUDE_DIR=$(cuda_headers)"
  say "building build/aarch64"
  logged build/aarch64/log/build.log cmake --build --preset aarch64 \
    ${targets[@]+--target "${targets[@]}"}
}

# The same programs with pages of 4 KiB and of 64 KiB.
test_aarch64() {
  local pages plain=()
  build_aarch64
  # A test that starts its own program starts it by the emulator.
  export VMMSHARE_TEST_EMULATOR=qemu-aarch64
  # With larger pages than the machine's, qemu-user 7.2 does not know that the
  # loader's last page is mapped to its end. The loader keeps names there, and
  # of all loads only those of SVE are checked: by dlopen(), in memcpy().
  export QEMU_CPU=max,sve=off
  for pages in 4096 65536; do
    say "pages of $pages bytes"
    QEMU_PAGESIZE=$pages run_ctest aarch64 "$@"
    cp build/aarch64/log/test.log "build/aarch64/log/test-$pages.log"
  done
}
