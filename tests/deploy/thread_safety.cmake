# Lets clang check the use of locks in this source tree; see the preset thread-safety.
# cmake -DSOURCE=<source folder> -DBINARY=<build folder> -DPYTHON=<interpreter with torch> -P thread_safety.cmake
execute_process(
  COMMAND ${CMAKE_COMMAND} --preset thread-safety -B ${BINARY} -DPython_EXECUTABLE=${PYTHON}
  WORKING_DIRECTORY ${SOURCE} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --target thread_safety COMMAND_ERROR_IS_FATAL ANY)
