#ifndef EGERIA_COMMON_RPC_LIBRARY_H_
#define EGERIA_COMMON_RPC_LIBRARY_H_

namespace egeria::rpc {

// Keeps gRPC initialised until the process ends. Otherwise the destructor of the last channel or server shuts
// the library down on its own thread, which takes ten seconds if a broken connection has left something
// behind, and an agent must stop within two. Idempotent; thread-safe.
void KeepLibrary();

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_LIBRARY_H_
