#include "worker/executor/executor_files.h"

#include <utility>

#include "base/status_macros.h"
#include "proto/checkpoint.pb.h"
#include "worker/executor/agreement.h"
#include "worker/executor/checkpoint_load.h"
#include "worker/executor/checkpoint_save.h"
#include "worker/executor/load_request.h"
#include "worker/executor/model_load.h"
#include "worker/executor/model_save.h"
#include "worker/executor/part_save.h"
#include "worker/executor/save_request.h"

namespace tessera {
namespace {

absl::Status CheckRequest(const v1::LoadRequest&) { return absl::OkStatus(); }
absl::Status CheckRequest(const v1::SaveRequest& request) { return CheckSaveRequest(request); }

// The same outcome for all ranks where a request is malformed on some.
template <typename Request>
absl::Status ParseOnAll(const std::string& bytes, Communicator* communicator, Request* request,
                        absl::Status* outcome) {
  *outcome = request->ParseFromString(bytes)
                 ? CheckRequest(*request)
                 : absl::InvalidArgumentError("the trainer's request is malformed");
  return AgreeOn("request", outcome, communicator);
}

}  // namespace

ExecutorFiles::ExecutorFiles(const ExecutorMemory* memory, ReportSaving report_saving,
                             ReportError report_error)
    : memory_(*memory),
      report_saving_(std::move(report_saving)),
      report_error_(std::move(report_error)),
      segments_(SegmentsOf(memory->layout, memory->config, memory->plan, memory->rank)),
      background_(memory) {}

std::vector<ShardSegment> ExecutorFiles::OwnSegments() const {
  std::vector<ShardSegment> own;
  for (const ShardSegment& segment : segments_) {
    if (!memory_.layout.units[segment.unit].shards.IsReplica(memory_.rank)) own.push_back(segment);
  }
  return own;
}

absl::Status ExecutorFiles::Save(const std::string& request_bytes, const SavedState& state,
                                 std::string* reply, absl::Status* outcome) {
  v1::SaveRequest request;
  background_.End();
  RETURN_IF_ERROR(ParseOnAll(request_bytes, communicator_, &request, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  RETURN_IF_ERROR(CompareRequests(request, communicator_, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  if (request.is_checkpoint() && request.in_background())
    return BeginInBackground(request, state, outcome);
  const bool creates_file = request.in_parts() || memory_.rank.value() == 0;
  if (creates_file)
    report_saving_(request.in_parts() ? PartPath(request, memory_.rank) : request.path());
  v1::SaveReply answer;
  const absl::Status status = SaveNow(request, state, &answer, outcome);
  if (creates_file) report_saving_("");
  *reply = answer.SerializeAsString();
  return status;
}

absl::Status ExecutorFiles::SaveNow(const v1::SaveRequest& request, const SavedState& state,
                                    v1::SaveReply* reply, absl::Status* outcome) {
  if (request.in_parts())
    return SaveParts(request, memory_, state, communicator_, {&stopped_}, reply, outcome);
  if (request.is_checkpoint())
    return SaveCheckpoint(request, memory_, state, communicator_, {&stopped_}, reply, outcome);
  return SaveModel(request, memory_.layout, OwnSegments(), state, communicator_, &stopped_,
                   outcome);
}

absl::Status ExecutorFiles::BeginInBackground(const v1::SaveRequest& request,
                                              const SavedState& state, absl::Status* outcome) {
  *outcome = background_.Prepare(request, state, &stopped_);
  RETURN_IF_ERROR(AgreeOn("save", outcome, communicator_));
  if (!outcome->ok()) {
    background_.End();
    return absl::OkStatus();
  }
  const auto report = [this](const std::string& path) {
    if (memory_.rank.value() == 0) report_saving_(path);
  };
  report(request.path());
  const absl::Status started =
      background_.Start(communicator_, [this, report](const absl::Status& agreed) {
        report("");
        // It has aborted what the other ranks do, and none of them knows why. Aborted: another did.
        if (!agreed.ok() && !absl::IsAborted(agreed) && !stopped_.load()) report_error_(agreed);
      });
  if (!started.ok()) report("");
  return started;  // An error ends the epoch, and with it the other ranks' saves.
}

absl::Status ExecutorFiles::Load(const std::string& request_bytes, LoadedState* state,
                                 std::string* reply, absl::Status* outcome) {
  v1::LoadRequest request;
  background_.End();
  RETURN_IF_ERROR(ParseOnAll(request_bytes, communicator_, &request, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  RETURN_IF_ERROR(CompareRequests(request, communicator_, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  v1::LoadReply answer;
  if (request.is_checkpoint()) {
    RETURN_IF_ERROR(
        LoadCheckpoint(request, memory_, state, communicator_, &stopped_, &answer, outcome));
    *reply = answer.SerializeAsString();
    return absl::OkStatus();
  }
  LoadPlan plan;
  RETURN_IF_ERROR(LoadModel(request.path(), RulesOf(request, state->first), memory_.layout,
                            segments_, state, communicator_, &stopped_, &plan, outcome));
  for (const std::string& name : plan.missing) answer.add_missing(name);
  for (const std::string& name : plan.unexpected) answer.add_unexpected(name);
  *reply = answer.SerializeAsString();
  return absl::OkStatus();
}

}  // namespace tessera
