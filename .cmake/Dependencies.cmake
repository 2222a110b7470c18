# Before anything is fetched: without it nothing can be built.
include(CudaHeader)
if(vmmshare_cuda_header_problem)
  message(FATAL_ERROR "${vmmshare_cuda_header_problem} (./dev fetches the header alone.)")
endif()

# Packages of the system first; where one is missing, a pinned source release.
include(FetchContent)
# Let the plain variables below set the options of the fetched projects.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
# The fetched projects are no unity builds. They go into libvmmshare.so, and Abseil's
# types are other ones below C++17 than they are to us.
set(unity_build ${CMAKE_UNITY_BUILD})
set(position_independent ${CMAKE_POSITION_INDEPENDENT_CODE})
set(cxx_standard ${CMAKE_CXX_STANDARD})
set(CMAKE_UNITY_BUILD OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_CXX_STANDARD OR CMAKE_CXX_STANDARD LESS 20)
  set(CMAKE_CXX_STANDARD 20)
endif()

if(NOT TARGET absl::status)
  find_package(absl QUIET)
endif()
if(NOT TARGET absl::status)
  message(STATUS "vmmshare: no Abseil package here; fetching the pinned release")
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL ${VMMSHARE_INSTALL})
  FetchContent_Declare(
    absl
    SYSTEM
    URL https://github.com/abseil/abseil-cpp/archive/refs/tags/20220623.1.tar.gz
    URL_HASH SHA256=91ac87d30cc6d79f9ab974c51874a704de9c2647c40f6932597329a282217ba8
    DOWNLOAD_EXTRACT_TIMESTAMP ON)
  FetchContent_MakeAvailable(absl)
endif()

# Headers alone, and none of ours includes them: an installed vmmshare needs none.
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.11 QUIET)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  message(STATUS "vmmshare: no nlohmann_json package here; fetching the pinned release")
  set(JSON_BuildTests OFF)
  set(JSON_Install OFF)
  FetchContent_Declare(
    nlohmann_json
    SYSTEM
    URL https://github.com/nlohmann/json/releases/download/v3.11.2/json.tar.xz
    URL_HASH SHA256=8c4b26bf4b422252e13f332bc5e388ec0ab5c3443d24399acb675e68278d341f
    DOWNLOAD_EXTRACT_TIMESTAMP ON)
  FetchContent_MakeAvailable(nlohmann_json)
endif()

add_library(vmmshare_cuda_headers INTERFACE)
add_library(vmmshare::cuda_headers ALIAS vmmshare_cuda_headers)
set_target_properties(vmmshare_cuda_headers PROPERTIES EXPORT_NAME cuda_headers)
target_include_directories(vmmshare_cuda_headers SYSTEM
                           INTERFACE $<BUILD_INTERFACE:${VMMSHARE_CUDA_INCLUDE_DIR}>)

if(VMMSHARE_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(STATUS "vmmshare: no GoogleTest package here; fetching the pinned release")
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(
      googletest
      SYSTEM
      URL https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
      URL_HASH SHA256=81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2
      DOWNLOAD_EXTRACT_TIMESTAMP ON)
    FetchContent_MakeAvailable(googletest)
    if(NOT TARGET GTest::gmock)
      add_library(GTest::gmock ALIAS gmock)
    endif()
  endif()
endif()
if(VMMSHARE_BUILD_BENCH)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "vmmshare: no Google Benchmark package here; fetching the pinned release")
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    FetchContent_Declare(
      benchmark
      SYSTEM
      URL https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
      URL_HASH SHA256=6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7
      DOWNLOAD_EXTRACT_TIMESTAMP ON)
    FetchContent_MakeAvailable(benchmark)
  endif()
endif()
set(CMAKE_UNITY_BUILD ${unity_build})
set(CMAKE_POSITION_INDEPENDENT_CODE ${position_independent})
set(CMAKE_CXX_STANDARD ${cxx_standard})
