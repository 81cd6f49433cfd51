# cmake -DSOURCE=<root> -DOUTPUT=<commit.h> -P write_commit.cmake: runs at every build, rewrites only a change.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=7 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(commit unknown)
else()
  # Results, docs and README may differ from what was built: they quote it.
  execute_process(COMMAND git -C ${SOURCE} status --porcelain -- :/ :!/bench/results :!/docs :!/README.md
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit -dirty)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TANDEM_COMMIT \"${commit}\"\n")
