# Compiles through ccache where it is installed, CUDA included (cmake/cuda.cmake).
find_program(TANDEM_CCACHE ccache)
set(ccache "")
if(TANDEM_CCACHE)
  # why sloppiness: without it ccache takes no file that uses a precompiled header.
  set(ccache ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TANDEM_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache})
  endif()
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
