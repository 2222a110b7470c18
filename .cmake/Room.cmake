# vmmshare_room(NAME SOURCES ... HEADERS ... DEPENDS ...)
#
# One library target a room: vmmshare_NAME, known to users as vmmshare::NAME.
# HEADERS are public: they install under one private include root
# (include/vmmshare), so that users write #include <vmm/memory/allocation.h> and no
# generic folder name lands on their include path. What is in a room's internal/
# is nobody's but the project's and is not installed. A room without SOURCES is
# a name for those it DEPENDS on. The global property VMMSHARE_ROOMS lists all.
function(vmmshare_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPENDS" ${ARGN})
  set(target vmmshare_${name})
  set_property(GLOBAL APPEND PROPERTY VMMSHARE_ROOMS ${target})
  if(NOT ARG_SOURCES)
    add_library(${target} INTERFACE)
    add_library(vmmshare::${name} ALIAS ${target})
    target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES
                                       ${ARG_HEADERS})
    target_link_libraries(${target} INTERFACE ${ARG_DEPENDS})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS
                                                                   ${PROJECT_IS_TOP_LEVEL})
    return()
  endif()
  add_library(${target})
  add_library(vmmshare::${name} ALIAS ${target})
  target_sources(
    ${target}
    PRIVATE ${ARG_SOURCES}
    PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES
           ${ARG_HEADERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_DEPENDS})
  set_target_properties(
    ${target}
    PROPERTIES EXPORT_NAME ${name}
               OUTPUT_NAME vmmshare_${name}
               POSITION_INDEPENDENT_CODE ON
               VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
               CXX_EXTENSIONS OFF
               VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
  vmmshare_finds_the_others(${target})
  vmmshare_warnings(${target})
  vmmshare_precompile(${target} vmmshare_platform)
endfunction()

# Where rooms are shared libraries, an installed one looks for the others beside it.
function(vmmshare_finds_the_others target)
  if(BUILD_SHARED_LIBS AND NOT WIN32)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
endfunction()

# vmmshare_precompile(TARGET OWNER [HEADER...])
#
# With VMMSHARE_PRECOMPILED_HEADERS, what most sources include is parsed once
# for OWNER, with HEADERs, and taken over by every other TARGET of that OWNER.
# Both need the same compiler flags; GCC reports it when they differ.
function(vmmshare_precompile target owner)
  if(NOT VMMSHARE_PRECOMPILED_HEADERS)
    return()
  endif()
  # For ccache: what it can see through, and files that are the same when made again.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
  if(NOT target STREQUAL owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
    return()
  endif()
  target_precompile_headers(
    ${target}
    PRIVATE
    ${ARGN}
    <algorithm>
    <array>
    <atomic>
    <cstdint>
    <cstring>
    <functional>
    <map>
    <memory>
    <mutex>
    <optional>
    <string>
    <thread>
    <utility>
    <variant>
    <vector>
    <absl/status/status.h>
    <absl/status/statusor.h>
    <absl/strings/str_cat.h>
    <absl/strings/str_format.h>
    <absl/time/clock.h>
    <absl/types/span.h>)
endfunction()

# vmmshare_compiled_apart(SOURCE...)
#
# A unity build compiles several sources of a target as one. SOURCEs are left out:
# they use a name of their own that another source of the target uses too.
function(vmmshare_compiled_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# The warnings every target of the project is compiled with, and on Windows
# what <windows.h> is to declare: the calls of Windows 10, in UTF-16, no macros.
function(vmmshare_warnings target)
  if(WIN32)
    target_compile_definitions(${target} PRIVATE NOMINMAX WIN32_LEAN_AND_MEAN UNICODE _UNICODE
                                                 WINVER=0x0A00 _WIN32_WINNT=0x0A00)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-unused-parameter)
    if(VMMSHARE_WARNINGS_AS_ERRORS)
      target_compile_options(${target} PRIVATE -Werror)
    endif()
    # GCC takes a unity build's sources for headers, whose types several would see.
    if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
  elseif(MSVC)
    # C4100: parameters without a use; C5030 and C4068: attributes and pragmas of
    # other compilers.
    target_compile_options(${target} PRIVATE /W4 /wd4100 /wd5030 /wd4068 /permissive- /utf-8 /EHsc
                                             /Zc:__cplusplus)
    target_compile_definitions(${target} PRIVATE _CRT_SECURE_NO_WARNINGS)
    if(VMMSHARE_WARNINGS_AS_ERRORS)
      target_compile_options(${target} PRIVATE /WX)
    endif()
  endif()
endfunction()
