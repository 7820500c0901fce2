# LibTorch, as the Python package `torch` brings it.
#   egeria::torch         for everything that computes with tensors. Whoever links it includes neither protobuf,
#                         gRPC nor spdlog: the wheel ships its own protobuf and fmt headers, which would shadow the
#                         system's.
#   egeria::torch_device  for programs that compute on an accelerator, where this torch supports one: has them load
#                         that part of it, to which nothing in their own code refers
# Sets TORCH_INSTALL_PREFIX, Torch_VERSION, EGERIA_TORCH_MINOR and EGERIA_TORCH_CUDA.
#
# A CPU build of torch is described by its own CMake package. That of a build for CUDA wants the CUDA toolkit,
# compiler and all, which few who installed such a torch from a package index have, and which no source here
# needs; so its libraries are named here. Torch_DIR overrules both.
add_library(egeria_torch INTERFACE)
add_library(egeria::torch ALIAS egeria_torch)
add_library(egeria_torch_device INTERFACE)
add_library(egeria::torch_device ALIAS egeria_torch_device)

if(NOT Torch_DIR)
  # torch is found without being imported, since a torch for CUDA can be built against where CUDA's libraries are not.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util, os, runpy
folder = os.path.dirname(importlib.util.find_spec('torch').origin)
print(folder, runpy.run_path(folder + '/version.py')['__version__'], sep=';')"
    OUTPUT_VARIABLE torch_found OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch: run deploy/install.sh, "
                        "or pass -DPython_EXECUTABLE=... of an environment that has torch 2.13")
  endif()
  list(GET torch_found 0 torch_folder)
  list(GET torch_found 1 torch_version)
  list(PREPEND CMAKE_PREFIX_PATH ${torch_folder}/share/cmake)
  file(GLOB torch_device_libraries ${torch_folder}/lib/libtorch_cuda.so ${torch_folder}/lib/libtorch_hip.so
       ${torch_folder}/lib/libtorch_xpu.so)
endif()

if(torch_device_libraries)
  set(Torch_VERSION ${torch_version})
  set(TORCH_INSTALL_PREFIX ${torch_folder})
  foreach(library torch_cpu c10)
    add_library(egeria_${library} SHARED IMPORTED)
    set_target_properties(egeria_${library} PROPERTIES IMPORTED_LOCATION ${torch_folder}/lib/lib${library}.so)
    target_link_libraries(egeria_torch INTERFACE egeria_${library})
  endforeach()
  target_include_directories(egeria_torch SYSTEM INTERFACE
    ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include)
  target_compile_definitions(egeria_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  foreach(library ${torch_device_libraries})
    target_link_libraries(egeria_torch_device INTERFACE -Wl,--no-as-needed,${library},--as-needed)
  endforeach()
  message(STATUS "torch ${Torch_VERSION} with ${torch_device_libraries}")
else()
  find_package(Torch REQUIRED)
  target_link_libraries(egeria_torch INTERFACE ${TORCH_LIBRARIES})
endif()
string(REGEX MATCH "^[0-9]+[.][0-9]+" EGERIA_TORCH_MINOR "${Torch_VERSION}")
find_library(EGERIA_TORCH_CUDA torch_cuda PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
