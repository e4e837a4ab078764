# TarnTargets.cmake - compile flags, the include tree, and the few helpers every folder uses.

include(GNUInstallDirs)

# Includes read "tarn/core/tensor.h" although the folders stand at the top level: the build tree
# holds a folder include/tarn of symbolic links, so no generic name leaks to those who link tarn.
set(TARN_INCLUDE_TREE ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${TARN_INCLUDE_TREE}/tarn)
foreach(folder core autograd nn optim dist data cuda apps tests)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${TARN_INCLUDE_TREE}/tarn/${folder} SYMBOLIC)
endforeach()

# tarn.h: what a user of the library calls. Headers for those who extend it are left out.
set(TARN_FOLDERS core autograd nn optim dist data)
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/nn/models/*.h
     ${PROJECT_SOURCE_DIR}/optim/*.h ${PROJECT_SOURCE_DIR}/data/*.h)
set(TARN_INCLUDES "")
foreach(header
        core/error.h core/dtype.h core/shape.h core/device.h core/allocator.h core/tensor.h
        core/factory.h core/random.h core/parallel.h core/math_mode.h
        core/profiler.h core/leak_guard.h core/print.h
        core/serialize.h core/checkpoint.h core/checkpoint_manager.h
        autograd/grad_mode.h autograd/functions.h autograd/engine.h autograd/custom.h
        autograd/anomaly.h autograd/autocast.h autograd/recompute.h
        autograd/saved_tensor_hooks.h autograd/gradcheck.h ${headers}
        dist/error.h dist/environment.h dist/group.h dist/init.h dist/local_group.h
        dist/gloo_group.h dist/nccl_group.h dist/store.h dist/file_store.h dist/tcp_store.h
        dist/ddp.h dist/zero.h dist/hooks.h dist/join.h dist/balance.h dist/data_parallel.h
        dist/sync_batch_norm.h dist/agree.h)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${header})
    string(APPEND TARN_INCLUDES "#include \"tarn/${header}\"\n")
  endif()
endforeach()
string(STRIP "${TARN_INCLUDES}" TARN_INCLUDES)
configure_file(${PROJECT_SOURCE_DIR}/core/cmake/tarn.h.in ${TARN_INCLUDE_TREE}/tarn/tarn.h @ONLY)

# Flags for tarn's own sources. errno and floating-point traps off lets the compiler vectorise;
# NaN and infinity keep their meaning, so never -ffast-math.
add_library(tarn_flags INTERFACE)
target_compile_features(tarn_flags INTERFACE cxx_std_20)
target_compile_options(tarn_flags INTERFACE -Wall -Wextra -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees an overlap in every "text" + std::string (gcc.gnu.org/PR105651).
  target_compile_options(tarn_flags INTERFACE -Wno-restrict)
endif()
set(TARN_LIBRARY_FLAGS $<$<CONFIG:Release>:-O3>)
if(TARN_WERROR)
  target_compile_options(tarn_flags INTERFACE -Werror)
endif()
if(TARN_ASSERTS OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(tarn_flags INTERFACE TARN_ENABLE_ASSERTS=1)
endif()
# Beside AddressSanitizer these find little for a fifth of the compile time: a null pointer ends the
# process anyway, and where an overflown one leads is seen.
set(TARN_QUICK_SANITIZERS -fno-sanitize=null,object-size,vptr,return,pointer-overflow,builtin)
if(TARN_SANITIZE)
  target_compile_options(tarn_flags INTERFACE -fsanitize=${TARN_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=undefined)
  target_link_options(tarn_flags INTERFACE -fsanitize=${TARN_SANITIZE})
  if(TARN_SANITIZE MATCHES "address")
    target_compile_options(tarn_flags INTERFACE ${TARN_QUICK_SANITIZERS})
  endif()
endif()

# Kernel files (core/cpu) are compiled for the processor named; the rest stays baseline x86-64.
set(TARN_KERNEL_FLAGS ${TARN_LIBRARY_FLAGS} -march=${TARN_CPU})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND TARN_KERNEL_FLAGS -mprefer-vector-width=512)
endif()

# tarn_precompile(TARGET header...): the standard library's headers, and these, are compiled once for
# a target's sources with no flags of their own. tarn's own headers are not among them: each includes
# what it needs, as a build with TARN_PCH=OFF shows.
function(tarn_precompile target)
  if(NOT TARN_PCH)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE
                            <algorithm> <cmath> <cstring> <functional> <map> <memory> <mutex> <optional>
                            <span> <sstream> <string> <thread> <unordered_map> <vector> ${ARGN})
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(flags ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    if(flags)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target}
                                  PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # The mistake of -Wrestrict above in other words, as g++ forgets which headers are the system's.
    # A build with TARN_PCH=OFF heeds these warnings.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow
                                             -Wno-stringop-overread)
  endif()
endfunction()

# Adds every .cpp of the calling folder to the library.
function(tarn_add_folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  target_sources(tarn PRIVATE ${sources})
endfunction()

# Links the library's dependencies and fixes what users of tarn::tarn see.
function(tarn_finish_library)
  target_include_directories(tarn PUBLIC $<BUILD_INTERFACE:${TARN_INCLUDE_TREE}>
                                         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(tarn PUBLIC cxx_std_20)
  # Those who link tarn need what its binary calls, but not its header-only tools.
  target_link_libraries(tarn PRIVATE Threads::Threads OpenMP::OpenMP_CXX ZLIB::ZLIB
                                     $<BUILD_INTERFACE:tarn_flags> $<BUILD_INTERFACE:Eigen3::Eigen>
                                     $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
  target_compile_options(tarn PRIVATE ${TARN_LIBRARY_FLAGS})
  tarn_precompile(tarn)
  set_target_properties(tarn PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  get_target_property(type tarn TYPE)
  if(type STREQUAL "SHARED_LIBRARY")  # calls inside the library need not be replaceable from outside
    target_compile_options(tarn PRIVATE -fno-semantic-interposition)
  endif()
  if(TARN_SANITIZE)
    target_link_options(tarn PUBLIC -fsanitize=${TARN_SANITIZE})
  endif()
  if(OneDNN_FOUND)
    target_link_libraries(tarn PRIVATE OneDNN::OneDNN)
    target_compile_definitions(tarn PRIVATE TARN_HAVE_DNNL=1)
  endif()
endfunction()

function(tarn_print_summary)
  if(OneDNN_FOUND)
    set(dnnl "${OneDNN_VERSION}")
  else()
    set(dnnl "not found: bf16, and convolutions other than 3x3 and 1x1, are slower (libdnnl-dev)")
  endif()
  message(STATUS "tarn ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, kernels for ${TARN_CPU}")
  message(STATUS "  oneDNN      ${dnnl}")
  message(STATUS "  CUDA        ${TARN_CUDA_WHY}")
  message(STATUS "  cuDNN       ${TARN_CUDNN_WHY}")
  message(STATUS "  NCCL        ${TARN_NCCL_WHY}")
  message(STATUS "  Gloo        ${TARN_GLOO_WHY}")
  message(STATUS "  Eigen       ${Eigen3_VERSION}")
  message(STATUS "  tests ${TARN_BUILD_TESTS}, apps ${TARN_BUILD_APPS}, sanitizers '${TARN_SANITIZE}'")
endfunction()
