# Takes Abseil from the system, where Conan shall not build it.
include(default)
[settings]
compiler.cppstd=20
[platform_requires]
abseil/20220623.1
