# One consumer test: cmake -DCASE=... -DBUILD_DIR=... -P run.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit ${result} from: ${command}")
  endif()
endfunction()

# refused(ARGS...): cmake ARGS... ends in an error that names an older cuda.h, and 12.3.
function(refused)
  execute_process(COMMAND "${CMAKE_COMMAND}" ${ARGN} RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  list(JOIN ARGN " " command)
  if(result EQUAL 0 OR NOT said MATCHES "cuda\\.h is of CUDA 12\\.2; vmmshare needs that of 12\\.3 or newer")
    message(FATAL_ERROR "exit ${result} from: cmake ${command}\nexpected an error that names CUDA 12.2, got: ${said}")
  endif()
endfunction()

function(expect_entries folder)
  file(GLOB found RELATIVE "${folder}" "${folder}/*")
  list(SORT found)
  set(expected ${ARGN})
  list(SORT expected)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "${folder} holds '${found}', expected '${expected}'")
  endif()
endfunction()

set(options -G "${GENERATOR}" "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DCMAKE_CXX_COMPILER=${CXX}"
    "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}" "-DVMMSHARE_CUDA_INCLUDE_DIR=${CUDA_INCLUDE_DIR}")
set(work "${WORK_DIR}/${CASE}")
file(REMOVE_RECURSE "${work}")
file(MAKE_DIRECTORY "${work}")
# The last header without fabric handles, as CUDA_HOME and as an include folder.
set(older "${work}/older")
file(WRITE "${older}/include/cuda.h" "#define CUDA_VERSION 12020\n")

if(CASE STREQUAL "InstalledPackageBuildsAndRuns")
  # Moved after the installation: an installed tree may not know where it was.
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${work}/first")
  file(RENAME "${work}/first" "${work}/prefix")

  # A generic name such as include/platform would shadow other people's headers.
  # Abseil is installed too where this build had to fetch it.
  set(roots vmmshare)
  if(FETCHED_ABSEIL)
    list(APPEND roots absl)
  endif()
  expect_entries("${work}/prefix/${INCLUDE_DIR}" ${roots})
  expect_entries("${work}/prefix/${INCLUDE_DIR}/vmmshare" fabric platform vmm)

  expect_entries("${work}/prefix/${DOC_DIR}" LICENSE third-party-notices.txt)

  file(GLOB_RECURSE package "${work}/prefix/*.cmake")
  if(NOT package)
    message(FATAL_ERROR "no CMake package was installed")
  endif()
  foreach(file IN LISTS package)
    file(READ "${file}" text)
    foreach(leak IN ITEMS "${BUILD_DIR}" "${SOURCE_DIR}" "${CUDA_INCLUDE_DIR}" "${work}")
      string(FIND "${text}" "${leak}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${file} names a path of the machine it was built on: ${leak}")
      endif()
    endforeach()
  endforeach()

  # Nor may users need what only the build does.
  file(GLOB_RECURSE installed "${work}/prefix/${INCLUDE_DIR}/vmmshare/*.h" "${work}/prefix/*.cmake"
       "${work}/prefix/*.pc")
  foreach(file IN LISTS installed)
    file(READ "${file}" text)
    if(text MATCHES "nlohmann")
      message(FATAL_ERROR "${file} names nlohmann_json, which an installed vmmshare does not need")
    endif()
  endforeach()

  run("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/installed" -B "${work}/build" ${options}
      "-DCMAKE_PREFIX_PATH=${work}/prefix;${PREFIX_PATH}")
  run("${CMAKE_COMMAND}" --build "${work}/build" --config "${CONFIG}")
  run("${CMAKE_COMMAND}" --build "${work}/build" --config "${CONFIG}" --target run_consumer)

  refused(-S "${CONSUMER_DIR}/installed" -B "${work}/refused" ${options}
          "-DVMMSHARE_CUDA_INCLUDE_DIR=${older}/include" "-DCMAKE_PREFIX_PATH=${work}/prefix;${PREFIX_PATH}")

  # One in C needs nothing of what those in C++ do.
  file(GLOB_RECURSE c_package "${work}/prefix/*/vmmshareCTargets.cmake")
  if(c_package)
    run("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/c" -B "${work}/c" -G "${GENERATOR}"
        "-DCMAKE_PREFIX_PATH=${work}/prefix" -DCMAKE_DISABLE_FIND_PACKAGE_absl=ON)
    run("${CMAKE_COMMAND}" --build "${work}/c" --target run_consumer)
  elseif(EXPECTS_C)
    message(FATAL_ERROR "the C interface is not in a package of its own")
  endif()

  # A cuda.h of the system's is in a folder that compilers look into by themselves. Not
  # where Abseil has no files for pkg-config, nor for another system, which has its own.
  file(GLOB_RECURSE cxx_package "${work}/prefix/*/vmmshare-cxx.pc")
  find_program(pkg_config pkg-config)
  if(cxx_package AND pkg_config AND NOT CROSS)
    cmake_path(GET cxx_package PARENT_PATH folder)
    execute_process(
      COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${folder}" "${pkg_config}" --cflags
              --define-variable=cuda_includedir=/usr/include vmmshare-cxx
      OUTPUT_VARIABLE flags RESULT_VARIABLE result)
    if(result EQUAL 0)
      separate_arguments(flags UNIX_COMMAND "${flags}")
      file(WRITE "${work}/standard.cc" "#include <cstdlib>\nint main() { return EXIT_SUCCESS; }\n")
      run("${CXX}" -std=c++20 ${flags} -fsyntax-only "${work}/standard.cc")
    endif()
  endif()

  # The project that shows vcpkg, without it: it finds the package as any does.
  run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/docs/examples/vcpkg" -B "${work}/app" ${options}
      "-DCMAKE_PREFIX_PATH=${work}/prefix;${PREFIX_PATH}")
  run("${CMAKE_COMMAND}" --build "${work}/app" --config "${CONFIG}")
  run("${work}/app/app" --help)
