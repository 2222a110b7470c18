# Takes Abseil and nlohmann_json from the system, where Conan shall not build them.
include(default)
[settings]
compiler.cppstd=20
[platform_requires]
abseil/20220623.1
nlohmann_json/3.11.2
