# The library of the Python package, built before: scripts/wheel takes what the tests have compiled.
add_library(tandem_portable SHARED IMPORTED GLOBAL)
set_target_properties(tandem_portable PROPERTIES IMPORTED_LOCATION ${TANDEM_PREBUILT}/tandem/libtandem_portable.so)
target_include_directories(tandem_portable INTERFACE ${PROJECT_SOURCE_DIR}/include)
