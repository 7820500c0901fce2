#include "worker/agent/abandoned_calls.h"

namespace egeria::worker {

AbandonedCalls::~AbandonedCalls() {
  Sweep();
  for (auto& call : streams_) static_cast<void>(call.release());
  for (auto& call : registrations_) static_cast<void>(call.release());
}

void AbandonedCalls::Sweep() {
  const auto ended = [](const auto& call) { return call->result().has_value(); };
  std::erase_if(streams_, ended);
  std::erase_if(registrations_, ended);
}

}  // namespace egeria::worker
