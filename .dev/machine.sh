# What ./dev needs from the machine: packages and the CUDA headers.
# Sourced by ./dev; uses its say and fail.

missing=() # Debian packages that the next install_missing installs.
needed=()  # Those of them without which nothing can go on: need() says which.

# need PACKAGE PROBE WHY...: notes that PACKAGE is missing unless PROBE finds it.
# PROBE is command:NAME, header:PATH, glob:PATTERN
# module:NAME or python:EXPRESSION (with os and sysconfig). It can be done without
# a header, for CMake fetches its library, and without all where `optional` is set.
need() {
  local package=$1 probe=$2 folder prefixes=${CMAKE_PREFIX_PATH:-}
  shift 2
  case $probe in
    command:*) command -v "${probe#command:}" >/dev/null && return ;;
    header:*)
      for folder in /usr /usr/local ${prefixes//[:;]/ }; do
        [ -e "$folder/include/${probe#header:}" ] && return
      done
      ;;
    glob:*) compgen -G "${probe#glob:}" >/dev/null && return ;;
    module:*) python3 -c "import ${probe#module:}" 2>/dev/null && return ;;
    python:*)
      python3 -c "import os, sysconfig, sys; sys.exit(not (${probe#python:}))" 2>/dev/null && return
      ;;
  esac
  missing+=("$package")
  [ -n "${optional:-}" ] || [[ $probe = header:* ]] || needed+=("$package")
  say "missing: $package ($*)"
}

# What the machine lacks for building the library, the examples and the tests.
need_build() {
  [ -n "${CXX:-}" ] || need g++ command:g++ "the C++20 compiler"
  need cmake command:cmake "generates the build, 3.25 or newer"
  need ninja-build command:ninja "runs the build"
  need libabsl-dev header:absl/status/statusor.h "Abseil: Status, strings, time"
  need nlohmann-json3-dev header:nlohmann/json.hpp "JSON"
  need libgtest-dev header:gtest/gtest.h "GoogleTest"
  need libgmock-dev header:gmock/gmock.h "GoogleTest's matchers"
  need libbenchmark-dev header:benchmark/benchmark.h "Google Benchmark"
  need python3 command:python3 "runs the checks in tests/lint"
  if [ -z "$(cuda_headers)" ]; then
    need python3-pip module:pip "downloads the CUDA headers"
  fi
}

# What an example is compiled with, which is left out without it: 1 MB to fetch,
# headers and the loader. No driver of Vulkan's is installed, so its tests run
# where one is (mesa-vulkan-drivers is enough) and are skipped by name elsewhere.
need_examples() {
  need libvulkan-dev header:vulkan/vulkan_core.h "has the headers for the example vulkan_memory"
}

