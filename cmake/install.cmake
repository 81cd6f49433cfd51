# cmake --install: headers, the library shared and static, the program, and packages for find_package(tandem) and
# pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)

set(TANDEM_WITH_ONEDNN OFF)
if(TANDEM_ONEDNN AND TANDEM_ONEDNN_INCLUDE AND TANDEM_ONEDNN_LIBRARY)  # as src/CMakeLists.txt found it
  set(TANDEM_WITH_ONEDNN ON)
endif()

# Two sets of targets: what the static library is made of must be found where it is linked, and there alone.
install(TARGETS tandem_shared EXPORT tandem LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tandem EXPORT tandem_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TANDEM_TOOLS)
  set_target_properties(tandem_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS tandem_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TANDEM_CUDA)
    install(TARGETS tandem_bench LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endif()
install(DIRECTORY include/tandem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE NOTICE.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT tandem NAMESPACE tandem:: FILE tandem-targets.cmake DESTINATION ${package_dir})
install(EXPORT tandem_static NAMESPACE tandem:: FILE tandem-static-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/tandem-config.cmake.in
  ${PROJECT_BINARY_DIR}/tandem-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tandem-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tandem-config.cmake ${PROJECT_BINARY_DIR}/tandem-config-version.cmake
  DESTINATION ${package_dir})
# why a path from the file: the folder may be moved, or installed with DESTDIR.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/tandem.pc.in ${PROJECT_BINARY_DIR}/tandem.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tandem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
