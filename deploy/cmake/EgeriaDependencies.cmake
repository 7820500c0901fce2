# The order matters: Python, Protobuf, Torch, gRPC, then the rest. find_package(Torch) defines a hollow
# protobuf::libprotobuf if Protobuf was not found before it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(Protobuf REQUIRED)

include(EgeriaTorch)
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

if(EGERIA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
