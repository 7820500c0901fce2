#include "common/metrics/metrics_endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/metrics/health.h"
#include "common/metrics/http_server.h"
#include "common/rpc/address.h"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"

namespace egeria::metrics {
namespace {

HttpServer::Answer AnswerOf(const absl::Status& status) {
  if (status.ok()) return {.body = "ok\n"};
  return {.status = 503, .body = std::string(status.message())};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, std::shared_ptr<prometheus::Collectable> collectable, const Health* health,
    std::map<std::string, HttpServer::Page> others) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  if (listen == "none") return endpoint;
  EGERIA_ASSIGN_OR_RETURN(rpc::Address address, rpc::ParseAddress(listen));
  if (address.is_unix()) return absl::InvalidArgumentError(absl::StrCat("metrics need host:port, not ", listen));
  if (address.host == "localhost") address.host = "127.0.0.1";
  std::map<std::string, HttpServer::Page> pages = std::move(others);
  pages["/metrics"] = {.make =
                           [collectable = std::move(collectable)](const std::string&) {
                             return HttpServer::Answer{
                                 .type = "text/plain; version=0.0.4; charset=utf-8",
                                 .body = prometheus::TextSerializer().Serialize(collectable->Collect())};
                           },
                       .slow = true};
  if (health != nullptr) {
    pages["/healthz"] = {.make = [health](const std::string&) { return AnswerOf(health->Healthy()); }};
    pages["/readyz"] = {.make = [health](const std::string&) { return AnswerOf(health->Ready()); }};
  }
  auto server = HttpServer::Start(address, std::move(pages));
  if (!server.ok()) {
    return NamedError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", "metrics at ", address.ToString(), ": ",
                      server.status().message(), " (in use, or no address of this machine; 'none' switches them off)");
  }
  endpoint->server_ = *std::move(server);
  address.port = endpoint->server_->port();
  if (!address.IsLocal()) LogWarning("everybody on the network can read the metrics at ", address.ToString());
  endpoint->url_ = absl::StrCat("http://", address.ToString(), "/metrics");
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() { Stop(); }

void MetricsEndpoint::Stop() { server_.reset(); }

}  // namespace egeria::metrics
