# What pip would install, for a distribution's package: see VMMSHARE_OF_THE_SYSTEM.
include(GNUInstallDirs)
install(
  DIRECTORY vmmshare
  DESTINATION .
  FILES_MATCHING
  PATTERN "*.py"
  PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
# Where vmmshare.testing and vmmshare.torch look.
install(CODE "file(MAKE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}/vmmshare/lib\")
file(CREATE_LINK \"/usr/${CMAKE_INSTALL_LIBDIR}/vmmshare/libvmmshare_hostdriver.so\"
     \"\${CMAKE_INSTALL_PREFIX}/vmmshare/lib/libvmmshare_hostdriver.so\" SYMBOLIC)
file(CREATE_LINK \"/usr/${CMAKE_INSTALL_LIBDIR}/libvmmshare.so.1\"
     \"\${CMAKE_INSTALL_PREFIX}/vmmshare/lib/libvmmshare.so.1\" SYMBOLIC)")

# What importlib.metadata and pip know it by.
file(STRINGS pyproject.toml version REGEX "^version = ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" version "${version}")
file(STRINGS pyproject.toml summary REGEX "^description = ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" summary "${summary}")
set(about "${CMAKE_CURRENT_BINARY_DIR}/vmmshare-${version}.dist-info")
file(WRITE "${about}/METADATA" "Metadata-Version: 2.1
Name: vmmshare
Version: ${version}
Summary: ${summary}
Requires-Python: >=3.10
")
install(DIRECTORY "${about}" DESTINATION .)
