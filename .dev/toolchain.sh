# The library and its unit tests by other compilers, with another Abseil, or linked
# otherwise than ./dev test has them. Sourced by ./dev; uses its say, fail, logged,
# need, need_build, install_missing, fetch_cuda_headers, cuda_headers, use_ccache.
# shellcheck shell=bash disable=SC2154

toolchains='gcc-12 gcc-13 gcc-14 clang-16 clang-17 clang-18 clang-19 abseil-20220623 abseil-20260817 shared lto'

# A tag of Abseil and its commit, by the date of the release.
abseil_release() {
  case $1 in
    20220623) echo 20220623.1 8c0b94e793a66495e0b1f34a5eb26bd7dc672db0 ;;
    20260817) echo 20260817.0 2065f4ded0558c6f89fee67c8e5228feb4eb960e ;;
    *) fail "toolchain: Abseil $1 is not known here" ;;
  esac
}

# build_abseil FOLDER TAG COMMIT: installed in FOLDER/prefix. $VMMSHARE_ABSEIL is a
# copy of its repository, for machines that do not reach GitHub.
build_abseil() {
  local folder=$1 tag=$2 commit=$3
  [ ! -e "$folder/prefix/done" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  say "building Abseil $tag in $folder"
  logged "$folder/clone.log" git clone --quiet --depth 1 --branch "$tag" \
    "${VMMSHARE_ABSEIL:-https://github.com/abseil/abseil-cpp}" "$folder/source"
  [ "$(git -C "$folder/source" rev-parse HEAD)" = "$commit" ] ||
    fail "toolchain: Abseil's $tag is not the commit $commit"
  logged "$folder/build.log" cmake -S "$folder/source" -B "$folder/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 -DABSL_PROPAGATE_CXX_STD=ON \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_TESTING=OFF "-DCMAKE_INSTALL_PREFIX=$folder/prefix"
  logged "$folder/build.log" cmake --build "$folder/build" -j "$(nproc)" --target install
  touch "$folder/prefix/done"
}

# task_toolchain NAME: one of $toolchains.
task_toolchain() {
  local name=${1:-} folder options=() release
  case " $toolchains " in *" $name "*) ;; *) fail "toolchain: one of $toolchains" ;; esac
  [ "$prebuilt" = 0 ] || fail "toolchain: what it is for is building"
  folder=build/toolchain/$name
  need_build
  case $name in
    gcc-*) need "g++-${name#gcc-}" "command:g++-${name#gcc-}" "is the compiler that is asked for" ;;
    clang-*) need "$name" "command:$name" "is the compiler that is asked for" ;;
  esac
  install_missing
  fetch_cuda_headers
  use_ccache
  case $name in
    gcc-*) options=("-DCMAKE_C_COMPILER=$name" "-DCMAKE_CXX_COMPILER=g++-${name#gcc-}") ;;
    clang-*) options=("-DCMAKE_C_COMPILER=$name" "-DCMAKE_CXX_COMPILER=clang++-${name#clang-}") ;;
    abseil-*)
      release=$(abseil_release "${name#abseil-}")
      # shellcheck disable=SC2086
      build_abseil "$PWD/$folder/abseil" $release
      options=("-DCMAKE_PREFIX_PATH=$PWD/$folder/abseil/prefix")
      ;;
    shared) options=(-DBUILD_SHARED_LIBS=ON) ;;
    lto) options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON) ;;
  esac
  say "building $folder"
  mkdir -p "$folder/log"
  logged "$folder/log/configure.log" cmake --preset dev -B "$folder" -DCMAKE_UNITY_BUILD=ON \
    -DVMMSHARE_BUILD_BENCH=OFF "-DVMMSHARE_CUDA_INCLUDE_DIR=$(cuda_headers)" "${options[@]}"
  logged "$folder/log/build.log" cmake --build "$folder" -j "$(nproc)" --target tests_unit c_test vmmshare_tool
  say "testing $folder"
  logged "$folder/log/test.log" ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure -L '^(unit|c)$'
  sed -n '/% tests passed/p' "$folder/log/test.log"
}
