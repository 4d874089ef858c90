#include "worker/executor/executor_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_path.h"
#include "proto/checkpoint.pb.h"
#include "worker/executor/agreement.h"
#include "worker/executor/load/checkpoint_load.h"
#include "worker/executor/load/load_agreement.h"
#include "worker/executor/load/model_load.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/folder_check.h"
#include "worker/executor/save/prior_attempt.h"
#include "worker/executor/save/model_save.h"
#include "worker/executor/save/part_save.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

// The same outcome for all ranks where a request is malformed on some.
absl::Status ParseOnAll(const std::string& bytes, Communicator* communicator,
                        v1::LoadRequest* request, absl::Status* outcome) {
  // Not returned yet: the other ranks wait in AgreeOn.
  if (!request->ParseFromString(bytes))
    *outcome = absl::InvalidArgumentError("the trainer's request is malformed");
  if (!request->refusal().empty()) *outcome = absl::InvalidArgumentError(request->refusal());
  return AgreeOn("request", outcome, communicator);
}

}  // namespace

ExecutorFiles::ExecutorFiles(const ExecutorMemory* memory, int64_t direct_write_bytes,
                             ReportSaving report_saving, ReportError report_error,
                             SaveTracker::Send send_report)
    : memory_(*memory),
      direct_write_bytes_(direct_write_bytes),
      report_saving_(std::move(report_saving)),
      report_error_(std::move(report_error)),
      segments_(SegmentsOf(memory->layout, memory->config, memory->plan, memory->rank)),
      tracker_(std::move(send_report)),
      background_(memory) {}

std::vector<ShardSegment> ExecutorFiles::OwnSegments() const {
  std::vector<ShardSegment> own;
  for (const ShardSegment& segment : segments_) {
    // One of each group of replicas writes: they are equal to the bit.
    if (!memory_.layout.units[segment.unit].shards.IsReplica(memory_.rank)) own.push_back(segment);
  }
  return own;
}

absl::Status ExecutorFiles::CheckTrainersPath(const std::string& path) const {
  // The executor has the worker's rights, a foreign trainer has not: it names paths below the roots
  // only.
  return memory_.had_foreign_trainer() ? CheckBelow(path, memory_.save_roots) : absl::OkStatus();
}

absl::Status ExecutorFiles::CheckRequest(const std::string& bytes, v1::SaveRequest* request) {
  if (!request->ParseFromString(bytes)) {
    request->Clear();
    return absl::InvalidArgumentError("the trainer's request is malformed");
  }
  std::string root;
  RETURN_IF_ERROR(tracker_.Fill(request, &root));
  // Plain before it is compared or reported: ranks must mean the same folder.
  if (request->refusal().empty()) {
    ASSIGN_OR_RETURN(*request->mutable_path(), PlainPath(request->path()));
  }
  RETURN_IF_ERROR(CheckSaveRequest(*request));
  // A requested save may go below its own root alone.
  if (!root.empty()) return CheckBelow(request->path(), {root});
  // The coordinator has checked a request's path, as far as it can.
  return request->request_number() != 0 ? absl::OkStatus() : CheckTrainersPath(request->path());
}

absl::Status ExecutorFiles::Save(const std::string& request_bytes, const SavedState& state,
                                 std::string* reply, absl::Status* outcome) {
  v1::SaveRequest request;
  v1::SaveReply answer;
  // One save at a time: the next one waits for the one before.
  background_.End();
  // Every rank counts every request, refused ones too, so that the ranks' numbers agree.
  tracker_.Next();
  const absl::Status checked = CheckRequest(request_bytes, &request);
  if (!checked.ok()) *outcome = checked;
  const std::string fake =
      FakeText(memory_.config.fake_all_gather, memory_.config.fake_reduce_scatter);
  if (!fake.empty()) {  // All ranks have this config, so all refuse.
    *outcome = absl::FailedPreconditionError(
        absl::StrCat("not saved: the job's collectives are fake (", fake, ")"));
    tracker_.End(request, state.progress.step, absl::OkStatus(), *outcome, answer);
    return absl::OkStatus();
  }
  absl::Status agreed = AgreeOn("request", outcome, communicator_);
  if (agreed.ok() && outcome->ok()) agreed = CompareRequests(request, communicator_, outcome);
  PriorAttempt made;
  if (agreed.ok() && outcome->ok())
    agreed = FindPriorAttempt(request, memory_, communicator_, &made, outcome);
  if (agreed.ok() && outcome->ok() && made.is_made) {
    // An earlier attempt of the same request published it: it is not made twice (docs/adr/0053).
    *reply = made.reply.SerializeAsString();
    tracker_.End(request, made.step, agreed, *outcome, made.reply);
    return agreed;
  }
  if (agreed.ok() && outcome->ok()) {
    Begin(request, state.progress);
    if (request.is_checkpoint() && request.in_background())
      return BeginInBackground(request, made.request, state, outcome);
    const bool creates_file = request.in_parts() || memory_.rank.value() == 0;
    if (creates_file)
      // Told before anything is created, so that the supervisor can remove what a dead executor
      // leaves.
      report_saving_(request.in_parts() ? PartPath(request, memory_.rank) : request.path());
    agreed = SaveNow(request, made.request, state, &answer, outcome);
    // Nothing unfinished is left from here on.
    if (creates_file) report_saving_("");
    *reply = answer.SerializeAsString();
  }
  tracker_.End(request, state.progress.step, agreed, *outcome, answer);
  return agreed;
}

