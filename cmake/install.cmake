include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cuttle)

install(TARGETS cuttle EXPORT cuttle-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/cuttle TYPE INCLUDE)
if(TARGET cuttle_cli)
  install(TARGETS cuttle_cli)
endif()

install(EXPORT cuttle-targets NAMESPACE cuttle:: DESTINATION ${package_dir})
configure_package_config_file(cmake/cuttle-config.cmake.in cuttle-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(cuttle-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cuttle-config.cmake ${PROJECT_BINARY_DIR}/cuttle-config-version.cmake
              cmake/find_cuda_toolkit.cmake DESTINATION ${package_dir})
