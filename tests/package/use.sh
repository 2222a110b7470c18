# How the installed packages are used in the bare root. Sourced by inside.sh; uses
# its say, fail, logged.
# shellcheck shell=bash

# await FILE PATTERN PROCESS: until FILE has a line like PATTERN.
await() {
  for _ in $(seq 300); do
    ! grep -q "$2" "$1" || return 0
    kill -0 "$3" 2>/dev/null || fail "process $3 ended before $1 had $2: $(cat "$1")"
    sleep 0.1
  done
  fail "after 30 seconds $1 has no $2: $(cat "$1")"
}

# The tool, its keeper and Python: with what the packages depend on and no more.
use_without_more() {
  local version keeper library
  version=$(dpkg-deb -f libvmmshare1_*.deb Version)
  version=${version%%-*}
  [ "$(vmmshare --version)" = "vmmshare $version" ] || fail "vmmshare --version: $(vmmshare --version)"
  logged vmmshare --help
  logged vmmshare doctor --driver=host --require=fd

  vmmshare keep --address=/test/keeper >keeper.log 2>&1 &
  keeper=$!
  await keeper.log '^/test/keeper$' $keeper
  logged vmmshare keep --address=/test/keeper --list
  grep -q '^nothing is kept$' log || fail "vmmshare keep --list: $(cat log)"
  kill -TERM $keeper
  wait $keeper || fail "the keeper ended with $?"

  driver=$(python3 -c 'import vmmshare.testing; print(vmmshare.testing.host_driver())')
  grep -q '^libvmmshare-hostdriver' <<<"$(dpkg -S "$(realpath "$driver")")" || fail "$driver is in no package"
  # PyTorch opens this by its path: the library that the module has open already.
  library=$(python3 -c 'import ctypes, pathlib, vmmshare
path = pathlib.Path(vmmshare.__file__).resolve().parent / "lib" / "libvmmshare.so.1"
ctypes.CDLL(str(path)).vmmshare_torch_alloc
print(path)' 2>log) || fail "vmmshare.torch.use_pool() finds no allocator for PyTorch: $(cat log)"
  grep -q '^libvmmshare1' <<<"$(dpkg -S "$(realpath "$library")")" || fail "$library is in no package"
  [ "$(python3 -c 'import vmmshare; print(vmmshare.__version__)')" = "$version" ] ||
    fail "vmmshare.__version__ is not $version"
  programs=("python3 hello.py")
  use_together
}

# Manual pages, and completion in each shell.
use_pages() {
  local page
  for page in vmmshare vmmshare-doctor vmmshare-keep vmmshare-weights; do
    MANWIDTH=80 man --warnings "$page" >page 2>said </dev/null || fail "man $page: $(cat said)"
    [ ! -s said ] || fail "man $page: $(cat said)"
    grep -q '^NAME$' page || fail "man $page shows: $(cat page)"
  done
  # 124 says that the completion was found and the words are to be tried again.
  bash --norc -c 'source /usr/share/bash-completion/bash_completion
    _completion_loader vmmshare || [ $? = 124 ] || exit
    complete -p vmmshare
    COMP_WORDS=(vmmshare doc) COMP_CWORD=1
    "$(complete -p vmmshare | sed "s/.*-F \([^ ]*\).*/\1/")" 2>/dev/null
    printf "offers %s\n" "${COMPREPLY[@]}"' >log 2>&1 || fail "completion of bash: $(cat log)"
  grep -q '^offers doctor$' log || fail "completion of bash: $(cat log)"
  zsh -f -c 'autoload -U compinit && compinit -u -d /test/zcompdump &&
    autoload +X _vmmshare && echo "of $_comps[vmmshare]"' >log 2>&1 || fail "completion of zsh: $(cat log)"
  grep -q '^of _vmmshare$' log || fail "completion of zsh: $(cat log)"
  fish -c 'complete -C "vmmshare doc"' >log 2>&1 || fail "completion of fish: $(cat log)"
  grep -q '^doctor' log || fail "completion of fish: $(cat log)"
  say "man shows the pages; bash, zsh and fish complete"
}

use_unit() {
  logged systemd-analyze verify vmmshare-keeper@root.service
  [ ! -s log ] || fail "systemd-analyze verify: $(cat log)"
  # In tenths; "SAFE" ends at 1.9.
  logged systemd-analyze security --offline=true --threshold=19 \
    "$(dpkg -L vmmshare-tools | grep '/vmmshare-keeper@\.service$')"
  say "systemd-analyze has nothing against vmmshare-keeper@.service"
}

# README's example in C++, by CMake and by pkg-config, and in C.
use_to_build() {
  local version
  version=$(dpkg-deb -f libvmmshare-dev_*.deb Version)
  [ "$(pkg-config --modversion vmmshare)" = "${version%%-*}" ] || fail "pkg-config --modversion vmmshare"
  say "building README's example in C++ and in C"
  logged cmake -S . -B cmake -DVMMSHARE_CUDA_INCLUDE_DIR=/test/cuda
  logged cmake --build cmake
  # shellcheck disable=SC2046
  logged g++ -std=c++20 hello.cc -o hello_pkgconfig \
    $(pkg-config --define-variable=cuda_includedir=/test/cuda --cflags --libs vmmshare-cxx)
  # Where the system has cuda.h among its own headers.
  echo '#include <cstdlib>' >standard.cc
  # shellcheck disable=SC2046
  logged g++ -std=c++20 -fsyntax-only standard.cc \
    $(pkg-config --define-variable=cuda_includedir=/usr/include --cflags vmmshare-cxx)
  # shellcheck disable=SC2046
  logged gcc -std=c99 -Wall -Wextra -Werror hello.c -o hello_c $(pkg-config --cflags --libs vmmshare)
  programs=(cmake/hello ./hello_pkgconfig ./hello_c "python3 hello.py")
}

# Each of `programs` opens what each of them shares.
use_together() {
  local ours theirs owner opened
  export VMMSHARE_HOST_INSTANCE=package-test
  for ours in "${programs[@]}"; do
    for theirs in "${programs[@]}"; do
      mkfifo enter
      $ours "$driver" <enter >ticket 2>&1 &
      owner=$!
      exec 3>enter
      await ticket '^vmmshare:.' $owner
      opened=$($theirs "$driver" "$(grep '^vmmshare:' ticket)") || fail "$theirs opens nothing of $ours"
      [[ $opened == opened* ]] || fail "$theirs says of the memory of $ours: $opened"
      echo >&3
      exec 3>&-
      wait $owner || fail "$ours ended with $?: $(cat ticket)"
      rm enter ticket
    done
  done
  say "each of these opened what each shared: $(printf '%s; ' "${programs[@]}")"
}
