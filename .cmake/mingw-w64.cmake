# Cross-builds Windows programs with Debian's mingw-w64 (package
# g++-mingw-w64-x86-64-posix). ./dev test --windows uses it.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)

# The variant with POSIX threads: the other one has no std::thread.
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)

# Appended, so that -DCMAKE_FIND_ROOT_PATH adds the prefix of the libraries.
list(APPEND CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# The compiler's own libraries go into each program: none of them is part of
# Windows.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -static)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -static)

# LLVM's linker (package lld) takes a second where GNU's takes half a minute, and
# this GCC takes no other by -fuse-ld.
find_program(VMMSHARE_LLD ld.lld)
if(VMMSHARE_LLD)
  foreach(kind IN ITEMS EXE SHARED MODULE)
    string(APPEND CMAKE_${kind}_LINKER_FLAGS_INIT
           " -specs=${CMAKE_CURRENT_LIST_DIR}/mingw-w64-lld.specs")
  endforeach()
endif()

# Before a path of this machine, to make it one that programs under wine open.
set(VMMSHARE_TARGET_DRIVE "Z:")
