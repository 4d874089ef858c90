// TakeOver: reads this rank's slices from the old job into its gradient slots, from where they are
// staged, and makes them the job's values once the coordinator says that all ranks are ready.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/safetensors/crc32.h"
#include "client/resize/hand_over_rpc.h"
#include "client/resize/take_over_plan.h"
#include "client/session/session_buffers.h"
#include "client/session/session_setup.h"
#include "client/session/state_access.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "tessera/hand_over.h"

namespace tessera {
namespace {

constexpr absl::Duration kRetryEvery = absl::Milliseconds(50);
// By which some rank may read longer than others.
constexpr absl::Duration kLongestRead = absl::Hours(1);

// The old job's state as a stream of what the plan wants, from some slice of the plan on.
class StateReader {
 public:
  StateReader(DialOptions coordinator, const v1::HandOverInfo& info, const TakeOverPlan& plan)
      : coordinator_(std::move(coordinator)), info_(info), plan_(plan) {}

  // Where training stands; known once something was read.
  const v1::HandOverBegin& begin() const { return begin_; }

  // Fills the rank's slice. Slices are read in the order of the plan; tries again, from this slice
  // on, while coordinator or workers are away.
  absl::Status Read(size_t index, Values slice, absl::Time deadline) {
    return WithTries([&] { return TryRead(index, slice); }, deadline);
  }
  // The same of all bytes of a buffer, after all slices.
  absl::Status ReadBuffer(size_t index, StoredDType dtype, std::string* values,
                          absl::Time deadline) {
    return WithTries([&] { return TryReadBuffer(index, dtype, values); }, deadline);
  }

 private:
  absl::Status WithTries(absl::FunctionRef<absl::Status()> read, absl::Time deadline) {
    while (true) {
      const absl::Status status = read();
      if (!absl::IsUnavailable(status)) return status;
      // Opened again from the slice that failed. Those before it are staged.
      stream_.reset();
      if (SteadyNow() + kRetryEvery >= deadline) return status;
      absl::SleepFor(kRetryEvery);
    }
  }

  absl::Status TryReadBuffer(size_t index, StoredDType dtype, std::string* values) {
    if (stream_ == nullptr) RETURN_IF_ERROR(Open(plan_.slices.size(), index));
    const int64_t element_bytes = SizeBits(dtype) / 8;
    const TakenRange all = {plan_.buffers[index].old_buffer, 0,
                            static_cast<int64_t>(values->size()) / element_bytes, 0};
    return ReadRange(all, element_bytes, values->data());
  }

  absl::Status TryRead(size_t index, Values slice) {
    if (stream_ == nullptr) RETURN_IF_ERROR(Open(index, 0));
    // Padding, and state that the old job does not have, is zero.
    memset(slice.data(), 0, slice.size_bytes());
    const int64_t element_bytes = SizeBytes(slice.dtype());
    for (const TakenRange& range : plan_.slices[index].ranges) {
      char* into = static_cast<char*>(slice.data()) + range.slice_begin_elements * element_bytes;
      RETURN_IF_ERROR(ReadRange(range, element_bytes, into));
    }
    return absl::OkStatus();
  }

  // From this slice on, and this buffer.
  absl::Status Open(size_t index, size_t buffer) {
    // Only the rest of the plan, so that a retry does not read everything again.
    v1::ReadHandOverRequest request;
    request.set_job_id(info_.job_id());
    request.set_generation(info_.generation());
    request.set_number(info_.number());
    for (size_t i = index; i < plan_.slices.size(); ++i) {
      for (const TakenRange& range : plan_.slices[i].ranges) {
        v1::LiveRange* to = request.add_ranges();
        to->set_parameter(range.old_parameter);
        to->set_array(static_cast<v1::LiveStateArray>(static_cast<int>(plan_.slices[i].array) +
                                                      v1::LIVE_STATE_ARRAY_PARAMETER));
        to->set_begin_elements(range.begin_elements);
        to->set_numel(range.numel);
      }
    }
    for (size_t i = buffer; i < plan_.buffers.size(); ++i) {
      v1::LiveRange* to = request.add_ranges();
      to->set_parameter(plan_.buffers[i].old_buffer);
      to->set_array(v1::LIVE_STATE_ARRAY_BUFFER);
      to->set_numel(plan_.buffers[i].numel);
    }
    ASSIGN_OR_RETURN(stream_, HandOverStream::Open(coordinator_, request));
    ASSIGN_OR_RETURN(v1::HandOverReply reply, stream_->Next());
    // An index into it follows.
    if (!reply.has_begin() || reply.begin().update_counts_size() != plan_.num_old_parameters)
      return absl::DataLossError("the old job's state does not begin with the training progress");
    begin_ = std::move(*reply.mutable_begin());
    return absl::OkStatus();
  }

