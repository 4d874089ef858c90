// What the page asks for: JSON of the coordinator's and the workers' own messages, by protobuf's
// mapping, with the fields' names of the .proto files.
//
//   /api/jobs?after=ID        a page of ListJobsResponse, without models and names of parameters
//   /api/job?id=ID            Job, likewise
//   /api/memory?job=ID        what its units take of a rank's memory (unit_memory.h)
//   /api/workers              ListWorkersResponse
//   /api/events?after=NUMBER  ListEventsResponse
//   /api/saves?job=ID         ListCheckpointsResponse
//   /api/rank?job=ID&rank=N   DumpRankResponse of the worker that has the rank
//   /api/trace?job=ID&rank=N  the same as a trace that Perfetto opens
//
// An error is {"error": "NOT_FOUND: ..."} with the HTTP status that fits. Thread-safe.
#ifndef TESSERA_CLIENT_DASHBOARD_CLUSTER_API_H_
#define TESSERA_CLIENT_DASHBOARD_CLUSTER_API_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "net/http_listener.h"

namespace tessera::dashboard {

struct ClusterEndpoints {
  cli::Endpoint coordinator;
  std::vector<cli::Endpoint> workers;  // Of this node; they have the operations of their ranks.
};

class ClusterApi {
 public:
  // Errors: as OpenChannel. Connects at the first request.
  static absl::StatusOr<std::unique_ptr<ClusterApi>> Create(const ClusterEndpoints& endpoints);
  virtual ~ClusterApi() = default;

  // By path. They use this object, which must outlive them.
  virtual std::map<std::string, HttpPage> Pages() = 0;
};

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_CLUSTER_API_H_
