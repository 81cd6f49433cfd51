# TANDEM_TOOLS=auto, as in the Python package: ON where the three libraries of the program are found.
set(TANDEM_TOOLS ON)
foreach(package CLI11 nlohmann_json fmt)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    set(TANDEM_TOOLS OFF)
    message(WARNING "tandem: without the program `tandem`: no ${package} "
      "(Debian: libcli11-dev nlohmann-json3-dev libfmt-dev)")
  endif()
endforeach()
