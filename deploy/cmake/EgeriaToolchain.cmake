# Language level, warnings, sanitizers, and the two accelerators of a build: ccache and mold.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Files of programs are compiled as those of libraries are, so that they can share a precompiled header.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-pthread>)
# By default GCC looks for garbage whenever it has taken some memory, which costs a test program a fifth of its time.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576>)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(EGERIA_CCACHE ccache)
if(EGERIA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need the two sloppiness flags; base_dir lets two checkouts share one cache. With DEPEND what a
  # file includes is read from the list that the compiler writes, so that nothing is preprocessed for the cache alone.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
      ${EGERIA_CCACHE})
endif()
find_program(EGERIA_MOLD mold)
if(EGERIA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(EGERIA_THREAD_SAFETY AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "EGERIA_THREAD_SAFETY needs clang: use the preset thread-safety")
endif()

add_library(egeria_options INTERFACE)
target_compile_options(egeria_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(EGERIA_SANITIZER STREQUAL "address")
  target_compile_options(egeria_options INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(EGERIA_SANITIZER STREQUAL "thread")
  # Protobuf's map fields have two members more where this macro is defined, and the system's libprotobuf does
  # not know them. libstdc++ needs the other one, or its shared_ptr counts in a way that looks like a race.
  target_compile_options(egeria_options INTERFACE
    -fsanitize=thread -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1 -DEGERIA_THREAD_SANITIZER)
  add_link_options(-fsanitize=thread)
elseif(EGERIA_SANITIZER)
  message(FATAL_ERROR "EGERIA_SANITIZER is '${EGERIA_SANITIZER}': use 'address', 'thread' or leave it empty")
endif()

# A test program costs more time to compile than to run: the code under test is optimised, the program itself is not.
add_library(egeria_test_options INTERFACE)
target_link_libraries(egeria_test_options INTERFACE egeria_options)
target_compile_options(egeria_test_options INTERFACE -O0)
