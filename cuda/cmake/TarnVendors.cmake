# TarnVendors.cmake - decides whether GPUs may use NVIDIA's cuDNN (convolutions, attention) and
# NCCL (ranks).
#
#   TARN_CUDNN, TARN_NCCL   AUTO  if its header is found and is new enough
#                           ON    it must be, and CUDA too; else configuring fails
#                           OFF
# Only headers are needed to build: the libraries are loaded at run time (cuda/library.h).
# Sets TARN_HAVE_<NAME> to 1 or 0, TARN_<NAME>_INCLUDE, and TARN_<NAME>_WHY for the summary.

# tarn_find_vendor(TITLE HEADER OLDEST WITHOUT): one library. HEADER has its version, which must be
# OLDEST or later; WITHOUT says what is lost where there is none.
function(tarn_find_vendor title header oldest without)
  string(TOUPPER ${title} name)
  set(TARN_${name} AUTO CACHE STRING "${title} on GPUs: AUTO, ON or OFF")
  set_property(CACHE TARN_${name} PROPERTY STRINGS AUTO ON OFF)
  set(TARN_${name}_HEADERS "" CACHE PATH "Folder with ${header}, if not the toolkit's")
  set(wanted "${TARN_${name}}")
  if(NOT wanted MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TARN_${name} must be AUTO, ON or OFF; got '${wanted}'")
  endif()

  set(have 0)
  if(wanted STREQUAL "OFF")
    set(why "off (TARN_${name}=OFF)")
  elseif(TARN_CUDA_MODE STREQUAL "OFF")
    set(why "off: no CUDA")
    if(wanted STREQUAL "ON")
      message(FATAL_ERROR "TARN_${name}=ON needs TARN_CUDA=ON or EMU, but CUDA is ${TARN_CUDA_WHY}")
    endif()
  else()
    find_path(TARN_${name}_INCLUDE ${header}
              HINTS ${TARN_${name}_HEADERS} ${TARN_CUDA_INCLUDE} ENV ${name}_PATH
              PATH_SUFFIXES include NO_CACHE)
    string(REGEX REPLACE "/$" "" folder "${TARN_${name}_INCLUDE}")
    if(folder)
      file(STRINGS "${folder}/${header}" lines REGEX "#define ${name}_M[AI][JN]OR ")
      string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" version "${lines}")
      if(version VERSION_LESS oldest)
        set(why "off: version ${version} found in ${folder}, ${oldest} or later is needed")
      else()
        set(have 1)
        set(why "${version}, headers from ${folder}; loaded at run time")
      endif()
    else()
      set(why "off: no ${header} found; ${without}")
    endif()
    if(wanted STREQUAL "ON" AND NOT have)
      message(FATAL_ERROR "TARN_${name}=ON, but it is ${why}")
    endif()
    set(TARN_${name}_INCLUDE "${folder}" PARENT_SCOPE)
  endif()
  set(TARN_HAVE_${name} ${have} PARENT_SCOPE)
  set(TARN_${name}_WHY "${why}" PARENT_SCOPE)
endfunction()

tarn_find_vendor(cuDNN cudnn_version.h 9 "convolutions and attention run on tarn's own kernels")
tarn_find_vendor(NCCL nccl.h 2.18 "ranks on GPUs cannot exchange tensors")

# tarn_vendor_headers(TARGET): for sources that call these libraries, or stand in for them.
function(tarn_vendor_headers target)
  foreach(name CUDNN NCCL)
    target_compile_definitions(${target} PRIVATE TARN_HAVE_${name}=${TARN_HAVE_${name}})
    if(TARN_HAVE_${name})
      target_include_directories(${target} SYSTEM PRIVATE ${TARN_${name}_INCLUDE})
    endif()
  endforeach()
endfunction()
