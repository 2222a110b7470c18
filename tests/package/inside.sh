# What tests/package/run does in the bare root; /test holds what it brought.
set -euo pipefail
cd /test

say() { printf 'package test: %s\n' "$*"; }
fail() {
  printf 'package test: error: %s\n' "$*" >&2
  exit 1
}
logged() {
  "$@" >log 2>&1 || {
    tail -n 40 log
    fail "$*"
  }
}
apt() { logged apt-get -q -y --no-install-recommends "$@"; }

# All files and folders, but for what dpkg, apt and the test itself write.
everything() {
  find / -xdev \( -path /test -o -path /proc -o -path /dev -o -path /tmp -o -path /root \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) \
    -prune -o -print | sort
}

names=()
for package in ./*.deb; do names+=("$(dpkg-deb -f "$package" Package)"); done

# First what is not ours, so that afterwards all that differs is.
say "fetching compilers, and what ${names[*]} depend on"
apt update
apt install g++ cmake make pkg-config
others=$(for package in ./*.deb; do
  dpkg-deb -f "$package" Pre-Depends Depends | sed 's/^[A-Za-z-]*: //' | tr , '\n'
done | sed 's/^ *//; s/[ (|:].*//' | grep . | grep -v -x -F "$(printf '%s\n' "${names[@]}")" | sort -u)
# shellcheck disable=SC2086
apt install $others
everything >before
say "installing: $(echo ./*.deb)"
apt install ./*.deb
apt check
for package in ./*.deb; do
  name=$(dpkg-deb -f "$package" Package)
  dpkg --verify "$name" | grep . && fail "dpkg --verify $name"
  dpkg -L "$name" | grep -q "^/usr/share/doc/$name/copyright$" || fail "$name has no copyright file"
done

version=$(dpkg-deb -f libvmmshare1_*.deb Version)
version=${version%%-*}
[ "$(vmmshare --version)" = "vmmshare $version" ] || fail "vmmshare --version: $(vmmshare --version)"
vmmshare doctor --driver=host --require=fd >/dev/null || fail "vmmshare doctor on the host-memory driver"
for page in vmmshare vmmshare-doctor vmmshare-keep vmmshare-weights; do
  [ -e "/usr/share/man/man1/$page.1.gz" ] || fail "man has no page of $page"
done
[ "$(pkg-config --modversion vmmshare)" = "$version" ] || fail "pkg-config --modversion vmmshare"

say "building README's example in C++ and in C"
logged cmake -S . -B cmake -DVMMSHARE_CUDA_INCLUDE_DIR=/test/cuda
logged cmake --build cmake
# shellcheck disable=SC2046
logged g++ -std=c++20 hello.cc -o hello_pkgconfig \
  $(pkg-config --define-variable=cuda_includedir=/test/cuda --cflags --libs vmmshare-cxx)
# shellcheck disable=SC2046
logged gcc -std=c99 -Wall -Wextra -Werror hello.c -o hello_c $(pkg-config --cflags --libs vmmshare)

driver=$(python3 -B -c 'import vmmshare.testing; print(vmmshare.testing.host_driver())')
export VMMSHARE_HOST_INSTANCE=package-test
programs=(cmake/hello ./hello_pkgconfig ./hello_c "python3 -B hello.py")
for ours in "${programs[@]}"; do
  for theirs in "${programs[@]}"; do
    mkfifo enter
    $ours "$driver" <enter >ticket &
    owner=$!
    exec 3>enter
    for _ in $(seq 300); do
      ! grep -q '^vmmshare:.' ticket || break
      kill -0 $owner 2>/dev/null || fail "$ours ended before it printed a ticket"
      sleep 0.1
    done
    opened=$($theirs "$driver" "$(grep '^vmmshare:' ticket)") || fail "$theirs opens nothing of $ours"
    [[ $opened == opened* ]] || fail "$theirs says of the memory of $ours: $opened"
    exec 3>&-
    wait $owner || fail "$ours ended with $?"
    rm enter ticket
  done
done
say "each of ${#programs[@]} programs opened what each of them shared"

apt purge "${names[@]}"
if ! diff before <(everything) >left; then
  cat left
  fail "these files were left behind (>), or taken away (<)"
fi
say "purged; nothing is left of ${names[*]}"