SaveControl ExecutorFiles::Control(const std::string& asked_for) {
  return {&stopped_, &tracker_.cancelled(), [this](int64_t bytes) { tracker_.Wrote(bytes); },
          direct_write_bytes_, asked_for};
}

void ExecutorFiles::Begin(const v1::SaveRequest& request, const TrainingProgress& progress) {
  if (!request.is_checkpoint()) return;
  int64_t all_bytes = 0;
  for (const CheckpointSlice& slice :
       SlicesToWrite(request, memory_, HasStates(memory_.layout, progress)))
    all_bytes += slice.segment.numel * SizeBytes(slice.segment.dtype);
  tracker_.Begin(request, progress.step, all_bytes);
}

absl::Status ExecutorFiles::SaveNow(const v1::SaveRequest& request, const std::string& asked_for,
                                    const SavedState& state, v1::SaveReply* reply,
                                    absl::Status* outcome) {
  const SaveControl control = Control(asked_for);
  if (request.in_parts())
    return SaveParts(request, memory_, InMemory(state), communicator_, control, reply, outcome);
  if (request.is_checkpoint())
    return SaveCheckpoint(request, memory_, InMemory(state), communicator_, control, reply,
                          outcome);
  return SaveModel(request, memory_.layout, OwnSegments(), state, communicator_, &stopped_,
                   direct_write_bytes_, outcome);
}

absl::Status ExecutorFiles::BeginInBackground(const v1::SaveRequest& request,
                                              const std::string& asked_for, const SavedState& state,
                                              absl::Status* outcome) {
  const int64_t step = state.progress.step;
  *outcome = background_.Prepare(request, state, Control(asked_for));
  const absl::Status agreed = AgreeOn("save", outcome, communicator_);
  if (!agreed.ok() || !outcome->ok()) {
    // Also ends what this rank has begun and another has not.
    background_.End();
    tracker_.End(request, step, agreed, *outcome, {});
    return agreed;
  }
  const bool creates_file = request.in_parts() || memory_.rank.value() == 0;
  const auto report = [this, creates_file](const std::string& path) {
    if (creates_file) report_saving_(path);
  };
  report(request.in_parts() ? PartPath(request, memory_.rank) : request.path());
  const absl::Status started = background_.Start(
      communicator_,
      [this, report, step](const v1::SaveRequest& saved, const absl::Status& all_agreed,
                           const absl::Status& end, const v1::SaveReply& answer) {
        report("");
        tracker_.End(saved, step, all_agreed, end, answer);
        // This error aborted the other ranks, which do not know it. Aborted: it is another rank's.
        if (!all_agreed.ok() && !absl::IsAborted(all_agreed) && !stopped_.load())
          report_error_(all_agreed);
      });
  if (started.ok()) return started;
  report("");
  tracker_.End(request, step, started, *outcome, {});
  return started;  // An error ends the epoch, and with it the other ranks' saves.
}

absl::Status ExecutorFiles::Load(const std::string& request_bytes, LoadedState* state,
                                 std::string* reply, absl::Status* outcome) {
  v1::LoadRequest request;
  // A background save reads the state that the load overwrites.
  background_.End();
  RETURN_IF_ERROR(ParseOnAll(request_bytes, communicator_, &request, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  RETURN_IF_ERROR(CompareRequests(request, communicator_, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  // A path that it refuses is refused, on all ranks, where it is opened.
  if (const auto path = PlainPath(request.path()); path.ok()) request.set_path(*path);
  *outcome = CheckTrainersPath(request.path());
  RETURN_IF_ERROR(AgreeOn("load", outcome, communicator_));
  if (!outcome->ok()) return absl::OkStatus();
  v1::LoadReply answer;
  if (request.is_checkpoint()) {
    RETURN_IF_ERROR(
        LoadCheckpoint(request, memory_, state, communicator_, &stopped_, &answer, outcome));
    *reply = answer.SerializeAsString();
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<NamedTensorInfo>> buffers = InfosOf(request.buffers());
  *outcome = buffers.status();
  RETURN_IF_ERROR(AgreeOn("load", outcome, communicator_));
  if (!outcome->ok()) return absl::OkStatus();
  RETURN_IF_ERROR(LoadModel(request.path(), RulesOf(request, state->first), *buffers,
                            memory_.layout, segments_, state, communicator_, &stopped_, &answer,
                            outcome));
  *reply = answer.SerializeAsString();
  return absl::OkStatus();
}

}  // namespace tessera
