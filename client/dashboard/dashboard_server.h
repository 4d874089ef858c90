// Serves the page and what it asks for, until destroyed. Only reads. Thread-safe.
#ifndef TESSERA_CLIENT_DASHBOARD_DASHBOARD_SERVER_H_
#define TESSERA_CLIENT_DASHBOARD_DASHBOARD_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/dashboard/cluster_api.h"
#include "net/http_listener.h"

namespace tessera::dashboard {

class DashboardServer {
 public:
  // Errors: as ClusterApi::Create and HttpListener::Start.
  static absl::StatusOr<std::unique_ptr<DashboardServer>> Start(
      const ClusterEndpoints& endpoints, const HttpListener::Options& listener);

  int port() const { return listener_->port(); }

 private:
  DashboardServer() = default;

  std::unique_ptr<ClusterApi> api_;
  std::unique_ptr<HttpListener> listener_;  // Ends before what its pages use.
};

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_DASHBOARD_SERVER_H_
