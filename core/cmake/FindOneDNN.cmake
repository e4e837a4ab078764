# FindOneDNN.cmake - oneDNN (2.6 or 3.x) by header and library: target OneDNN::OneDNN.
#
# oneDNN's own package file is not used: a build with a GPU runtime, such as Debian's, makes it ask
# for OpenCL's headers, which tarn does not need.
find_path(OneDNN_INCLUDE_DIR dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_INCLUDE_DIR)
  foreach(header oneapi/dnnl/dnnl_version.h dnnl_version.h)
    if(EXISTS ${OneDNN_INCLUDE_DIR}/${header})
      file(STRINGS ${OneDNN_INCLUDE_DIR}/${header} lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers "." OneDNN_VERSION)
      break()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
                                  VERSION_VAR OneDNN_VERSION)
if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES IMPORTED_LOCATION ${OneDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE_DIR})
endif()
