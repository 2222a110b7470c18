# The Windows build: mingw-w64 and wine on Debian or Ubuntu. Sourced by ./dev;
# uses its say, fail, logged, need, install_missing, run_ctest. Not run by it:
# real Windows, MSVC, NVIDIA's nvcuda.dll.

windows_deps=$PWD/build/windows-deps # Abseil, GoogleTest, Benchmark; built once.
wine=/usr/lib/wine/wine64            # Debian does not put it on PATH.

need_windows() {
  need_build
  need_examples
  need g++-mingw-w64-x86-64-posix command:x86_64-w64-mingw32-g++-posix "compiles for Windows"
  need_lld
  need googletest header:../src/googletest/CMakeLists.txt "GoogleTest's sources"
  need dpkg-dev command:dpkg-source "unpacks source packages"
  [ -x "$wine" ] || need wine64 command:wine64-is-not-on-PATH "runs Windows programs"
}

# Wine without a display, a debugger that waits for a click, or Internet Explorer.
wine_environment() {
  export WINEPREFIX=$PWD/build/wine WINEDEBUG=-all
  export WINEDLLOVERRIDES="mscoree,mshtml=;winemenubuilder.exe=d;winedbg.exe=d"
  unset DISPLAY
  mkdir -p build/log
  # Before any parallel run: two first starts at once break the prefix. Apart
  # from the tests, and right before them: the services that the first program
  # starts would hold its output open, on which ctest waits. They end 20 seconds
  # after the last.
  [ -e "$WINEPREFIX/system.reg" ] || say "making a wine prefix in build/wine"
  "${wine%/*}/wineserver64" -p20 >build/log/wineserver.log 2>&1 </dev/null || true
  logged build/log/wineboot.log "$wine" wineboot --init
}

# fetch_source PACKAGE: the upstream archive of a Debian source package, with
# apt's own check of the signature, from the mirror that is configured here.
# The lists are private, so that nothing of the system changes.
fetch_source() {
  local lists=$windows_deps/apt
  if [ ! -e "$lists/sources.list" ]; then
    mkdir -p "$lists/lists/partial" "$lists/sources"
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
      grep -E 'debian|ubuntu' | grep -v security | sort -u | head -n 1 |
      { read -r uri suite && echo "deb-src $uri $suite main universe"; } >"$lists/sources.list" ||
      fail "apt knows no Debian or Ubuntu mirror to take sources from"
    case $(cat "$lists/sources.list") in *debian*) sed -i 's/ universe$//' "$lists/sources.list" ;; esac
    logged build/log/windows-sources.log apt-get "${private_lists[@]}" update
  fi
  (cd "$windows_deps" && logged "build-$1.log" apt-get "${private_lists[@]}" source --download-only "$1")
}

# cross_build NAME SOURCE ARGS...: builds and installs one library.
cross_build() {
  local name=$1 source=$2
  shift 2
  say "building $name for Windows (once, into build/windows-deps)"
  logged "build/log/windows-$name.log" cmake -S "$source" -B "$windows_deps/build/$name" -G Ninja \
    "-DCMAKE_TOOLCHAIN_FILE=$PWD/.cmake/mingw-w64.cmake" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_STANDARD=20 "-DCMAKE_INSTALL_PREFIX=$windows_deps/prefix" "$@"
  logged "build/log/windows-$name.log" cmake --build "$windows_deps/build/$name" --target install
}

build_windows_deps() {
  [ ! -e "$windows_deps/done" ] || return 0
  local private_lists=(-o "Dir::Etc::SourceList=$windows_deps/apt/sources.list"
    -o "Dir::Etc::SourceParts=$windows_deps/apt/sources"
    -o "Dir::State::Lists=$windows_deps/apt/lists" -o APT::Sandbox::User=root)
  mkdir -p "$windows_deps" build/log
  local package
  for package in abseil benchmark; do
    fetch_source "$package"
    mkdir -p "$windows_deps/$package"
    tar -xf "$(ls "$windows_deps/$package"_*.orig.tar.*z | head -n 1)" -C "$windows_deps/$package" --strip-components=1
  done
  cross_build abseil "$windows_deps/abseil" -DABSL_PROPAGATE_CXX_STD=ON -DBUILD_TESTING=OFF
  cross_build googletest /usr/src/googletest
  cross_build benchmark "$windows_deps/benchmark" -DGIT_VERSION=1.7.1 -DBENCHMARK_ENABLE_TESTING=OFF \
    -DBENCHMARK_ENABLE_GTEST_TESTS=OFF -DBENCHMARK_ENABLE_WERROR=OFF
  rm -rf "$windows_deps/build"
  touch "$windows_deps/done"
}

