# TarnNccl.cmake - decides whether ranks on GPUs may talk over NCCL.
#
#   TARN_NCCL   AUTO  if nccl.h, version 2.18 or later, is found; ON requires it; OFF
# Only the header is needed to build: the library is loaded at run time (cuda/library.h).
# Sets TARN_HAVE_NCCL to 1 or 0, TARN_NCCL_INCLUDE, and TARN_NCCL_WHY for the summary.
set(TARN_NCCL AUTO CACHE STRING "NCCL between GPUs: AUTO, ON or OFF")
set_property(CACHE TARN_NCCL PROPERTY STRINGS AUTO ON OFF)
set(TARN_NCCL_HEADERS "" CACHE PATH "Folder with nccl.h, if not the toolkit's")

if(NOT TARN_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TARN_NCCL must be AUTO, ON or OFF; got '${TARN_NCCL}'")
endif()

set(TARN_HAVE_NCCL 0)
set(TARN_NCCL_WHY "off (TARN_NCCL=OFF)")
if(TARN_CUDA_MODE STREQUAL "OFF")
  set(TARN_NCCL_WHY "off: no CUDA")
elseif(NOT TARN_NCCL STREQUAL "OFF")
  find_path(TARN_NCCL_INCLUDE nccl.h
            HINTS ${TARN_NCCL_HEADERS} ${TARN_CUDA_INCLUDE} ENV NCCL_PATH
            PATH_SUFFIXES include NO_CACHE)
  if(TARN_NCCL_INCLUDE)
    file(STRINGS ${TARN_NCCL_INCLUDE}/nccl.h lines REGEX "#define NCCL_M[AI][JN]OR ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" version "${lines}")
    if(version VERSION_LESS 2.18)
      set(TARN_NCCL_WHY "off: header of version ${version} found, 2.18 or later is needed")
    else()
      set(TARN_HAVE_NCCL 1)
      set(TARN_NCCL_WHY "header ${version}, loaded at run time")
    endif()
  else()
    set(TARN_NCCL_WHY "off: no nccl.h found; ranks on GPUs cannot exchange tensors")
  endif()
  if(TARN_NCCL STREQUAL "ON" AND NOT TARN_HAVE_NCCL)
    message(FATAL_ERROR "TARN_NCCL=ON, but ${TARN_NCCL_WHY}")
  endif()
endif()

# tarn_vendor_headers(TARGET): for sources that call cuDNN or NCCL, or stand in for them.
function(tarn_vendor_headers target)
  target_compile_definitions(${target} PRIVATE TARN_HAVE_CUDNN=${TARN_HAVE_CUDNN}
                                               TARN_HAVE_NCCL=${TARN_HAVE_NCCL})
  if(TARN_HAVE_CUDNN)
    target_include_directories(${target} SYSTEM PRIVATE ${TARN_CUDNN_INCLUDE})
  endif()
  if(TARN_HAVE_NCCL)
    target_include_directories(${target} SYSTEM PRIVATE ${TARN_NCCL_INCLUDE})
  endif()
endfunction()
