# Three functions that every folder uses, so that targets look alike.
include(GoogleTest OPTIONAL)

# egeria_library(<name> [SOURCES ...] [PUBLIC dep...] [PRIVATE dep...])
# A static library egeria_<name> with the alias egeria::<name>. The one include root is the repository's.
function(egeria_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(egeria_${name} STATIC ${arg_SOURCES})
  add_library(egeria::${name} ALIAS egeria_${name})
  target_include_directories(egeria_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(egeria_${name} PUBLIC ${arg_PUBLIC} PRIVATE egeria_options ${arg_PRIVATE})
endfunction()

# egeria_binary(<file name> [SOURCES ...] [DEPS ...]): an executable in <build>/bin, installed into bin, or by
# `pip install` among the environment's scripts, from where it finds the libraries of the environment's torch.
function(egeria_binary name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE egeria_options ${arg_DEPS})
  if(SKBUILD)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "${EGERIA_TORCH_FROM_SCRIPTS}")
    install(TARGETS ${name} RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT programs)
  else()
    install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT programs)
  endif()
endfunction()

# egeria_test(<name> [SOURCES ...] [DEPS ...] [LABELS ...] [TIMEOUT s]): a GoogleTest program, one ctest entry.
function(egeria_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE egeria_options ${arg_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  foreach(source ${arg_SOURCES})
    set_property(GLOBAL APPEND PROPERTY EGERIA_TEST_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
endfunction()

# Fails the configure step when a *_test.cc below this folder belongs to no egeria_test.
function(egeria_require_all_tests_listed)
  get_property(listed GLOBAL PROPERTY EGERIA_TEST_SOURCES)
  file(GLOB_RECURSE present CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  foreach(source ${present})
    if(NOT source IN_LIST listed)
      message(FATAL_ERROR "${source} is in no egeria_test(): list it, or it never runs")
    endif()
  endforeach()
endfunction()
