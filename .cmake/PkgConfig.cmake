# vmmshare.pc, for the C interface, and vmmshare-cxx.pc, for the C++ rooms, from
# what their targets link. A prefix is found from where the file lies, so that
# an installed tree can be moved.
if(WIN32)
  return()
endif()
file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" up "${up}")
set(common
    "prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}/vmmshare
")

set(archives "")
set(modules "")
set(others "")
foreach(room ${rooms})
  get_target_property(type ${room} TYPE)
  if(type STREQUAL STATIC_LIBRARY OR type STREQUAL SHARED_LIBRARY)
    get_target_property(name ${room} OUTPUT_NAME)
    list(PREPEND archives "-l${name}") # A room uses those listed before it.
  endif()
  get_target_property(links ${room} INTERFACE_LINK_LIBRARIES)
  string(GENEX_STRIP "${links}" links) # What only this build links.
  foreach(link ${links})
    if(link MATCHES "^absl::(.+)$")
      list(APPEND modules "absl_${CMAKE_MATCH_1}")
    elseif(link STREQUAL "Threads::Threads")
      list(APPEND others -pthread)
    elseif(link MATCHES "^[a-z]+$") # Of the system: dl.
      list(APPEND others "-l${link}")
    elseif(NOT link MATCHES "^vmmshare::")
      message(FATAL_ERROR "vmmshare-cxx.pc: what stands there for ${link}, which ${room} links?")
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES modules)
list(REMOVE_DUPLICATES others)
list(SORT modules)
list(JOIN archives " " archives)
list(JOIN modules ", " modules)
list(JOIN others " " others)
# The headers include cuda.h, which the package does not have. By -I: compilers pass
# over it where that is /usr/include, which by -isystem hides C++'s own headers' ones.
file(
  WRITE "${PROJECT_BINARY_DIR}/vmmshare-cxx.pc"
  "${common}cuda_includedir=/usr/local/cuda/include

Name: vmmshare-cxx
Description: ${PROJECT_DESCRIPTION}, in C++20
Version: ${PROJECT_VERSION}
Requires: ${modules}
Libs: -L\${libdir} ${archives} ${others}
Cflags: -I\${includedir} -I\${cuda_includedir}
")
install(FILES "${PROJECT_BINARY_DIR}/vmmshare-cxx.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(TARGET vmmshare_c)
  file(WRITE "${PROJECT_BINARY_DIR}/vmmshare.pc"
       "${common}
Name: vmmshare
Description: ${PROJECT_DESCRIPTION}, in C
Version: ${PROJECT_VERSION}
Libs: -L\${libdir} -lvmmshare
Cflags: -I\${includedir}
")
  install(FILES "${PROJECT_BINARY_DIR}/vmmshare.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()
