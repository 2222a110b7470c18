"""vmmshare for Spack, from a checkout: spack dev-build vmmshare@0.1.0."""

from spack.package import *


class Vmmshare(CMakePackage):
    """Share GPU memory between processes with CUDA virtual memory management."""

    license("Apache-2.0")

    version("0.1.0")

    variant("tool", default=True, description="Build the command-line tool and the C interface")
    variant("hostdriver", default=True, description="Build the host-memory driver, for tests")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("abseil-cpp@20220623: cxxstd=20")
    depends_on("nlohmann-json@3.11:", type="build")
    depends_on("cuda@12.3:")

    conflicts("platform=darwin", msg="there is no CUDA for it")

    def cmake_args(self):
        return [
            self.define("VMMSHARE_BUILD_BENCH", False),
            self.define("VMMSHARE_BUILD_EXAMPLES", False),
            self.define("VMMSHARE_BUILD_TESTS", False),
            self.define_from_variant("VMMSHARE_BUILD_C", "tool"),
            self.define_from_variant("VMMSHARE_BUILD_TOOL", "tool"),
            self.define_from_variant("VMMSHARE_BUILD_HOSTDRIVER", "hostdriver"),
            self.define("VMMSHARE_CUDA_INCLUDE_DIR", self.spec["cuda"].prefix.include),
        ]
