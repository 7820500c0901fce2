# This file says what is missing, and how to get it on Debian. It is read ahead of project().
function(egeria_missing what debian)
  message(FATAL_ERROR "${what} is missing. On Debian: apt-get install ${debian}. `bash deploy/install.sh` in "
                      "${CMAKE_SOURCE_DIR} installs, or names, everything that is missing, and with --tests "
                      "what the tests need.")
endfunction()

# CMake's own error would name no package. Python's build tools name a compiler in CXX, whether it is there or not.
if(NOT CMAKE_CXX_COMPILER)
  set(names c++ g++ clang++)
  if(NOT "$ENV{CXX}" STREQUAL "")
    separate_arguments(names UNIX_COMMAND "$ENV{CXX}")
    list(GET names 0 names)
  endif()
  find_program(EGERIA_FOUND_COMPILER NAMES ${names})
  mark_as_advanced(EGERIA_FOUND_COMPILER)
  if(NOT EGERIA_FOUND_COMPILER)
    list(GET names 0 names)
    egeria_missing("The C++ compiler ${names}" g++)
  endif()
endif()
