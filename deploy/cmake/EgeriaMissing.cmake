# What is missing, and how to get it on Debian. This file is read ahead of project().
function(egeria_missing what debian)
  message(FATAL_ERROR "${what} is missing. On Debian: apt-get install ${debian}. `bash deploy/install.sh` in "
                      "${CMAKE_SOURCE_DIR} installs, or names, everything that is missing, and with --tests "
                      "what the tests need.")
endfunction()

# CMake's own error would name no package.
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  find_program(EGERIA_FOUND_COMPILER NAMES c++ g++ clang++)
  mark_as_advanced(EGERIA_FOUND_COMPILER)
  if(NOT EGERIA_FOUND_COMPILER)
    egeria_missing("A C++ compiler" g++)
  endif()
endif()
