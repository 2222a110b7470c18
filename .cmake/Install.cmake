include(CMakePackageConfigHelpers)
set(VMMSHARE_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/vmmshare")
get_property(rooms GLOBAL PROPERTY VMMSHARE_ROOMS)
install(
  TARGETS vmmshare_cuda_headers ${rooms}
  EXPORT vmmshareTargets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vmmshare")
if(TARGET vmmshare_hostdriver)
  # Loaded by path: not among the libraries that programs link. A DLL counts as
  # RUNTIME.
  install(
    TARGETS vmmshare_hostdriver
    EXPORT vmmshareTargets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/vmmshare"
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vmmshare")
endif()
set(VMMSHARE_C_STANDS_ALONE FALSE)
if(TARGET vmmshare_c)
  # What it is linked to is within it, unless that is shared libraries too.
  set(VMMSHARE_C_STANDS_ALONE TRUE)
  set(c_export vmmshareCTargets)
  if(BUILD_SHARED_LIBS)
    set(VMMSHARE_C_STANDS_ALONE FALSE)
    set(c_export vmmshareTargets)
  endif()
  install(
    TARGETS vmmshare_c
    EXPORT ${c_export}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vmmshare")
endif()
if(TARGET vmmshare_tool)
  install(TARGETS vmmshare_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
install(
  EXPORT vmmshareTargets
  NAMESPACE vmmshare::
  DESTINATION "${VMMSHARE_CMAKE_DIR}")
if(VMMSHARE_C_STANDS_ALONE)
  install(
    EXPORT vmmshareCTargets
    NAMESPACE vmmshare::
    DESTINATION "${VMMSHARE_CMAKE_DIR}")
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/.cmake/vmmshare-config.cmake.in"
  "${PROJECT_BINARY_DIR}/vmmshare-config.cmake"
  INSTALL_DESTINATION "${VMMSHARE_CMAKE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/vmmshare-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/vmmshare-config.cmake"
              "${PROJECT_BINARY_DIR}/vmmshare-config-version.cmake"
              "${PROJECT_SOURCE_DIR}/.cmake/CudaHeader.cmake"
        DESTINATION "${VMMSHARE_CMAKE_DIR}")
# What whoever passes the binaries on has to pass on too.
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
              "${PROJECT_SOURCE_DIR}/.packaging/third-party-notices.txt"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")
include(PkgConfig)
