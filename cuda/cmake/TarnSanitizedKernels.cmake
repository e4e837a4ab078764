# TarnSanitizedKernels.cmake - the GPU's tests with sanitized kernels: test_cuda_asan, test_cuda_tsan,
# test_op_table_asan, test_op_table_tsan.
#
# Kernels and emulator are compiled anew, and linked before the library, which stays as it is: a
# fifth of the time that a build with TARN_SANITIZE takes. Not part of "all".

# tarn_sanitized_kernels(VARIANT flags...)
function(tarn_sanitized_kernels variant)
  set(objects "")
  foreach(library tarn test_cuda)
    if(NOT TARGET ${library}_kernels)
      continue()
    endif()
    set(kernels ${library}_kernels_${variant})
    get_target_property(sources ${library}_kernels SOURCES)
    add_library(${kernels} OBJECT EXCLUDE_FROM_ALL ${sources})
    tarn_emulated_kernel_flags(${kernels})
    target_compile_options(${kernels} PRIVATE ${ARGN} -g1)
    list(APPEND ${library}_objects $<TARGET_OBJECTS:${kernels}>)
  endforeach()

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/emu/*.cpp)
  set(emulator tarn_emulator_${variant})
  add_library(${emulator} OBJECT EXCLUDE_FROM_ALL ${sources})
  set_target_properties(${emulator} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${emulator} PRIVATE tarn_flags)
  target_include_directories(${emulator} PRIVATE ${TARN_INCLUDE_TREE})
  target_include_directories(${emulator} SYSTEM PRIVATE ${TARN_CUDA_INCLUDE})
  target_compile_definitions(${emulator} PRIVATE TARN_CUDA_EMU=1)
  tarn_vendor_headers(${emulator})
  if("${ARGN}" MATCHES "thread")  # kernels are watched, their scheduler is not
    target_compile_definitions(${emulator} PRIVATE TARN_EMU_TSAN=1)
  else()
    target_compile_options(${emulator} PRIVATE ${ARGN})
  endif()
  list(APPEND tarn_objects $<TARGET_OBJECTS:${emulator}>)

  foreach(test test_cuda test_op_table)
    set(name ${test}_${variant})
    add_executable(${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${test}> ${${test}_objects}
                           ${tarn_objects})
    target_link_libraries(${name} PRIVATE tarn GTest::gtest)
    target_link_options(${name} PRIVATE ${ARGN})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endforeach()
  target_link_libraries(test_cuda_${variant} PRIVATE GTest::gtest_main)
endfunction()

tarn_sanitized_kernels(asan -fsanitize=address,undefined -fno-sanitize-recover=undefined
                       -fno-omit-frame-pointer)
tarn_sanitized_kernels(tsan -fsanitize=thread)
