#include "common/metrics/metrics_endpoint.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

namespace egeria::metrics {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, std::shared_ptr<prometheus::Collectable> collectable) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  if (listen == "none") return endpoint;
  EGERIA_ASSIGN_OR_RETURN(rpc::Address address, rpc::ParseAddress(listen));
  if (address.is_unix()) return absl::InvalidArgumentError(absl::StrCat("metrics need host:port, not ", listen));
  if (address.host == "localhost") address.host = "127.0.0.1";  // the HTTP server takes numbers only
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address.ToString());
    address.port = endpoint->exposer_->GetListeningPorts().at(0);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", "metrics at ", address.ToString(), ": ",
                      error.what(), " (in use, or no address of this machine; 'none' switches them off)");
  }
  endpoint->collectable_ = std::move(collectable);
  endpoint->exposer_->RegisterCollectable(endpoint->collectable_);
  endpoint->url_ = absl::StrCat("http://", address.ToString(), "/metrics");
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() { Stop(); }

void MetricsEndpoint::Stop() { exposer_.reset(); }

}  // namespace egeria::metrics
