# ./dev package: the Debian packages. Sourced by ./dev; uses its say, fail, logged.
# shellcheck shell=bash disable=SC2154

# The version of the project, and of the packages on this distribution.
project_version() { sed -n 's/^  VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt; }
package_version() {
  local ID=unknown VERSION_ID=''
  # shellcheck disable=SC1091
  source /etc/os-release
  echo "$(project_version)-1~$ID$VERSION_ID"
}

# What the changelog of the packages is for: lintian knows Ubuntu's releases by name.
package_distribution() {
  local ID=unknown VERSION_CODENAME=unstable
  # shellcheck disable=SC1091
  source /etc/os-release
  if [ "$ID" = ubuntu ]; then echo "$VERSION_CODENAME"; else echo unstable; fi
}

# Puts nanobind, which no distribution has in this version, into build/nanobind
# and prints the folder of its CMake package.
fetch_nanobind() {
  local target=build/nanobind/$1
  if [ ! -e "$target/nanobind/cmake/nanobind-config.cmake" ]; then
    say "fetching nanobind $1 into $target" >&2
    rm -rf "$target"
    logged build/log/nanobind.log python3 -m pip install --quiet --no-deps --require-hashes \
      --only-binary :all: --target "$target" -r .dev/nanobind.txt
  fi
  echo "$PWD/$target/nanobind/cmake"
}

# The sources, as git lists them, and debian/ beside them.
make_source_tree() {
  local tree=$1
  rm -rf "$tree"
  mkdir -p "$tree"
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$tree"
  mv "$tree/.packaging/debian" "$tree/debian"
  cp "$tree/.packaging/systemd/vmmshare-keeper@.service" \
    "$tree/debian/vmmshare-tools.vmmshare-keeper@.service"
  cat >"$tree/debian/changelog" <<TEXT
vmmshare ($(package_version)) $(package_distribution); urgency=medium

  * Packaged from the sources by ./dev package; what is new in this version is
    in changelog.gz.

 -- The vmmshare developers <developers@vmmshare.invalid>  $(date -R -d "@$(git log -1 --format=%ct)")
TEXT
}

build_packages() {
  local out=$1 tree=$2 nanobind
  command -v dpkg-buildpackage >/dev/null || command -v apt-get >/dev/null ||
    fail "package: these are Debian packages; this machine has no apt-get"
  need_build
  need_package
  install_missing
  check_versions
  fetch_cuda_headers
  use_ccache
  nanobind=$(fetch_nanobind "$(sed -n 's/^nanobind==\([0-9.]*\).*/\1/p' .dev/nanobind.txt)")
  rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
  say "building the packages of $(package_version) in $out"
  make_source_tree "$tree"
  (
    export VMMSHARE_NANOBIND_DIR=$nanobind VMMSHARE_CUDA_INCLUDE_DIR
    VMMSHARE_CUDA_INCLUDE_DIR=$(cuda_headers)
    # debhelper sets another home.
    ! command -v ccache >/dev/null || CCACHE_DIR=$(ccache --get-config cache_dir)
    export CCACHE_DIR DEB_BUILD_OPTIONS=${DEB_BUILD_OPTIONS:-nocheck parallel=$(nproc)}
    cd "$tree" || exit
    logged ../log/build.log dpkg-buildpackage --unsigned-changes --build=binary
  )
}

make_packages() {
  local out=build/package tree
  tree=$out/vmmshare-$(project_version)
  [ "$prebuilt" = 1 ] || build_packages "$out" "$tree"
  say "lintian on $out/*.changes"
  logged "$out/log/lintian.log" lintian --fail-on error,warning --allow-root "$out"/*.changes
  cat "$out/log/lintian.log"
  ls "$out"/*.deb
  check_units "$tree"
  # Skips, with the reason, where no bare root can be made.
  tests/package/run "$out" "$(cuda_headers)" || [ $? = 77 ] ||
    fail "the packages do not work in a bare root"
}

# systemd is not everywhere; what the unit starts is not installed here.
check_units() {
  local unit=$1/debian/vmmshare-tools.vmmshare-keeper@.service folder said
  if ! command -v systemd-analyze >/dev/null; then
    say "skipped: systemd-analyze is not here to check the unit"
    return
  fi
  folder=$(mktemp -d)
  sed "s|ExecStart=/usr/bin/vmmshare|ExecStart=$(type -P true)|; /^Documentation=/d" "$unit" \
    >"$folder/vmmshare-keeper@root.service"
  said=$(systemd-analyze verify "$folder/vmmshare-keeper@root.service" 2>&1) || true
  if [ -z "$said" ]; then
    # In tenths; "SAFE" ends at 1.9.
    said=$(systemd-analyze security --offline=true --threshold=19 \
      "$folder/vmmshare-keeper@root.service" 2>&1 >/dev/null) || said=${said:-its exposure is above 1.9}
  fi
  rm -rf "$folder"
  [ -z "$said" ] || fail "vmmshare-keeper@.service: $said"
  say "systemd-analyze has nothing against vmmshare-keeper@.service"
}