elseif(CASE STREQUAL "NestedProjectBuildsTheLibraryAlone")
  run("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/nested" -B "${work}/build" ${options}
      "-DVMMSHARE_SOURCE_DIR=${SOURCE_DIR}" "-DCMAKE_PREFIX_PATH=${PREFIX_PATH}"
      # All of it once more, but soon.
      -DVMMSHARE_PRECOMPILED_HEADERS=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_CXX_FLAGS_DEBUG=-O0)
  file(READ "${work}/build/vmmshare/cmake_install.cmake" install)
  if(install MATCHES "vmmshare-config|libvmmshare")
    message(FATAL_ERROR "a nested vmmshare adds install rules")
  endif()
  run("${CMAKE_COMMAND}" --build "${work}/build" --config "${CONFIG}")
  run("${work}/build/nested")
elseif(CASE STREQUAL "AnOlderCudaHeaderIsRefused")
  refused(-S "${SOURCE_DIR}" -B "${work}/build" ${options} "-DVMMSHARE_CUDA_INCLUDE_DIR=${older}/include")
  # What was refused is not kept: another CUDA_HOME is enough.
  file(READ "${work}/build/CMakeCache.txt" cache)
  if(cache MATCHES "VMMSHARE_CUDA_INCLUDE_DIR")
    message(FATAL_ERROR "the refused folder is still in ${work}/build/CMakeCache.txt")
  endif()

  # Debian and Ubuntu have an older one in /usr: it does not hide the Toolkit's.
  set(ENV{CUDA_HOME} "")
  set(ENV{CUDA_PATH} "")
  set(CMAKE_PREFIX_PATH "")
  set(CMAKE_SYSTEM_PREFIX_PATH "${older}")
  include("${SOURCE_DIR}/.cmake/CudaHeader.cmake")
  if(EXISTS /usr/local/cuda/include/cuda.h AND VMMSHARE_CUDA_INCLUDE_DIR STREQUAL "${older}/include")
    message(FATAL_ERROR "${VMMSHARE_CUDA_INCLUDE_DIR} was taken before /usr/local/cuda")
  endif()

  # ./dev passes over it, and takes another or fetches one.
  find_program(bash bash)
  if(bash)
    set(ENV{CUDA_HOME} "${older}")
    execute_process(
      COMMAND "${bash}" -c "say() { echo \"said: $*\"; }; source .dev/machine.sh; say_older_headers; cuda_headers"
      WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
    if(NOT said MATCHES "said: [^\n]*older[^\n]* is of CUDA 12\\.2" OR said MATCHES "(^|\n)${older}/include\n")
      message(FATAL_ERROR "./dev does not pass over ${older}: ${said}")
    endif()
  endif()
elseif(CASE STREQUAL "TheCInterfaceIsFoundBesideSharedLibraries")
  # An installation of no files but CMake's, with libraries that stand for the shared ones.
  include(CMakePackageConfigHelpers)
  set(VMMSHARE_C_STANDS_ALONE FALSE)
  set(package "${work}/prefix/lib/cmake/vmmshare")
  configure_package_config_file(
    "${SOURCE_DIR}/.cmake/vmmshare-config.cmake.in" "${package}/vmmshare-config.cmake"
    INSTALL_DESTINATION lib/cmake/vmmshare INSTALL_PREFIX "${work}/prefix")
  file(COPY "${SOURCE_DIR}/.cmake/CudaHeader.cmake" DESTINATION "${package}")
  file(WRITE "${work}/prefix/lib/cmake/absl/abslConfig.cmake" "")
  file(WRITE "${work}/project/CMakeLists.txt"
       "cmake_minimum_required(VERSION 3.25)\nproject(found LANGUAGES C)\n"
       "find_package(vmmshare REQUIRED COMPONENTS c)\n"
       "if(NOT vmmshare_c_FOUND OR NOT TARGET vmmshare::c)\n"
       "  message(FATAL_ERROR \"the component c is said to be found\")\nendif()\n")
  set(made "add_library(vmmshare::vmm INTERFACE IMPORTED)\nadd_library(vmmshare::cuda_headers INTERFACE IMPORTED)\n")
  set(find "${CMAKE_COMMAND}" -S "${work}/project" -G "${GENERATOR}"
      "-DVMMSHARE_CUDA_INCLUDE_DIR=${CUDA_INCLUDE_DIR}" "-DCMAKE_PREFIX_PATH=${work}/prefix")
  file(WRITE "${package}/vmmshareTargets.cmake" "${made}add_library(vmmshare::c INTERFACE IMPORTED)\n")
  run(${find} -B "${work}/build")

  # Where the C interface was not built it is missed.
  file(WRITE "${package}/vmmshareTargets.cmake" "${made}")
  execute_process(COMMAND ${find} -B "${work}/without" RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE said)
  if(result EQUAL 0 OR NOT said MATCHES "vmmshare_FOUND")
    message(FATAL_ERROR "exit ${result} without a C interface: ${said}")
  endif()
elseif(CASE STREQUAL "CrossCompiledItRunsNothingThatItBuilt")
  # Whether manual pages are made, and installed, with and without an emulator.
  set(emulator_of_with -DCMAKE_CROSSCOMPILING_EMULATOR=emulator)
  set(emulator_of_without "")
  foreach(which IN ITEMS with without)
    run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}" -B "${work}/${which}" ${options} ${emulator_of_${which}}
        "-DCMAKE_PREFIX_PATH=${PREFIX_PATH}" "-DCMAKE_SYSTEM_NAME=${CMAKE_HOST_SYSTEM_NAME}"
        "-DCMAKE_SYSTEM_PROCESSOR=${CMAKE_HOST_SYSTEM_PROCESSOR}" -DVMMSHARE_BUILD_TESTS=OFF
        -DVMMSHARE_BUILD_BENCH=OFF -DVMMSHARE_BUILD_EXAMPLES=OFF)
    file(READ "${work}/${which}/vmm/tool/cmake_install.cmake" install)
    execute_process(COMMAND "${CMAKE_COMMAND}" --build "${work}/${which}" --target help
                    OUTPUT_VARIABLE targets COMMAND_ERROR_IS_FATAL ANY)
    if(NOT targets MATCHES "vmmshare_pages")
      message(FATAL_ERROR "${which} an emulator: no vmmshare_pages among the targets: ${targets}")
    endif()
    string(FIND "${targets}" vmmshare_page_files made)
    string(FIND "${install}" vmmshare.1 installed)
    if((which STREQUAL "without" AND (NOT made EQUAL -1 OR NOT installed EQUAL -1))
       OR (which STREQUAL "with" AND (made EQUAL -1 OR installed EQUAL -1)))
      message(FATAL_ERROR "${which} an emulator: manual pages among the targets: ${made}, installed: ${installed}")
    endif()
  endforeach()
else()
  message(FATAL_ERROR "unknown CASE '${CASE}'")
endif()
