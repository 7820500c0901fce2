#include "common/rpc/library.h"

#include "grpc/grpc.h"

namespace egeria::rpc {

void KeepLibrary() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

}  // namespace egeria::rpc
