# The documentation site. Sourced by ./dev; uses its say, fail, logged, need,
# install_missing, build.

need_docs() {
  need_python
  need doxygen command:doxygen "reads the headers"
  # Ubuntu's package of that name is a snap: there the browser is Google's, or the
  # tests that need one are skipped.
  if [ -z "$(browser)" ] && grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
    need chromium command:chromium "is the browser that the site is tested in"
  fi
}

# Prints the path of a browser that Playwright can drive, or nothing.
browser() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    # /usr/bin/chromium-browser of Ubuntu only says that there is a snap.
    if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
}

# What builds the site and drives the browser, in build/docs/venv; and the
# Python package, whose stubs say what it has, in build/docs/python.
prepare_docs() {
  local venv=build/docs/venv
  if ! cmp -s .dev/docs/requirements.txt $venv/complete; then
    say "installing Sphinx and what it needs into $venv"
    rm -rf $venv
    logged build/docs/log/venv.log python3 -m venv $venv
    logged build/docs/log/pip.log $venv/bin/pip install --quiet -r .dev/docs/requirements.txt
    cp .dev/docs/requirements.txt $venv/complete
  fi
  say "building the Python package, whose interface is shown"
  rm -rf build/docs/python
  logged build/docs/log/package.log $venv/bin/pip install --quiet --no-deps --no-build-isolation \
    --target build/docs/python "--config-settings=cmake.define.VMMSHARE_BUILD=$PWD/build/dev" \
    "--config-settings=build-dir=$PWD/build/docs/package" ./vmm/python
}

# Stages, runs Doxygen and Sphinx, checks the links, looks at it.
make_site() {
  local python=build/docs/venv/bin/python language
  export SITE_BUILD=$PWD/build/docs
  SITE_VERSION=$(sed -n 's/^ *VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt | head -n 1)
  export SITE_VERSION
  logged build/docs/log/stage.log "$python" -B .dev/docs/stage.py . build/docs
  for language in cpp c; do
    rm -rf "build/docs/xml-$language/xml"
    logged "build/docs/log/doxygen-$language.log" doxygen "build/docs/Doxyfile-$language"
    # comments.py has renamed the first. An enumeration without a name is called @N by
    # Doxygen 1.9.4 and nothing by 1.9.8, which Sphinx cannot read.
    perl -pi -e 's/\bimport__/import/g; s|<name></name>|"<name>@" . ++$n . "</name>"|ge' \
      "build/docs/xml-$language"/xml/*.xml
  done
  say "building the site"
  logged build/docs/log/sphinx.log "$python" -m sphinx -b html -c .dev/docs -W --keep-going -q \
    -j "$(nproc)" build/docs/stage build/docs/html
  "$python" -B .dev/docs/check_links.py build/docs/html
  say "looking at the site"
  SITE_BROWSER=$(browser) logged build/docs/log/browser.log "$python" -B -m pytest -q -rs \
    -p no:cacheprovider tests/docs/site_test.py
  grep -E '^SKIPPED|passed|skipped' build/docs/log/browser.log
  say "the site is build/docs/html/index.html"
}