  absl::Status ReadRange(const TakenRange& range, int64_t element_bytes, char* into) {
    for (int64_t done = 0; done < range.numel;) {
      ASSIGN_OR_RETURN(const v1::HandOverReply reply, stream_->Next());
      const v1::LivePiece& piece = reply.piece();
      const int64_t bytes = piece.data().size(), numel = bytes / element_bytes;
      // Size and place come over the wire.
      if (!reply.has_piece() || piece.offset_elements() != range.begin_elements + done ||
          numel == 0 || bytes % element_bytes != 0 || numel > range.numel - done) {
        return absl::DataLossError("a piece of the old job's state that was not asked for");
      }
      // Checked piece by piece, before it is copied.
      if (Crc32(piece.data()) != piece.crc32()) {
        return absl::DataLossError(absl::StrCat("elements ", piece.offset_elements(), " + ", numel,
                                                " of tensor ", range.old_parameter,
                                                " were damaged on their way"));
      }
      memcpy(into + done * element_bytes, piece.data().data(), bytes);
      done += numel;
    }
    return absl::OkStatus();
  }

  const DialOptions coordinator_;
  const v1::HandOverInfo& info_;
  const TakeOverPlan& plan_;
  std::unique_ptr<HandOverStream> stream_;
  v1::HandOverBegin begin_;
};

class Taker {
 public:
  Taker(Session* session, const TakeOverOptions& options)
      : session_(*session),
        options_(options),
        access_(session),
        rpc_(access_.coordinator()),
        deadline_(SteadyNow() + options.timeout) {}

  absl::StatusOr<TakenOver> Run() {
    RETURN_IF_ERROR(AgreeOnPlan());
    // A trainer that died after the commit finds the values there, and only reports.
    if (!session_.initialized()) {
      absl::StatusOr<TrainingProgress> progress = Stage();
      absl::Status status = progress.status();
      // After this the old job may not go on, and this one must.
      if (status.ok()) status = Say(/*finish=*/false);
      if (status.ok()) status = FaultPoint("take-over.accepted");
      // Before the version that they belong to is made.
      if (status.ok()) status = GiveBuffers();
      if (status.ok()) status = access_.FinishState(*progress);
      if (!status.ok()) return EndEpoch(std::move(status));
    }
    RETURN_IF_ERROR(FaultPoint("take-over.committed"));
    // Repeated until it is heard: the old job ends only then.
    RETURN_IF_ERROR(Say(/*finish=*/true));
    return TakenOver{session_.next_step() - 1,
                     {info_.trainer_states().begin(), info_.trainer_states().end()},
                     std::move(buffers_),
                     std::move(plan_.missing_buffers)};
  }

 private:
  bool IsOurs() const {
    return info_.phase() != v1::HAND_OVER_PHASE_OFFERED &&
           info_.taker_job_id() == access_.job_id() &&
           info_.taker_generation() == access_.generation();
  }

  absl::Status GetAndPlan() {
    v1::GetHandOverRequest request;
    request.set_job_id(options_.from_job);
    ASSIGN_OR_RETURN(info_, rpc_.Get(request, deadline_));
    if (info_.phase() != v1::HAND_OVER_PHASE_OFFERED && !IsOurs()) {
      return absl::FailedPreconditionError(absl::StrCat("job '", options_.from_job, "': job '",
                                                        info_.taker_job_id(), "' takes it over"));
    }
    if (session_.initialized()) {
      if (IsOurs()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          "job '", access_.job_id(), "' has its values already: nothing is taken over"));
    }
    if (info_.phase() == v1::HAND_OVER_PHASE_DONE) {
      return absl::DataLossError(absl::StrCat("job '", access_.job_id(), "' had taken over '",
                                              options_.from_job,
                                              "', and lost it with the memory of a worker"));
    }
    ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(info_.model()));
    ASSIGN_OR_RETURN(const JobConfig config, DecodeJobConfig(info_.config()));
    ASSIGN_OR_RETURN(const ModelLayout old, LayOut(model, config));
    ASSIGN_OR_RETURN(plan_, PlanTakeOver({old, config.optimizer},
                                         {session_.layout(), session_.config().optimizer},
                                         Rank(session_.rank())));
    return absl::OkStatus();
  }

