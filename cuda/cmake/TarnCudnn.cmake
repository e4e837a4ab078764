# TarnCudnn.cmake - decides whether convolutions on GPUs may run on cuDNN.
#
#   TARN_CUDNN   AUTO  if cuDNN's headers, version 9 or later, are found; ON requires them; OFF
# Only headers are needed to build: the library is loaded at run time (cuda/library.h).
# Sets TARN_HAVE_CUDNN to 1 or 0, TARN_CUDNN_INCLUDE, and TARN_CUDNN_WHY for the summary.
set(TARN_CUDNN AUTO CACHE STRING "cuDNN for convolutions on GPUs: AUTO, ON or OFF")
set_property(CACHE TARN_CUDNN PROPERTY STRINGS AUTO ON OFF)
set(TARN_CUDNN_HEADERS "" CACHE PATH "Folder with cudnn_version.h, if not the toolkit's")

if(NOT TARN_CUDNN MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TARN_CUDNN must be AUTO, ON or OFF; got '${TARN_CUDNN}'")
endif()

set(TARN_HAVE_CUDNN 0)
set(TARN_CUDNN_WHY "off (TARN_CUDNN=OFF)")
if(TARN_CUDA_MODE STREQUAL "OFF")
  set(TARN_CUDNN_WHY "off: no CUDA")
elseif(NOT TARN_CUDNN STREQUAL "OFF")
  find_path(TARN_CUDNN_INCLUDE cudnn_version.h
            HINTS ${TARN_CUDNN_HEADERS} ${TARN_CUDA_INCLUDE} ENV CUDNN_PATH
            PATH_SUFFIXES include NO_CACHE)
  if(TARN_CUDNN_INCLUDE)
    file(STRINGS ${TARN_CUDNN_INCLUDE}/cudnn_version.h lines REGEX "#define CUDNN_M[AI][JN]OR ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" version "${lines}")
    if(version VERSION_LESS 9)
      set(TARN_CUDNN_WHY "off: headers of version ${version} found, 9 or later is needed")
    else()
      set(TARN_HAVE_CUDNN 1)
      set(TARN_CUDNN_WHY "headers ${version}, loaded at run time")
    endif()
  else()
    set(TARN_CUDNN_WHY "off: no cudnn_version.h found; convolutions run on tarn's own kernels")
  endif()
  if(TARN_CUDNN STREQUAL "ON" AND NOT TARN_HAVE_CUDNN)
    message(FATAL_ERROR "TARN_CUDNN=ON, but ${TARN_CUDNN_WHY}")
  endif()
endif()
