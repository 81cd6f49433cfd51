# cmake --install: headers, the library, the program and a find_package(tandem) package.
#
# The library is static. Its tests and tools use internal functions (the checked problem, one backend, one
# variant), so a shared library with hidden symbols would need a second build of everything, and what is
# tested would not be what is installed. A static one is a single build, and a user's program carries it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)

set(TANDEM_WITH_ONEDNN OFF)
if(TANDEM_ONEDNN AND TANDEM_ONEDNN_INCLUDE AND TANDEM_ONEDNN_LIBRARY)  # as src/CMakeLists.txt found it
  set(TANDEM_WITH_ONEDNN ON)
endif()

install(TARGETS tandem EXPORT tandem ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TANDEM_TOOLS)
  set_target_properties(tandem_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS tandem_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TANDEM_CUDA)
    install(TARGETS tandem_bench LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endif()
install(DIRECTORY include/tandem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT tandem NAMESPACE tandem:: FILE tandem-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/tandem-config.cmake.in
  ${PROJECT_BINARY_DIR}/tandem-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tandem-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tandem-config.cmake ${PROJECT_BINARY_DIR}/tandem-config-version.cmake
  DESTINATION ${package_dir})
