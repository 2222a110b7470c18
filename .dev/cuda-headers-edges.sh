#!/usr/bin/env bash
# Compiles the libraries and the host-memory driver with the oldest cuda.h that
# has what the sources name (CUDA 12.3: fabric handles) and with the newest one
# that was tried. CI runs it; it fetches two wheels of NVIDIA's (its licence
# applies) and needs pip, CMake, Ninja and Abseil.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_with() { # VERSION REQUIREMENT SHA256
  local folder=$PWD/build/cuda-headers/$1
  rm -rf "$folder" && mkdir -p "$folder"
  printf '%s --hash=sha256:%s\n' "$2" "$3" >"$folder/requirements.txt"
  python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
    --platform manylinux1_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    --dest "$folder" -r "$folder/requirements.txt"
  python3 - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = (name for name in archive.namelist() if name.endswith("/include/cuda.h"))
    (folder / "cuda.h").write_bytes(archive.read(name))
PYTHON
  cmake -S . -B "build/with-cuda-$1" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DVMMSHARE_CUDA_INCLUDE_DIR="$folder" -DVMMSHARE_WARNINGS_AS_ERRORS=ON \
    -DVMMSHARE_BUILD_TESTS=OFF -DVMMSHARE_BUILD_BENCH=OFF -DVMMSHARE_BUILD_EXAMPLES=OFF
  cmake --build "build/with-cuda-$1"
}

build_with 12.3 nvidia-cuda-runtime-cu12==12.3.101 \
  04604679ddca6acb96c76a7a9306282cddc16981f92e148e2dfe227078883cda
build_with 13.5 nvidia-cuda-runtime==13.5.37 \
  df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d
