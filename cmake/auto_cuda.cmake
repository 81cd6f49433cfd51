# TANDEM_CUDA=auto, as in the Python package: ON where scripts/cuda_tools finds nvcc, which then needs the CUTLASS headers.
execute_process(
  COMMAND bash -c "source scripts/cuda_tools && find_cuda_tools && echo \"$nvcc;$cutlass;$no_nvcc\""
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
list(GET found 0 nvcc)
list(GET found 1 cutlass)
list(GET found 2 no_nvcc)
set(TANDEM_CUDA OFF)
if(nvcc AND cutlass)
  set(TANDEM_CUDA ON)
  set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "")
  set(CUTLASS_PATH ${cutlass})
  message(STATUS "tandem: with CUDA (nvcc: ${nvcc}, CUTLASS: ${cutlass})")
elseif(nvcc)
  # why an error: a package without kernels on a machine that can compile them is found out at the first call only.
  message(FATAL_ERROR "tandem: ${nvcc} is here, the CUTLASS 4.2 headers are not. Set the environment variable "
    "CUTLASS_PATH to a checkout of them, or let scripts/bootstrap install them, or leave the kernels out by "
    "TANDEM_CUDA=off in the environment.")
else()
  message(STATUS "tandem: without CUDA: ${no_nvcc}")
endif()
