# What tests/package/run does in the bare root; /test holds what it brought.
set -euo pipefail
cd /test
source ./use.sh

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

# Every file and folder with its mode, owner and contents, but for what dpkg, apt,
# ldconfig, man-db and systemd-analyze write whatever they work on.
everything() {
  local found=(find / -xdev '(' -path /test -o -path /proc -o -path /dev
    -o -path /var/lib/dpkg/available -o -path '/var/lib/dpkg/lock*'
    -o -path '/var/lib/dpkg/status*' -o -path /var/lib/dpkg/triggers
    -o -path /var/lib/apt/extended_states -o -path /var/log/alternatives.log
    -o -path /var/log/apt -o -path /var/log/dpkg.log -o -path /var/cache/apt
    -o -path /var/cache/ldconfig -o -path /var/cache/man
    -o -path /run/systemd/systemd-units-load ')' -prune -o)
  {
    "${found[@]}" -printf '%p %y %m %u:%g %l\n'
    "${found[@]}" -type f -print0 | xargs -0 sha256sum | sed -E 's/^([^ ]+) +(.*)/\2 \1/'
  } | sort
}

# same_as_before NOT_COMPARED: what is there now is what is in `before`, but for
# names that NOT_COMPARED, an extended regular expression, matches.
same_as_before() {
  if ! diff <(grep -v -E "$1" before) <(everything | grep -v -E "$1") >left; then
    cat left
    fail "these were left behind or changed (>), taken away or other before (<)"
  fi
}

install_ours() {
  local package name holder
  everything >before
  say "installing: ${names[*]}"
  apt install ./*.deb
  apt check
  for package in ./*.deb; do
    name=$(dpkg-deb -f "$package" Package)
    [ -z "$(dpkg --verify "$name" 2>&1)" ] || fail "dpkg --verify $name"
    # Not through a pipe here and below: grep ends before dpkg has said all, which pipefail takes for a failure.
    grep -q "^/usr/share/doc/$name/copyright$" <<<"$(dpkg -L "$name")" || fail "$name has no copyright file"
    for holder in 'Niels Lohmann' 'Wenzel Jakob' 'The Abseil Authors' 'Thibaut Goetghebuer-Planchon'; do
      grep -q "$holder" "/usr/share/doc/$name/copyright" || fail "the copyright file of $name lacks $holder"
    done
  done
}

# After a removal dpkg may know the packages still, until they are purged.
remove_ours() {
  local name
  apt remove "${names[@]}"
  same_as_before '^/var/lib/dpkg/info/'
  # apt knows no package that is gone whole and has no source.
  logged dpkg --purge "${names[@]}"
  check_gone
}
purge_ours() {
  apt purge "${names[@]}"
  check_gone
}
check_gone() {
  local name
  same_as_before '^$'
  [ -z "$(ls -A /dev/shm)" ] || fail "left in /dev/shm: $(ls -A /dev/shm)"
  for name in "${names[@]}"; do
    ! dpkg-query -W "$name" 2>/dev/null | grep . || fail "dpkg still knows $name"
  done
  say "nothing is left of ${names[*]}"
}

names=() others=()
for package in ./*.deb; do names+=("$(dpkg-deb -f "$package" Package)"); done
mkdir -p "$HOME"
mkdir -m 0700 "$XDG_RUNTIME_DIR"
apt update

# First what is not ours, so that afterwards all that differs is.
mapfile -t others < <(for package in ./*.deb; do
  dpkg-deb -f "$package" Pre-Depends Depends | sed 's/^[A-Za-z-]*: //' | tr , '\n'
done | sed 's/^ *//; s/[ (|:].*//' | grep . | grep -v -x -F "$(printf '%s\n' "${names[@]}")" | sort -u)
say "fetching what ${names[*]} depend on: ${others[*]}"
apt install "${others[@]}"
install_ours
use_without_more
remove_ours

more=(g++ cmake make pkg-config man-db bash-completion zsh fish systemd)
say "fetching what uses the packages: ${more[*]}"
apt install "${more[@]}"
install_ours
use_pages
use_unit
use_to_build
use_together
purge_ours