# What tests use beside the build; without it they are skipped by name.
need_tests() {
  local optional=1
  need_examples
  need spin command:spin "checks the models of protocols in tests/model"
  need abigail-tools command:abidiff "compares the C interface with the one that was shipped"
  need crun command:crun "runs the tests of containers; other runtimes are tried where they are"
  need openmpi-bin command:mpirun "starts the tests of jobs"
  need python3-yaml module:yaml "reads the examples of containers"
  need libpmix-dev glob:/usr/lib/*/pmix2/include/pmix.h "a test compares its structures with ours"
}

# Slurm and what its plugin for PMIx opens at run time; without it the tests of
# its jobs are skipped by name. Not everybody wants these services.
need_slurm() {
  need slurmctld command:slurmctld "is the controller of a Slurm cluster"
  need slurmd command:slurmd "is a node of a Slurm cluster"
  need slurm-client command:srun "starts jobs"
  need munge command:munged "tells Slurm who speaks"
  need iproute2 command:ip "connects the nodes"
}

# What the tests of the Python package make a wheel with; without it they are
# skipped by name. pip fetches the rest.
need_python() {
  need python3-venv module:ensurepip "installs the wheel under test into an environment of its own"
  need python3-dev "python:os.path.exists(sysconfig.get_path('include') + '/Python.h')" \
    "has the headers that the Python module is compiled with"
}

# Versions are named because their output differs; Debian 12 and Ubuntu 24.04
# both package these.
need_lint() {
  need_examples
  need git command:git "lists the sources"
  need clang-format-14 command:clang-format-14 "checks the layout of the code"
  need python3-pip module:pip "fetches clang-tidy"
  need cppcheck command:cppcheck "looks for mistakes"
}

# What makes Debian packages, and checks them.
need_package() {
  need_python
  need python3-pip module:pip "fetches nanobind"
  need build-essential glob:/usr/share/build-essential "is what dpkg-buildpackage asks for"
  need debhelper command:dh "makes Debian packages"
  need dh-python command:dh_python3 "makes Debian packages of Python"
  need debootstrap command:debootstrap "makes the bare root in which they are tried"
  need dpkg-dev command:dpkg-buildpackage "makes Debian packages"
  need fakeroot command:fakeroot "makes files of root's in packages"
  need lintian command:lintian "checks Debian packages"
}

# What compiles for AddressSanitizer and ThreadSanitizer, and names functions in
# what they report.
need_sanitizer() {
  need clang-16 command:clang++-16 "compiles for sanitizers"
  need libclang-rt-16-dev glob:/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.asan-*.so "has the sanitizers"
  need llvm-16 command:llvm-symbolizer-16 "names functions in what sanitizers report"
  need_lld
}

need_lld() {
  need lld command:ld.lld "links in a tenth of the time"
}

need_fuzz() {
  need clang-16 command:clang++-16 "compiles for libFuzzer"
  need libclang-rt-16-dev glob:/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.fuzzer-*.a "is libFuzzer"
}

# What counts lines and branches, and reads the counters.
need_coverage() {
  need clang-16 command:clang++-16 "counts lines and branches"
  need libclang-rt-16-dev glob:/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.profile-*.a "keeps what is counted"
  need llvm-16 command:llvm-cov-16 "reads what was counted"
}

# Prints which of the missing packages no source of apt's has.
without_candidate() {
  local package
  for package in "${missing[@]}"; do
    # Not through a pipe: grep ends before apt-cache has said all, which pipefail takes for a failure.
    grep -q '^  Candidate: [^(]' <<<"$(LC_ALL=C apt-cache policy "$package" 2>/dev/null)" || echo "$package"
  done
}

# Installs what need() found missing. As root or by sudo; otherwise prints the
# line to run, and stops only where a tool is missing: CMake fetches sources. So
# does a machine without apt.
install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  local line="apt-get install -y --no-install-recommends ${missing[*]}" as_root=()
  if ! command -v apt-get >/dev/null; then
    say "this machine has no apt-get. Please install by its own means: ${missing[*]}"
    local tool
    for tool in "${CXX:-g++}" cmake ninja; do
      command -v "${tool%% *}" >/dev/null || fail "cannot go on without $tool"
    done
    say "going on: CMake fetches the libraries that it does not find"
    return 0
  fi
  if [ "$(id -u)" != 0 ]; then
    # On a terminal sudo itself may ask for the password; elsewhere it must not.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      line="these packages are missing and this user may not install them. Run as root:
    apt-get update && $line"
      [ ${#needed[@]} = 0 ] || fail "cannot go on without ${needed[*]}: $line"
      say "$line"
      say "going on: CMake fetches the libraries that it does not find, and tests that lack a tool are skipped"
      missing=()
      return 0
    fi
  fi
  say "installing: $line"
  mkdir -p build/log
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  logged build/log/packages.log "${as_root[@]}" "${quiet[@]}" update
  # Asked only where it fails: what other packages provide has no candidate either.
  if ! "${quiet[@]}" --simulate install --no-install-recommends "${missing[@]}" &>/dev/null; then
    local unknown
    unknown=$(without_candidate | tr '\n' ' ')
    [ -z "$unknown" ] || fail "this system's apt has no package ${unknown% }.
    Debian 12 and Ubuntu 24.04 have what every task but toolchain needs; Debian 13 has it for demo, test and docs"
  fi
  logged build/log/packages.log "${as_root[@]}" "${quiet[@]}" install -y --no-install-recommends "${missing[@]}"
  missing=() needed=()
}

check_versions() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" != 3.25 ]; then
    fail "CMake $version is too old: 3.25 is needed (Debian 12, Ubuntu 24.04, or: pip install cmake)"
  fi
}

# Prints the folders that may hold include/cuda.h, a line each.
cuda_folders() {
  local folder version
  version=$(sed -n 's/^nvidia-cuda-runtime==\([0-9.]*\).*/\1/p' .dev/cuda-headers.txt)
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "$PWD/build/cuda-headers/$version"; do
    [ -z "$folder" ] || [ ! -e "$folder/include/cuda.h" ] || echo "$folder"
  done
}

# The version of a folder's cuda.h where it is too old, as in CUDA_VERSION; or nothing.
too_old_cuda() {
  local version
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1/include/cuda.h" | head -n 1)
  [ "${version:-12030}" -ge 12030 ] || echo "$version"
}

