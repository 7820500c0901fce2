# The order matters: Python, Protobuf, Torch, gRPC, then the rest. find_package(Torch) defines a hollow
# protobuf::libprotobuf if Protobuf was not found before it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(Protobuf REQUIRED)

if(NOT Torch_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch: run deploy/install.sh, "
                        "or pass -DPython_EXECUTABLE=... of an environment that has torch 2.13")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
find_package(Torch REQUIRED)
string(REGEX MATCH "^[0-9]+[.][0-9]+" EGERIA_TORCH_MINOR "${Torch_VERSION}")
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(RocksDB REQUIRED)
find_library(EGERIA_XXHASH xxhash REQUIRED)
add_library(egeria_xxhash INTERFACE)
target_link_libraries(egeria_xxhash INTERFACE ${EGERIA_XXHASH})

# Everything that uses LibTorch links egeria::torch and includes neither protobuf, gRPC nor spdlog: the wheel
# ships its own protobuf and fmt headers, which would shadow the system's.
add_library(egeria_torch INTERFACE)
add_library(egeria::torch ALIAS egeria_torch)
target_link_libraries(egeria_torch INTERFACE ${TORCH_LIBRARIES})

if(EGERIA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
