# The library for the Python extension, built before: scripts/wheel takes what the tests have compiled.
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(tandem STATIC IMPORTED GLOBAL)
set_target_properties(tandem PROPERTIES IMPORTED_LOCATION ${TANDEM_LIBRARY})
target_include_directories(tandem INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(tandem INTERFACE OpenMP::OpenMP_CXX)
if(TANDEM_CUDA)
  target_link_libraries(tandem INTERFACE CUDA::cudart_static)
endif()