# Prints the folder that holds cuda.h of CUDA 12.3 or newer, or nothing.
cuda_headers() {
  local folder
  while read -r folder; do
    if [ -z "$(too_old_cuda "$folder")" ]; then
      echo "$folder/include"
      return
    fi
  done < <(cuda_folders)
}

# Says which ones cuda_headers passes over.
say_older_headers() {
  local folder version
  while read -r folder; do
    version=$(too_old_cuda "$folder")
    [ -z "$version" ] ||
      say "passing over $folder: its cuda.h is of CUDA $((version / 1000)).$((version % 1000 / 10)); 12.3 or newer is needed"
  done < <(cuda_folders)
}

# Downloads NVIDIA's own wheel of the CUDA runtime and keeps only its headers,
# in build/cuda-headers/VERSION/include. pip checks version and SHA-256.
fetch_cuda_headers() {
  say_older_headers
  [ -z "$(cuda_headers)" ] || return 0
  local version machine target
  version=$(sed -n 's/^nvidia-cuda-runtime==\([0-9.]*\).*/\1/p' .dev/cuda-headers.txt)
  machine=$(uname -m)
  target=build/cuda-headers/$version
  case $machine in
    x86_64 | aarch64) ;;
    *) fail "there are no CUDA headers for $machine to fetch; set CUDA_HOME to a CUDA Toolkit" ;;
  esac
  say "no CUDA Toolkit of 12.3 or newer here (CUDA_HOME, CUDA_PATH, /usr/local/cuda): fetching only its headers,
    from NVIDIA's Python wheel nvidia-cuda-runtime $version, into $target (NVIDIA's licence applies)"
  rm -rf "$target.new"
  mkdir -p "$target.new/include" build/log
  if ! python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
    --platform "manylinux2014_$machine" --dest "$target.new" -r .dev/cuda-headers.txt \
    >build/log/cuda-headers.log 2>&1; then
    tail -n 20 build/log/cuda-headers.log
    fail "could not fetch the CUDA headers. With the CUDA Toolkit installed elsewhere, set CUDA_HOME to it"
  fi
  python3 - "$target.new" <<'PYTHON'
import pathlib, sys, zipfile
target = pathlib.Path(sys.argv[1])
(wheel,) = target.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith(("/include/cuda.h", "License.txt", "LICENSE")):
            folder = target / "include" if name.endswith(".h") else target
            (folder / pathlib.PurePosixPath(name).name).write_bytes(archive.read(name))
wheel.unlink()
PYTHON
  [ -s "$target.new/include/cuda.h" ] || fail "the wheel holds no cuda.h: see $target.new"
  rm -rf "$target"
  mv "$target.new" "$target"
}

# Installs clang-tidy from its wheel into build/clang-tidy/VERSION and puts it
# first on PATH. Not the distribution's: those visit every declaration of the
# system's headers, which takes three times as long, and each says other things.
fetch_clang_tidy() {
  local version target
  version=$(sed -n 's/^clang-tidy==\([0-9.]*\).*/\1/p' .dev/clang-tidy.txt)
  target=build/clang-tidy/$version
  if [ ! -x "$target/clang_tidy/data/bin/clang-tidy" ]; then
    say "fetching clang-tidy $version into $target"
    rm -rf "$target" "$target.new"
    logged build/log/clang-tidy.log python3 -m pip install --quiet --no-deps --require-hashes \
      --only-binary :all: --target "$target.new" -r .dev/clang-tidy.txt
    mv "$target.new" "$target"
  fi
  PATH=$PWD/$target/clang_tidy/data/bin:$PATH
}

# Whether the loader knows a driver's library.
loader_knows_driver() {
  # Not through a pipe: grep ends before ldconfig has said all, which pipefail takes for a failure.
  grep -q 'libcuda\.so\.1 ' <<<"$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null)"
}

# Says nothing and succeeds when an NVIDIA driver with a device is here;
# otherwise prints what is not here.
why_no_gpu() {
  if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "no GPU here: /dev/nvidiactl does not exist"
    return 1
  fi
  local folder folders
  IFS=: read -r -a folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}" /usr/lib/wsl/lib; do
    [ -n "$folder" ] && [ -e "$folder/libcuda.so.1" ] && return 0
  done
  if ! loader_knows_driver; then
    echo "no NVIDIA driver here: the loader knows no libcuda.so.1"
    return 1
  fi
}
