# TarnCuda.cmake - decides what "cuda" means in this build.
#
#   TARN_CUDA   OFF   nothing; device "cuda" is an error that says so
#               ON    kernels by nvcc, a CUDA toolkit is required
#               EMU   the same kernels by the host compiler, run by cuda/emu; needs the toolkit's
#                     headers only
#               AUTO  ON if a toolkit is found, else OFF
# Sets TARN_CUDA_MODE to OFF, ON or EMU, and TARN_CUDA_WHY to a sentence for the summary.
set(TARN_CUDA AUTO CACHE STRING "CUDA back end: AUTO, ON, OFF, or EMU (run kernels on the CPU)")
set_property(CACHE TARN_CUDA PROPERTY STRINGS AUTO ON OFF EMU)
set(TARN_CUDA_ARCHITECTURES "" CACHE STRING "As CMAKE_CUDA_ARCHITECTURES; empty: 80, 90 and PTX")
option(TARN_PTXAS_VERBOSE "Print registers and spills of every kernel while building" OFF)
set(TARN_CUDA_HEADERS "" CACHE PATH "Folder with cuda_runtime.h, where no toolkit is installed")

if(NOT TARN_CUDA MATCHES "^(AUTO|ON|OFF|EMU)$")
  message(FATAL_ERROR "TARN_CUDA must be AUTO, ON, OFF or EMU; got '${TARN_CUDA}'")
endif()

set(TARN_CUDA_MODE OFF)
set(TARN_CUDA_WHY "off (TARN_CUDA=OFF)")
if(TARN_CUDA STREQUAL "EMU")
  find_package(CUDAToolkit 12.4 QUIET)
  find_path(TARN_CUDA_INCLUDE cuda_runtime.h HINTS ${TARN_CUDA_HEADERS} ENV TARN_CUDA_HEADERS
            ${CUDAToolkit_INCLUDE_DIRS}
            NO_CACHE)
  if(NOT TARN_CUDA_INCLUDE)
    message(FATAL_ERROR "TARN_CUDA=EMU needs the CUDA toolkit's headers: install a toolkit, or set "
                        "TARN_CUDA_HEADERS to a folder with cuda_runtime.h")
  endif()
  set(TARN_CUDA_MODE EMU)
  set(TARN_CUDA_WHY "emulated on the CPU, headers from ${TARN_CUDA_INCLUDE}")
elseif(NOT TARN_CUDA STREQUAL "OFF")
  if(TARN_CUDA STREQUAL "ON")
    find_package(CUDAToolkit 12.4 REQUIRED)
  else()
    find_package(CUDAToolkit 12.4 QUIET)
  endif()
  if(CUDAToolkit_FOUND)
    if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
      set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    if(TARN_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES ${TARN_CUDA_ARCHITECTURES})
    else()
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90")  # 90: machine code and PTX for what comes after
    endif()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(TARN_CUDA_INCLUDE ${CUDAToolkit_INCLUDE_DIRS})
    set(TARN_CUDA_MODE ON)
    set(TARN_CUDA_WHY "toolkit ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
  else()
    set(TARN_CUDA_WHY "off: no CUDA toolkit of version 12.4 or later found")
  endif()
endif()

# tarn_emulated_kernel_flags(OBJECTS): flags of an object library of kernels for the emulation.
function(tarn_emulated_kernel_flags objects)
  set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${objects} PRIVATE tarn_flags)
  target_include_directories(${objects} PRIVATE ${TARN_INCLUDE_TREE})
  target_include_directories(${objects} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/cuda/emu/include)
  target_include_directories(${objects} SYSTEM PRIVATE ${TARN_CUDA_INCLUDE})
  target_compile_definitions(${objects} PRIVATE TARN_CUDA_EMU=1)
  target_compile_options(${objects} PRIVATE -O1 -march=x86-64-v3 -ffp-contract=off
                                            -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()

# tarn_cuda_sources(TARGET files.cu...): adds kernels to a target, compiled as this build does.
function(tarn_cuda_sources target)
  get_target_property(name ${target} NAME)
  set(kernels ${name}_kernels)
  set(sources "")
  foreach(file ${ARGN})
    if(TARN_CUDA_MODE STREQUAL "EMU")
      # A source has one language per folder, so the emulation compiles a line that includes it.
      get_filename_component(base ${file} NAME_WE)
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/${name}_emu/${base}.emu.cpp)
      file(RELATIVE_PATH include ${PROJECT_SOURCE_DIR} ${file})  # equal in every tree: for ccache
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"tarn/${include}\"\n" @ONLY)
      list(APPEND sources ${wrapper})
    else()
      list(APPEND sources ${file})
    endif()
  endforeach()
  add_library(${kernels} OBJECT ${sources})
  if(TARN_CUDA_MODE STREQUAL "EMU")
    tarn_emulated_kernel_flags(${kernels})
  else()
    set_target_properties(${kernels} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                                                POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${kernels} PRIVATE ${TARN_INCLUDE_TREE})
    target_compile_options(${kernels} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall>")
    if(TARN_PTXAS_VERBOSE)
      target_compile_options(${kernels} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
    endif()
    if(TARN_WERROR)
      target_compile_options(${kernels} PRIVATE
                             "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
    endif()
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${kernels}>)
endfunction()
