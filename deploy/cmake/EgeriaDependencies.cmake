# egeria_find(<package> DEBIAN <names> [find_package's arguments ...]): find_package, or a message that says
# which Debian packages bring it. A macro, as what find_package sets is wanted by the caller.
macro(egeria_find package debian_keyword debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    egeria_missing("${package}" "${debian}")
  endif()
endmacro()

# The order matters: Python, Protobuf, Torch, gRPC, then the rest. find_package(Torch) defines a hollow
# protobuf::libprotobuf if Protobuf was not found before it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
if(NOT Python_Development.Module_FOUND)
  egeria_missing("The header Python.h of ${Python_EXECUTABLE} (${Python_VERSION})" python3-dev)
endif()
egeria_find(Protobuf DEBIAN "libprotobuf-dev protobuf-compiler")

include(EgeriaTorch)
# Where torch lies beside the scripts of an environment: a virtual one, or Debian's own. The last is where it lies
# beside the folder to which auditwheel moves the programs (deploy/wheel.sh).
set(python_lib $ORIGIN/../lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR})
set(EGERIA_TORCH_FROM_SCRIPTS ${python_lib}/site-packages/torch/lib ${python_lib}/dist-packages/torch/lib
    $ORIGIN/../torch/lib)
if(NOT TORCH_INSTALL_PREFIX MATCHES "build-env|builds-v|^/tmp/")
  list(APPEND EGERIA_TORCH_FROM_SCRIPTS ${TORCH_INSTALL_PREFIX}/lib)  # an environment may use the torch of another
endif()
# A program looks for libraries of others in torch's folder and nowhere else. It has the same path in the build as where
# it is installed: CMake would lengthen the former by empty entries, which mean whatever folder a program is run in.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
if(NOT SKBUILD)  # there torch may lie in an environment that pip made for the build and removes
  set(CMAKE_INSTALL_RPATH ${TORCH_INSTALL_PREFIX}/lib)
endif()
egeria_find(gRPC DEBIAN "libgrpc++-dev" CONFIG)
egeria_find(OpenSSL DEBIAN "libssl-dev")
if(NOT TARGET gRPC::grpc_cpp_plugin)
  egeria_missing("gRPC's plugin for protoc" protobuf-compiler-grpc)
endif()
egeria_find(absl DEBIAN "libabsl-dev" CONFIG)
egeria_find(prometheus-cpp DEBIAN "prometheus-cpp-dev" CONFIG)
egeria_find(spdlog DEBIAN "libspdlog-dev" CONFIG)
egeria_find(yaml-cpp DEBIAN "libyaml-cpp-dev" CONFIG)
egeria_find(Threads DEBIAN "libc6-dev")
egeria_find(nlohmann_json DEBIAN "nlohmann-json3-dev")
egeria_find(CLI11 DEBIAN "libcli11-dev")
egeria_find(RocksDB DEBIAN "librocksdb-dev")
find_library(EGERIA_XXHASH xxhash)
if(NOT EGERIA_XXHASH)
  egeria_missing(xxHash libxxhash-dev)
endif()
add_library(egeria_xxhash INTERFACE)
target_link_libraries(egeria_xxhash INTERFACE ${EGERIA_XXHASH})
find_library(EGERIA_BLOSC blosc)
if(NOT EGERIA_BLOSC)
  egeria_missing(Blosc libblosc-dev)
endif()
add_library(egeria_blosc INTERFACE)
target_link_libraries(egeria_blosc INTERFACE ${EGERIA_BLOSC})
find_library(EGERIA_MICROHTTPD microhttpd)
if(NOT EGERIA_MICROHTTPD)
  egeria_missing(libmicrohttpd libmicrohttpd-dev)
endif()
add_library(egeria_microhttpd INTERFACE)
target_link_libraries(egeria_microhttpd INTERFACE ${EGERIA_MICROHTTPD})

if(EGERIA_BUILD_TESTS)
  egeria_find(GTest DEBIAN "libgtest-dev libgmock-dev")
endif()
