// The coordinator's services Jobs, HandOvers, Membership and Events as commands use them.
// Thread-safe; no gRPC type shows here.
//
// Every error names the coordinator's address. In addition to what the service returns:
//   Unavailable       nothing answers at the address
//   DeadlineExceeded  no answer within the endpoint's timeout
#ifndef TESSERA_CLIENT_CLI_JOBS_CLIENT_H_
#define TESSERA_CLIENT_CLI_JOBS_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "proto/coordinator.pb.h"
#include "proto/events.pb.h"

namespace tessera::cli {

class JobsClient {
 public:
  // Errors: as OpenChannel. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<JobsClient>> Create(const Endpoint& endpoint);
  virtual ~JobsClient() = default;

  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs() = 0;
  // One page of them: the jobs after this id; empty: the first ones.
  virtual absl::StatusOr<v1::ListJobsResponse> ListJobsAfter(const std::string& job_id) = 0;
  // Errors: NotFound  no such job.
  virtual absl::StatusOr<v1::Job> GetJob(const std::string& job_id) = 0;
  // Errors: NotFound  no such job.
  virtual absl::StatusOr<v1::JobLayout> GetLayout(const std::string& job_id) = 0;
  // Errors: NotFound  no such job.
  virtual absl::Status DeleteJob(const std::string& job_id) = 0;
  // Resumes a job that is handed over.
  // Errors: NotFound; FailedPrecondition  it is not handed over, or another job takes it over
  // already.
  virtual absl::Status TakeBack(const std::string& job_id) = 0;
  virtual absl::StatusOr<v1::ListWorkersResponse> ListWorkers() = 0;
  // One page. Errors: PermissionDenied  the job of the request is another owner's
  virtual absl::StatusOr<v1::ListEventsResponse> ListEvents(
      const v1::ListEventsRequest& request) = 0;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JOBS_CLIENT_H_