# Headers that are the same for every system: those for JSON, with what CMake finds
# them by, and Vulkan's. What lies beside them is not.
copy_headers() {
  local prefix=$windows_deps/prefix
  local include=$prefix/include json=share/cmake/nlohmann_json
  if [ ! -e "$prefix/$json" ] && [ -e "/usr/$json" ]; then
    mkdir -p "$prefix/share/cmake"
    cp -r /usr/include/nlohmann "$include"
    cp -r "/usr/$json" "$prefix/share/cmake"
  fi
  [ -e "$include/vulkan" ] || [ ! -e /usr/include/vulkan ] || cp -r /usr/include/vulkan /usr/include/vk_video "$include"
}

# build_windows [TARGET...]
build_windows() {
  [ "$prebuilt" = 1 ] || {
    need_windows
    install_missing
    fetch_cuda_headers
    use_ccache
    build_windows_deps
    copy_headers
  }
  [ "$prebuilt" = 0 ] || return 0
  say "configuring build/windows"
  logged build/windows/log/configure.log cmake --preset windows \
    "-DVMMSHARE_CUDA_INCLUDE_DIR=$(cuda_headers)" ${unity[@]+"${unity[@]}"}
  say "building build/windows"
  local targets=()
  [ $# = 0 ] || targets=(--target "$@")
  logged build/windows/log/build.log cmake --build --preset windows "${targets[@]}"
}

test_windows() {
  local plain=() again=() machine
  build_windows ${targets[@]+"${targets[@]}"}
  wine_environment
  machine=$(uname -m)
  # Wine's fixed places may be taken where the system randomizes addresses: one
  # start in some hundreds fails. Not every container allows to turn that off.
  if setarch "$machine" -R true 2>/dev/null; then
    plain=(setarch "$machine" -R)
  else
    say "addresses are randomized here, so wine may fail to start: a test may run twice"
    again=(--repeat until-pass:2)
  fi
  run_ctest windows ${again[@]+"${again[@]}"} "$@"
}

# clang-tidy over what is compiled for Windows alone: the rest is checked on
# this system. Clang reads the headers of mingw's GCC, but has its own intrinsics.
lint_windows() {
  local log=build/windows/log/lint-tidy.log started=$SECONDS include
  need python3-pip module:pip "fetches clang-tidy"
  unity=(-DCMAKE_UNITY_BUILD=OFF) # Each source by itself.
  build_windows
  fetch_clang_tidy
  # Clang knows neither a flag that CMake adds nor GCC's precompiled headers.
  mkdir -p build/windows/log/tidy
  sed -E 's/ -fno-keep-inline-dllexport//g; s/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//g' \
    build/windows/compile_commands.json >build/windows/log/tidy/compile_commands.json
  local flags=(--quiet -p build/windows/log/tidy --extra-arg=--target=x86_64-w64-mingw32
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wthread-safety)
  while read -r include; do
    case $include in */posix/include | */[0-9]*-posix/include) ;; *) flags+=("--extra-arg=-isystem$include") ;; esac
  done < <(x86_64-w64-mingw32-g++-posix -x c++ -E -v /dev/null 2>&1 | sed -n '/#include </,/^End/s/^ //p')
  say "clang-tidy over the Windows sources"
  git ls-files '*_win.cc' '*_win_test.cc' | xargs -P "$(nproc)" -n 1 clang-tidy "${flags[@]}" >"$log" 2>&1 || {
    grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed ' "$log" | tail -n 60
    fail "clang-tidy found something (whole log: $log)"
  }
  # A negative control: it must see into these headers and report a mistake.
  printf '#include <windows.h>\nHANDLE* First() { return 0; }\n' >build/windows/log/spoilt_win.cc
  ! clang-tidy "${flags[@]}" build/windows/log/spoilt_win.cc >/dev/null 2>&1 ||
    fail "clang-tidy does not see a mistake in build/windows/log/spoilt_win.cc"
  say "passed: clang-tidy over the Windows sources ($((SECONDS - started)) s)"
}

demo_windows() {
  build_windows produce_consume vmmshare_hostdriver
  wine_environment
  say "running under wine, on the host-memory driver: produce_consume $*"
  exec "$wine" build/windows/docs/examples/produce_consume.exe --driver=host "$@"
}
