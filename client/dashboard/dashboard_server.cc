#include "client/dashboard/dashboard_server.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/dashboard/page_files.h"

namespace tessera::dashboard {
namespace {

// Scripts and styles are files of this listener alone, and there is nothing to send anywhere else.
constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpPage Serve(const PageFile& file) {
  return [file](const HttpRequest&) {
    return HttpReply{200, std::string(file.content_type), std::string(file.content), kPagePolicy};
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<DashboardServer>> DashboardServer::Start(
    const ClusterEndpoints& endpoints, const HttpListener::Options& listener) {
  std::unique_ptr<DashboardServer> server(new DashboardServer);
  ASSIGN_OR_RETURN(server->api_, ClusterApi::Create(endpoints));
  std::map<std::string, HttpPage> pages = server->api_->Pages();
  for (const PageFile& file : PageFiles()) pages[std::string(file.path)] = Serve(file);
  ASSIGN_OR_RETURN(server->listener_, HttpListener::Start(listener, std::move(pages)));
  return server;
}

}  // namespace tessera::dashboard
