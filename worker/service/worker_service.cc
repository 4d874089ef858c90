#include "worker/service/worker_service.h"

#include "absl/strings/str_cat.h"
#include "net/caller_version.h"
#include "proto/grpc_status.h"
#include "worker/service/rank_dump.h"

namespace tessera {
grpc::Status WorkerService::GetStatus(grpc::ServerContext* context,
                                      const v1::WorkerStatusRequest* request,
                                      v1::WorkerStatusResponse* response) {
  // The socket's mode is the first barrier, this is the second.
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  response->set_worker_id(options_.worker_id);
  response->set_incarnation(options_.incarnation());
  response->set_num_devices(options_.num_devices);
  response->set_device(options_.device);
  response->set_coordinator_connected(options_.coordinator_connected());
  response->set_cluster_id(options_.cluster());
  *response->mutable_jobs() = keeper_->Progress().jobs();
  return grpc::Status::OK;
}

grpc::Status WorkerService::DumpRank(grpc::ServerContext* context,
                                     const v1::DumpRankRequest* request,
                                     v1::DumpRankResponse* response) {
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  const auto job = keeper_->Find(request->job_id());
  if (job == nullptr || !job->local().Has(request->rank())) {
    return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no rank ", request->rank(), " of job '",
                                                         request->job_id(), "' on this worker")));
  }
  *response = tessera::DumpRank(job->regions(), request->job_id(), Rank(request->rank()));
  return grpc::Status::OK;
}

}  // namespace tessera
