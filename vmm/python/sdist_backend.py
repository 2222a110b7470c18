"""The build backend: scikit-build-core's, but for the sdist.

An sdist holds one folder and what is below it, and the library's sources are
above this one. So the sdist is of the repository, as far as the package is made
of it, with this folder's pyproject.toml on top, whose paths lead here.
"""

import os
import pathlib
import re
import shutil
import tempfile

from scikit_build_core import build as _scikit_build
from scikit_build_core.build import *  # noqa: F403

_HERE = pathlib.Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[1]
_NOTICES = ".packaging/third-party-notices.txt"
_PARTS = [".cmake", _NOTICES, "CMakeLists.txt", "LICENSE", "fabric", "platform", "vmm"]
_LINES = [(r'build-backend = .*\nbackend-path = .*', 'build-backend = "scikit_build_core.build"'),
          (r'readme = .*', 'readme = "vmm/python/README.md"'),
          (r'wheel.packages = .*',
           'wheel.packages = ["vmm/python/vmmshare"]\ncmake.source-dir = "vmm/python"')]


def build_sdist(sdist_directory, config_settings=None):
    """Builds the sdist in the folder; returns the name of its file."""
    target = str(pathlib.Path(sdist_directory).resolve())
    with tempfile.TemporaryDirectory() as folder:
        for part in _PARTS:
            if (_REPOSITORY / part).is_dir():
                shutil.copytree(_REPOSITORY / part, pathlib.Path(folder, part),
                                ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
            else:
                pathlib.Path(folder, part).parent.mkdir(exist_ok=True)
                shutil.copy2(_REPOSITORY / part, pathlib.Path(folder, part))
        # Beside LICENSE, as license-files says; in this folder both are links.
        shutil.copy2(_REPOSITORY / _NOTICES, folder)
        project = (_HERE / "pyproject.toml").read_text()
        for old, new in _LINES:
            project, found = re.subn(f"(?m)^{old}$", new, project)
            assert found == 1, old
        pathlib.Path(folder, "pyproject.toml").write_text(project)
        before = pathlib.Path.cwd()
        os.chdir(folder)
        try:
            return _scikit_build.build_sdist(target, config_settings)
        finally:
            os.chdir(before)
