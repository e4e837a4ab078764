# TarnSanitizedKernels.cmake - tests of the emulated GPU whose kernels are watched by sanitizers:
#
#   test_cuda_asan, test_op_table_asan   AddressSanitizer and UBSan
#   test_cuda_tsan                       ThreadSanitizer
#
# Only kernels (and of the emulator what has to know) are compiled anew. They are linked before the
# library, which keeps what it has for everything else: some minutes less than a build with
# TARN_SANITIZE, in the same build folder. Not part of "all".

# tarn_sanitized_kernels(VARIANT TESTS flags...)
function(tarn_sanitized_kernels variant tests)
  foreach(library tarn test_cuda)
    set(kernels ${library}_kernels_${variant})
    get_target_property(sources ${library}_kernels SOURCES)
    add_library(${kernels} OBJECT EXCLUDE_FROM_ALL ${sources})
    tarn_emulated_kernel_flags(${kernels})
    # -w: instrumented code makes g++ warn of what is not there; the plain build warns as well.
    target_compile_options(${kernels} PRIVATE ${ARGN} -g1 -w)
  endforeach()

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/emu/*.cpp)
  set(watched ${ARGN})
  if("${ARGN}" MATCHES "thread")  # kernels are watched, their scheduler is not
    set(watched -DTARN_EMU_TSAN=1)
    foreach(source ${sources})
      file(STRINGS ${source} includes REGEX "emu/(block|thread_sanitizer)\\.h\"")
      if(NOT includes)
        list(REMOVE_ITEM sources ${source})
      endif()
    endforeach()
  endif()
  set(emulator tarn_emulator_${variant})
  add_library(${emulator} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${emulator} PRIVATE tarn_flags)
  target_include_directories(${emulator} PRIVATE ${TARN_INCLUDE_TREE})
  target_include_directories(${emulator} SYSTEM PRIVATE ${TARN_CUDA_INCLUDE})
  target_compile_definitions(${emulator} PRIVATE TARN_CUDA_EMU=1)
  target_compile_options(${emulator} PRIVATE ${watched} -g1 -w)
  tarn_vendor_headers(${emulator})

  foreach(test ${tests})
    set(objects $<TARGET_OBJECTS:tarn_kernels_${variant}> $<TARGET_OBJECTS:${emulator}>)
    if(test STREQUAL "test_cuda")
      list(APPEND objects $<TARGET_OBJECTS:test_cuda_kernels_${variant}>)
    endif()
    # Theirs come first: of a function that others have inline as well, the watched one is taken.
    add_executable(${test}_${variant} EXCLUDE_FROM_ALL ${objects} $<TARGET_OBJECTS:${test}>)
    target_link_libraries(${test}_${variant} PRIVATE tarn GTest::gtest)
    target_link_options(${test}_${variant} PRIVATE ${ARGN})
    set_target_properties(${test}_${variant} PROPERTIES LINKER_LANGUAGE CXX)
  endforeach()
  target_link_libraries(test_cuda_${variant} PRIVATE GTest::gtest_main)
endfunction()

# A third of the compile time: checks that are calls make smaller functions.
tarn_sanitized_kernels(asan "test_cuda;test_op_table"
                       -fsanitize=address,undefined -fno-sanitize-recover=undefined
                       ${TARN_QUICK_SANITIZERS}
                       -fno-sanitize=nonnull-attribute,returns-nonnull-attribute
                       -fno-sanitize-address-use-after-scope
                       "SHELL:--param asan-instrumentation-with-call-threshold=0" -fno-omit-frame-pointer)
tarn_sanitized_kernels(tsan test_cuda -fsanitize=thread)
