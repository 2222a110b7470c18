"""vmmshare for Conan 2: conan create .packaging/conan. docs/install.md says more."""

import pathlib
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy

required_conan_version = ">=2.0"
NOTICES = ".packaging/third-party-notices.txt"


class Vmmshare(ConanFile):
    name = "vmmshare"
    description = "Share GPU memory between processes with CUDA virtual memory management"
    license = "Apache-2.0"
    topics = ("cuda", "gpu", "ipc", "shared-memory")
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"

    @property
    def _repository(self):
        return pathlib.Path(self.recipe_folder).resolve().parents[1]

    def set_version(self):
        text = (self._repository / "CMakeLists.txt").read_text(encoding="utf-8")
        self.version = re.search(r"^  VERSION ([0-9.]+)$", text, re.M).group(1)

    def export_sources(self):
        for part in (".cmake/*", NOTICES, "CMakeLists.txt", "LICENSE", "fabric/*", "platform/*", "vmm/*"):
            copy(self, part, self._repository, self.export_sources_folder)

    def requirements(self):
        # Its types are in the headers: it must be the Abseil that the user has.
        self.requires("abseil/[>=20220623]", transitive_headers=True, transitive_libs=True)
        self.requires("nlohmann_json/[>=3.11]", visible=False)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("this recipe was tried on Linux alone")
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "BENCH", "EXAMPLES"):
            toolchain.cache_variables[f"VMMSHARE_BUILD_{part}"] = False
        # Where cuda.h is, if not at CUDA_HOME or in /usr/local/cuda.
        cuda = self.conf.get("user.vmmshare:cuda_include_dir")
        if cuda:
            toolchain.cache_variables["VMMSHARE_CUDA_INCLUDE_DIR"] = cuda
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        for part in ("LICENSE", NOTICES):
            copy(self, part, self.source_folder, pathlib.Path(self.package_folder, "licenses"),
                 keep_path=False)

    def package_info(self):
        # The package brings its own vmmshare-config.cmake.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/vmmshare"]
        self.cpp_info.includedirs = ["include/vmmshare"]
