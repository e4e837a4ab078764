# TarnInstall.cmake - what `cmake --install` puts where: library, headers, package files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tarn)

install(TARGETS tarn EXPORT tarnTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder ${TARN_FOLDERS})
  # core/cpu is how the kernels are made; nobody outside includes it.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tarn/${folder}
          FILES_MATCHING PATTERN "*.h" PATTERN "cpu" EXCLUDE PATTERN "cmake" EXCLUDE)
endforeach()
if(NOT TARN_CUDA_MODE STREQUAL "OFF")  # for those who write kernels of their own
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/cuda/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tarn/cuda
          FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN "emu" EXCLUDE PATTERN "cmake" EXCLUDE)
endif()
install(FILES ${TARN_INCLUDE_TREE}/tarn/tarn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tarn)

install(EXPORT tarnTargets NAMESPACE tarn:: DESTINATION ${package_dir})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/tarnConfig.cmake.in ${PROJECT_BINARY_DIR}/tarnConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tarnConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tarnConfig.cmake ${PROJECT_BINARY_DIR}/tarnConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindOneDNN.cmake
        DESTINATION ${package_dir})

# tarn.pc finds its prefix from where it stands, so that the tree can be moved.
file(RELATIVE_PATH TARN_PC_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
set(TARN_PC_PRIVATE "-lz -fopenmp -pthread")
if(OneDNN_FOUND)
  string(PREPEND TARN_PC_PRIVATE "-ldnnl ")
endif()
if(TARN_GLOO_FOUND)
  string(PREPEND TARN_PC_PRIVATE "-lgloo ")
endif()
if(TARN_CUDA_MODE STREQUAL "ON")
  string(APPEND TARN_PC_PRIVATE " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
get_target_property(type tarn TYPE)
set(TARN_PC_LIBS "")
if(type STREQUAL "STATIC_LIBRARY")
  set(TARN_PC_LIBS " ${TARN_PC_PRIVATE}")  # a static library brings nothing with it
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/tarn.pc.in ${PROJECT_BINARY_DIR}/tarn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tarn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