  absl::Status AgreeOnPlan() {
    SessionSetup setup(&session_);
    // All ranks agree before one of them stages anything.
    RETURN_IF_ERROR(setup.AgreeOn(GetAndPlan()));
    // So that no two ranks take parts of different steps.
    const int64_t own = info_.number();
    std::vector<int64_t> all(session_.config().world_size, own);
    RETURN_IF_ERROR(
        setup.AllGather(absl::MakeConstSpan(reinterpret_cast<const char*>(&own), sizeof(own)),
                        reinterpret_cast<char*>(all.data())));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return absl::FailedPreconditionError(absl::StrCat("ranks 0 and ", rank,
                                                        " saw different hand-overs of job '",
                                                        options_.from_job, "': try again"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TrainingProgress> Stage() {
    StateReader reader(access_.coordinator(), info_, plan_);
    for (size_t i = 0; i < plan_.slices.size(); ++i) {
      RETURN_IF_ERROR(FaultPoint("take-over.read"));
      RETURN_IF_ERROR(
          access_.StageSlice(plan_.slices[i].unit, plan_.slices[i].array,
                             [&](Values slice) { return reader.Read(i, slice, deadline_); }));
    }
    RETURN_IF_ERROR(ReadBuffers(&reader));
    TrainingProgress progress;
    progress.step = reader.begin().trained_step();
    for (const int old : plan_.old_parameters)
      progress.update_counts.push_back(reader.begin().update_counts(old));
    for (const ParamGroup& group : session_.config().groups) progress.groups.push_back(group);
    return progress;
  }

  absl::Status ReadBuffers(StateReader* reader) {
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      const BufferSpec& spec = session_.layout().buffers[plan_.buffers[i].buffer];
      RETURN_IF_ERROR(FaultPoint("take-over.read-buffer"));
      NamedTensor& buffer = buffers_.emplace_back();
      buffer.name = spec.name;
      buffer.dtype = spec.dtype;
      buffer.shape = spec.shape;
      ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(spec));
      buffer.values.resize(size_bytes);
      RETURN_IF_ERROR(reader->ReadBuffer(i, spec.dtype, &buffer.values, deadline_));
    }
    return absl::OkStatus();
  }

  // Of the job's first version on, if its trainer has no others then.
  absl::Status GiveBuffers() {
    SessionBuffers published(&session_);
    for (size_t i = 0; i < buffers_.size(); ++i)
      RETURN_IF_ERROR(published.Set(plan_.buffers[i].buffer, buffers_[i].values));
    if (options_.take_buffers != nullptr && !buffers_.empty()) options_.take_buffers(buffers_);
    return absl::OkStatus();
  }

  absl::Status Say(bool finish) {
    v1::TakeOverRequest request;
    request.set_job_id(info_.job_id());
    request.set_generation(info_.generation());
    request.set_number(info_.number());
    request.set_taker_job_id(access_.job_id());
    request.set_taker_generation(access_.generation());
    request.set_epoch(access_.epoch());
    request.set_rank(session_.rank());
    request.set_finish(finish);
    // The others may still read.
    const absl::Duration patience = finish ? access_.operation_timeout() : kLongestRead;
    return rpc_.TakeOver(request, SteadyNow() + patience).status();
  }

  // Nothing was taken over on any rank: all get the error of the first that has one.
  absl::Status EndEpoch(absl::Status own) {
    // An error of this rank ends the epoch, or the others would wait for it.
    if (!absl::IsAborted(own)) RETURN_IF_ERROR(session_.Fail(own));
    // By what the epoch has ended: a process's death, or what some rank said.
    const absl::Status of_all = SessionSetup(&session_).AgreeOn(own);
    if (absl::IsAborted(own) || absl::IsAborted(of_all)) own = of_all;
    if (!absl::IsAborted(own)) RETURN_IF_ERROR(session_.Recover());
    return own;
  }

  Session& session_;
  const TakeOverOptions& options_;
  StateAccess access_;
  HandOverRpc rpc_;
  const absl::Time deadline_;
  v1::HandOverInfo info_;
  TakeOverPlan plan_;
  std::vector<NamedTensor> buffers_;
};

}  // namespace

absl::StatusOr<TakenOver> TakeOver(Session* session, const TakeOverOptions& options) {
  return Taker(session, options).Run();
}

}  // namespace tessera
