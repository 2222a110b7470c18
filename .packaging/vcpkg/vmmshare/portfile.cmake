# An overlay port of the repository that it lies in:
#   vcpkg install vmmshare --overlay-ports=.packaging/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# Nothing is exported from a DLL: types of Abseil cross the interface.
if(VCPKG_TARGET_IS_WINDOWS)
  vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
endif()
vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES tools VMMSHARE_BUILD_TOOL tools
                     VMMSHARE_BUILD_C tools VMMSHARE_BUILD_HOSTDRIVER)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features} -DVMMSHARE_BUILD_BENCH=OFF -DVMMSHARE_BUILD_EXAMPLES=OFF
          -DVMMSHARE_BUILD_TESTS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME vmmshare CONFIG_PATH lib/cmake/vmmshare)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  # The C interface and the host-memory driver are DLLs, where the rest is not.
  set(VCPKG_POLICY_DLLS_IN_STATIC_LIBRARY enabled)
  vcpkg_copy_tools(TOOL_NAMES vmmshare AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
# What share/vmmshare/copyright says.
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE"
                        "${SOURCE_PATH}/.packaging/third-party-notices.txt")
