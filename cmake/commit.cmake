# cmake -DSOURCE=... -DHEADER=... -P commit.cmake: writes the commit that is being built into a header, at
# every build, touching the file only when it changes. A change of documents or results does not make the
# build dirty: they cannot change what it computes.
find_program(GIT git)
set(commit unknown)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --short=7 HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    execute_process(COMMAND ${GIT} status --porcelain -- . ":!bench/results" ":!docs" ":!*.md"
      WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes ERROR_QUIET)
    set(commit ${head})
    if(changes)
      string(APPEND commit -dirty)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define TANDEM_COMMIT \"@commit@\"\n" @ONLY)
