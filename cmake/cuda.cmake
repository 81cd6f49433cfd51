# Finds nvcc and the CUTLASS headers, turns the CUDA language on and sets the flags of every .cu file.

# nvcc is often installed without being on PATH.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
endif()
# One architecture, given by flag below: CMake 3.24 has no name for "sm_90a and no PTX".
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# Keeps what ptxas says beside each object, where scripts/check_kernels reads it.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/scripts/nvcc_log ${ccache})
# -DNDEBUG whatever the build type: an assert in device code serialises wgmma (ptxas C7510).
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:\
-gencode arch=compute_90a,code=sm_90a -O3 -DNDEBUG -lineinfo --expt-relaxed-constexpr \
-Xptxas -v,-warn-spills -Xcompiler -Wall,-Wextra>")
# A seventh of the bytes, most of which are line numbers for profilers. Drivers from 12.4 on read it.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()

# CUTLASS 4.2: CUTLASS_PATH (CMake variable or environment), else .venv, else fetched when asked for.
file(GLOB venv_cutlass ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/cutlass_library/source)
find_path(TANDEM_CUTLASS_INCLUDE_DIR cute/tensor.hpp
  PATHS ${CUTLASS_PATH} $ENV{CUTLASS_PATH} ${venv_cutlass} PATH_SUFFIXES include NO_DEFAULT_PATH)
if(NOT TANDEM_CUTLASS_INCLUDE_DIR AND TANDEM_FETCH_CUTLASS)
  include(FetchContent)
  FetchContent_Declare(cutlass GIT_REPOSITORY https://github.com/NVIDIA/cutlass.git
    GIT_TAG v4.2.1 GIT_SHALLOW ON
    SOURCE_SUBDIR include)  # headers only: a folder without a CMakeLists.txt
  FetchContent_MakeAvailable(cutlass)
  set(TANDEM_CUTLASS_INCLUDE_DIR ${cutlass_SOURCE_DIR}/include CACHE PATH "" FORCE)
endif()
if(NOT TANDEM_CUTLASS_INCLUDE_DIR)
  message(FATAL_ERROR "The CUDA backend needs the CUTLASS 4.2 headers. Run scripts/bootstrap, or set "
    "CUTLASS_PATH to a checkout, or configure with -DTANDEM_FETCH_CUTLASS=ON.")
endif()
add_library(tandem_cutlass INTERFACE)
# CUTLASS includes libcu++, which CUDA 13 keeps in a folder that only nvcc knows.
target_include_directories(tandem_cutlass SYSTEM INTERFACE ${TANDEM_CUTLASS_INCLUDE_DIR}
  ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS}/cccl)
