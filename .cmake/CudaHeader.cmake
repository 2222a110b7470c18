# Finds cuda.h, for building vmmshare and, beside vmmshare-config.cmake, for what
# uses it: types only, nothing of CUDA is linked. VMMSHARE_CUDA_INCLUDE_DIR is then
# the folder; vmmshare_cuda_header_problem is empty, or says what is wrong and what
# to do. /usr/local/cuda comes before /usr, where Debian and Ubuntu have older ones.
find_path(
  VMMSHARE_CUDA_INCLUDE_DIR cuda.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
  PATH_SUFFIXES include
  DOC "Folder that holds the CUDA driver API's cuda.h")

# The first that names fabric handles: as in CUDA_VERSION.
set(vmmshare_oldest_cuda 12030)
set(vmmshare_cuda_header_problem "")
set(vmmshare_cuda_version "")
if(EXISTS "${VMMSHARE_CUDA_INCLUDE_DIR}/cuda.h")
  file(STRINGS "${VMMSHARE_CUDA_INCLUDE_DIR}/cuda.h" vmmshare_cuda_version
       REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE "^#define CUDA_VERSION ([0-9]+).*" "\\1" vmmshare_cuda_version
                       "${vmmshare_cuda_version}")
else()
  set(vmmshare_cuda_header_problem
      "vmmshare needs the CUDA driver API's header cuda.h and found none (looked for: ${VMMSHARE_CUDA_INCLUDE_DIR}).")
endif()
# One that does not say it is left to the compiler.
if(vmmshare_cuda_version AND vmmshare_cuda_version LESS vmmshare_oldest_cuda)
  math(EXPR vmmshare_cuda_major "${vmmshare_cuda_version} / 1000")
  math(EXPR vmmshare_cuda_minor "${vmmshare_cuda_version} % 1000 / 10")
  set(vmmshare_cuda_header_problem
      "${VMMSHARE_CUDA_INCLUDE_DIR}/cuda.h is of CUDA ${vmmshare_cuda_major}.${vmmshare_cuda_minor}; vmmshare needs that of 12.3 or newer.")
endif()
if(vmmshare_cuda_header_problem)
  string(APPEND vmmshare_cuda_header_problem
         " Install the CUDA Toolkit, set CUDA_HOME to where it is, or pass"
         " -DVMMSHARE_CUDA_INCLUDE_DIR=FOLDER, the folder that holds cuda.h.")
  # So that the next run looks again.
  unset(VMMSHARE_CUDA_INCLUDE_DIR CACHE)
endif()
