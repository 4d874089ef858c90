#include "worker/service/worker_service.h"

#include "absl/strings/str_cat.h"
#include "proto/grpc_status.h"
#include "worker/engine/unit_state.h"

namespace tessera {
namespace {

std::string DescribeRank(const JobRegions& regions, Rank rank) {
  const ControlPage& page = *regions.control(rank);
  const RankRecord& record = regions.group()->ranks[rank.value()];
  std::string text =
      absl::StrCat("rank ", rank.value(), ": epoch ", page.epoch.load(), ", committed step ",
                   page.committed_step.load(), ", applied step ", record.applied_step.load(),
                   ", decided step ", regions.group()->decided_step.load(), "\n");
  const uint32_t submitted = page.submitted.value.load(), consumed = page.consumed.load();
  absl::StrAppend(&text, "operations: ", submitted, " submitted, ", consumed, " consumed; at step ",
                  page.progress_step.load(), " position ", page.progress_sequence.load(), "\n");
  if (page.failed_epoch.load() != 0) {
    absl::StrAppend(&text, "last failure: epoch ", page.failed_epoch.load(), ": ",
                    LoadText(page.failure_message, kMaxErrorBytes), "\n");
  }
  for (size_t u = 0; u < regions.layout().units.size(); ++u) {
    absl::StrAppend(&text, "  ", regions.layout().units[u].flat.unit_name(), ": ",
                    Name(static_cast<UnitState>(page.units[u].state.load())), ", reduced ",
                    page.units[u].reduced.load(), " times in this epoch\n");
  }
  for (uint32_t i = consumed > 16 ? consumed - 16 : 0; i != submitted && i - consumed < kRingOps;
       ++i) {
    const Op& op = page.ring[i % kRingOps];
    absl::StrAppend(&text, "  #", i, i < consumed ? " done    " : " pending ", OpName(op.kind),
                    " unit ", op.unit, " epoch ", op.epoch, "\n");
  }
  return text;
}

}  // namespace

grpc::Status WorkerService::Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                                   v1::AttachResponse* response) {
  absl::StatusOr<v1::AttachResponse> attached = keeper_->Attach(*request);
  if (!attached.ok()) return ToGrpcStatus(attached.status());
  *response = *std::move(attached);
  response->set_descriptor_socket(options_.descriptor_socket);
  return grpc::Status::OK;
}

grpc::Status WorkerService::GetStatus(grpc::ServerContext* context,
                                      const v1::WorkerStatusRequest* request,
                                      v1::WorkerStatusResponse* response) {
  response->set_worker_id(options_.worker_id);
  response->set_incarnation(options_.incarnation);
  response->set_num_devices(options_.num_devices);
  response->set_coordinator_connected(options_.coordinator_connected());
  *response->mutable_jobs() = keeper_->Progress().jobs();
  return grpc::Status::OK;
}

grpc::Status WorkerService::DumpRank(grpc::ServerContext* context,
                                     const v1::DumpRankRequest* request,
                                     v1::DumpRankResponse* response) {
  const auto job = keeper_->Find(request->job_id());
  if (job == nullptr || request->rank() < 0 ||
      request->rank() >= job->regions().config().world_size) {
    return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no rank ", request->rank(), " of job '",
                                                         request->job_id(), "' on this worker")));
  }
  response->set_text(DescribeRank(job->regions(), Rank(request->rank())));
  return grpc::Status::OK;
}

}  // namespace tessera
