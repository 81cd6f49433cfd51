# Compiles through ccache where it is installed, CUDA included (cmake/cuda.cmake).
find_program(TANDEM_CCACHE ccache)
set(ccache "")
if(TANDEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # why sloppiness: without it ccache takes no file that uses a precompiled header.
  set(ccache ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TANDEM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache})
endif()
if(TANDEM_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
