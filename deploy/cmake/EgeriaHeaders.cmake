# Precompiled headers. Most of the time that a file takes to compile goes into headers of other projects, so four sets
# of them are compiled once each. A target names its set (HEADERS in egeria_library, egeria_binary and egeria_test):
#   base    the standard library and absl; the default
#   rpc     base, protobuf and gRPC
#   tensor  base and torch's tensors
#   torch   tensor, torch's process groups and torch::nn
# A target has rpc or one of torch's sets, never both, since torch brings a protobuf of its own. It takes the smallest
# set that serves: GCC instantiates the templates that a header's inline functions use in each file anew, which takes
# half a second with `tensor` and four seconds with `torch`.
# Test programs are compiled without optimisation and with GoogleTest, so there is a test_base, a test_rpc and so on.
#
# GCC takes a precompiled header only where the file has the options of the header, which is why EgeriaToolchain gives
# -pthread and -fPIC to all of them. A file includes what it uses all the same: a build with
# -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON has the same result and takes about three times as long.
set(EGERIA_HEADERS_base
  <algorithm> <atomic> <chrono> <cmath> <condition_variable> <deque> <filesystem> <fstream> <functional> <map> <memory>
  <mutex> <optional> <random> <set> <span> <string> <thread> <unordered_map> <utility> <variant> <vector>
  <absl/functional/function_ref.h> <absl/status/statusor.h> <absl/strings/match.h> <absl/strings/str_cat.h>
  <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/time/clock.h>
  <absl/time/time.h> <absl/types/span.h>)
set(EGERIA_HEADERS_rpc
  ${EGERIA_HEADERS_base} <grpcpp/grpcpp.h> <google/protobuf/duration.pb.h> <google/protobuf/map.h>
  <google/protobuf/message.h> <google/protobuf/timestamp.pb.h>)
set(EGERIA_HEADERS_tensor
  ${EGERIA_HEADERS_base} <ATen/core/Tensor.h> <ATen/core/grad_mode.h> <ATen/ops/empty.h> <ATen/ops/zeros.h>)
set(EGERIA_HEADERS_torch
  ${EGERIA_HEADERS_tensor} <torch/csrc/distributed/c10d/ProcessGroup.hpp> <torch/nn/module.h>)
set(EGERIA_HEADERS_DEPS_base absl::status absl::statusor absl::strings absl::str_format absl::time absl::span
    absl::function_ref)
set(EGERIA_HEADERS_DEPS_rpc ${EGERIA_HEADERS_DEPS_base} gRPC::grpc++ protobuf::libprotobuf)
set(EGERIA_HEADERS_DEPS_tensor ${EGERIA_HEADERS_DEPS_base} egeria::torch)
set(EGERIA_HEADERS_DEPS_torch ${EGERIA_HEADERS_DEPS_tensor})

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers.cc
     CONTENT "// A precompiled header belongs to a target, and a target has at least one file.\n")
foreach(set base rpc tensor torch)
  add_library(egeria_headers_${set} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers.cc)
  target_link_libraries(egeria_headers_${set} PRIVATE egeria_options ${EGERIA_HEADERS_DEPS_${set}})
  target_precompile_headers(egeria_headers_${set} PRIVATE ${EGERIA_HEADERS_${set}})
  if(EGERIA_BUILD_TESTS)
    add_library(egeria_headers_test_${set} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers.cc)
    target_link_libraries(egeria_headers_test_${set} PRIVATE egeria_test_options ${EGERIA_HEADERS_DEPS_${set}}
                          GTest::gmock)
    target_precompile_headers(egeria_headers_test_${set} PRIVATE ${EGERIA_HEADERS_${set}} <gmock/gmock.h>
                              <gtest/gtest.h>)
  endif()
endforeach()

# egeria_use_headers(<target> <set>): one of the sets above, or nothing where <set> is "none" or "test_none".
function(egeria_use_headers target set)
  if(NOT set MATCHES "none$")
    target_precompile_headers(${target} REUSE_FROM egeria_headers_${set})
  endif()
endfunction()
