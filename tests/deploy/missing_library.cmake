# Configures this source tree as if a library or the compiler were not installed, and looks for the advice that the
# user gets.
# cmake -DSOURCE=<source folder> -DPYTHON=<interpreter with torch> -P missing_library.cmake
execute_process(COMMAND mktemp -d OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
foreach(pair "Protobuf=libprotobuf-dev" "gRPC=libgrpc[+][+]-dev" "CLI11=libcli11-dev" "RocksDB=librocksdb-dev")
  string(REGEX MATCH "^[^=]+" package ${pair})
  string(REGEX REPLACE "^[^=]+=" "" debian ${pair})
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${folder}/${package} -G Ninja -DPython_EXECUTABLE=${PYTHON}
            -DEGERIA_BUILD_TESTS=OFF -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")  # as it was before it was broken into lines
  if(NOT failed OR NOT errors MATCHES "${package} is missing[.] On Debian: apt-get install ${debian}"
     OR NOT errors MATCHES "`bash deploy/install[.]sh`")
    message(SEND_ERROR "without ${package} configuring says:\n${errors}")
  endif()
endforeach()
foreach(name "c++" "x86_64-linux-gnu-g++")  # the second one as Python's build tools say it
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CC CXX=${name} PATH=${folder} ${CMAKE_COMMAND} -S ${SOURCE}
            -B ${folder}/bare -G Ninja
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
  string(FIND "${errors}" "The C++ compiler ${name} is missing. On Debian: apt-get install g++." found)
  if(NOT failed OR found EQUAL -1)
    message(SEND_ERROR "without a compiler configuring says:\n${errors}")
  endif()
endforeach()
file(REMOVE_RECURSE ${folder})
