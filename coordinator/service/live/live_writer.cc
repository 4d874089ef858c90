#include "coordinator/service/live/live_writer.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "coordinator/core/job_spec.h"
#include "job/field_limits.h"
#include "job/held_ranges.h"
#include "job/job_codec.h"
#include "job/live_array_codec.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxPieceBytes = 1 << 20;
constexpr int64_t kMaxWaitMs = 24 * 3600 * 1000;
constexpr uint64_t kHashSeed = 0xcbf29ce484222325;

uint64_t Hash(uint64_t hash, const std::string& bytes) {
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001b3;
  }
  return hash;
}

uint64_t NewPut() {
  std::random_device random;
  // Never 0, which in a vote means that the rank has no put.
  return (uint64_t{random()} << 32 | random()) | 1;
}

v1::PutCommand StageCommand(const PutPlan& plan, uint64_t put) {
  v1::PutCommand command;
  command.mutable_stage()->set_put(put);
  for (const PutPlan::Tensor& tensor : plan.tensors) {
    if (tensor.same_as >= 0) continue;
    v1::PutSlot* slot = command.mutable_stage()->add_slots();
    slot->set_job_parameter(tensor.tensor.job_parameter);
    slot->set_array(EncodeLiveArray(tensor.tensor.array));
    if (tensor.tensor.array != LiveArray::kBuffer) slot->set_dtype(EncodeDType(tensor.dtype));
    slot->set_update_count(tensor.update_count);
  }
  return command;
}

// Converts a worker's error that ends a put before the offer. A piece that the worker finds wrong,
// or is too slow for, is not the client's fault.
absl::Status Unset(const absl::Status& of_worker) {
  const bool is_its_own = absl::IsDeadlineExceeded(of_worker) || absl::IsInvalidArgument(of_worker);
  return absl::Status(is_its_own ? absl::StatusCode::kUnavailable : of_worker.code(),
                      absl::StrCat(of_worker.message(), "; nothing was changed"));
}

}  // namespace

LiveWriter::LiveWriter(CoordinatorHost* host, PutHub* hub, const PutTimes& times, Client client)
    : host_(host),
      hub_(hub),
      times_(times),
      client_(std::move(client)),
      session_(&hub->sessions),
      watch_({"a put", times.client,
              absl::CancelledError(absl::StrCat("the client sent nothing for ",
                                                absl::FormatDuration(times.client),
                                                "; nothing was changed")),
              [this] { return Deletion(); }, [this] { session_.Close(); }, client_.cancel,
              /*cancels_if_gone=*/true}) {}

absl::StatusOr<v1::PutReply> LiveWriter::Write(const v1::PutBegin& begin) {
  job_ = JobId(begin.job_id());
  RETURN_IF_ERROR(CheckRange("wait_ms", begin.wait_ms(), 0, kMaxWaitMs));
  step_timeout_ = begin.wait_ms() == 0 ? times_.step : absl::Milliseconds(begin.wait_ms());
  ASSIGN_OR_RETURN(const JobView view, WritableJob(begin.generation()));
  generation_ = view.generation;
  collective_timeout_ = view.spec->config.collective_timeout;
  ASSIGN_OR_RETURN(plan_, PlanPut(*view.spec, begin));
  // A rank votes for one put at a time, so a second one could only wait.
  if (!hub_->puts.TryEnter(job_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job '", job_.value(), "': another client sets its values"));
  }
  const absl::Status watched = watch_.Start();
  absl::StatusOr<v1::PutReply> reply =
      watched.ok() ? WriteWatched() : absl::StatusOr<v1::PutReply>(watched);
  session_.Close();
  hub_->puts.Leave(job_);
  absl::Status reason = watch_.Stop();
  // The workers may have heard of a deletion before the watching thread.
  if (reason.ok()) reason = Deletion();
  // A put that was set is set, whatever has ended the call since.
  if (!reply.ok() && !reason.ok()) reply = reason;
  TESSERA_LOG(INFO, "job={} put of {} tensors: {}", job_.value(), plan_.num_tensors,
              reply.ok() ? absl::StrCat("step ", reply->step()) : reply.status().ToString());
  return reply;
}

absl::StatusOr<JobView> LiveWriter::WritableJob(int64_t wanted_generation) const {
  ASSIGN_OR_RETURN(JobView view, host_->GetJob(job_));
  const std::string what = absl::StrCat("job '", job_.value(), "'");
  if (wanted_generation != 0 && view.generation.value() != wanted_generation) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " has generation ", view.generation.value(), ", not ", wanted_generation));
  }
  RETURN_IF_ERROR(CheckNotOver(job_, view.status));
  if (!view.status.bound) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has no values yet: it has not begun: ", view.status.reason));
  }
  return view;
}

absl::StatusOr<v1::PutReply> LiveWriter::WriteWatched() {
  RETURN_IF_ERROR(OpenLines());
  // The workers make room before the client sends its first piece.
  RETURN_IF_ERROR(SendAll(StageCommand(plan_, NewPut())));
  RETURN_IF_ERROR(AwaitAll(v1::PutEvent::kReady, times_.answer));
  RETURN_IF_ERROR(TakeAll());
  // Only now do the workers learn that their parts are complete.
  v1::PutCommand seal;
  seal.mutable_seal();
  RETURN_IF_ERROR(SendAll(seal));
  RETURN_IF_ERROR(AwaitAll(v1::PutEvent::kStaged, times_.worker));
  return Offer();
}

absl::Status LiveWriter::OpenLines() {
  ASSIGN_OR_RETURN(const JobView view, host_->GetJob(job_));
  std::vector<WorkerId> workers;
  for (const RankPlacement& placement : view.status.placements) {
    const int rank = workers_.empty() ? 0 : workers_.back().end_rank;
    // The ranks of a worker are consecutive.
    if (workers.empty() || workers.back() != placement.worker) {
      workers.push_back(placement.worker);
      workers_.push_back({nullptr, rank, rank});
    }
    ++workers_.back().end_rank;
  }
  has_replicas_ = EachWorkerHasAll(*view.spec, view.status.placements);
  // All workers of the job, also those without a slice of the put: each rank has to vote for it.
  const absl::Status opened =
      session_.Open(workers, [this](const WorkerId& worker, const std::string& session) {
        return host_->SendCommand(worker, StagePut{job_, generation_, session});
      });
  if (!opened.ok()) return Unset(opened);
  const PutSession::Lines lines = session_.lines();
  if (lines.empty()) return absl::CancelledError("the put was ended; nothing was changed");
  for (size_t i = 0; i < lines.size(); ++i) workers_[i].line = lines[i];
  return absl::OkStatus();
}

absl::Status LiveWriter::SendAll(const v1::PutCommand& command) {
  for (const Worker& worker : workers_) {
    const absl::Status sent =
        worker.line->Send(command, SteadyNow() + times_.worker, [this] { return Cancelled(); });
    if (!sent.ok()) return Unset(sent);
  }
  return absl::OkStatus();
}

absl::Status LiveWriter::AwaitAll(v1::PutEvent::EventCase kind, absl::Duration timeout) {
  // One deadline for all, because they work at the same time.
  const absl::Time deadline = SteadyNow() + timeout;
  for (const Worker& worker : workers_) {
    const absl::StatusOr<v1::PutEvent> event =
        worker.line->Next(deadline, [this] { return Cancelled(); });
    if (!event.ok()) return Unset(event.status());
    if (event->event_case() == kind) continue;
    return absl::UnavailableError(absl::StrCat("worker '", worker.line->worker(),
                                               "' answered out of order; nothing was changed"));
  }
  return absl::OkStatus();
}

absl::Status LiveWriter::ReadRequest(v1::PutRequest* request) {
  ASSIGN_OR_RETURN(const bool read, watch_.Wait([&] { return client_.read(request); }));
  if (read) return absl::OkStatus();
  if (client_.cancelled()) return absl::CancelledError("the client is gone; nothing was changed");
  return absl::InvalidArgumentError("the client ended the put too early; nothing was changed");
}

absl::Status LiveWriter::TakeAll() {
  hashes_.assign(plan_.tensors.size(), kHashSeed);
  for (size_t index = 0; index < plan_.tensors.size(); ++index) {
    const absl::Status taken = TakeTensor(index);
    if (absl::IsInvalidArgument(taken))
      return Annotate(taken, absl::StrCat("tensor '", plan_.tensors[index].name, "'"));
    RETURN_IF_ERROR(taken);
  }
  v1::PutRequest request;
  RETURN_IF_ERROR(ReadRequest(&request));
  if (request.has_end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "more elements than the put's tensors have; nothing was changed");
}

absl::Status LiveWriter::TakeTensor(size_t index) {
  const PutPlan::Tensor& tensor = plan_.tensors[index];
  const int64_t element_bytes = tensor.element_bytes;
  v1::PutRequest request;
  for (int64_t done = 0; done < tensor.numel;) {
    RETURN_IF_ERROR(ReadRequest(&request));
    const std::string& data = request.piece().data();
    const auto size_bytes = static_cast<int64_t>(data.size());
    if (!request.has_piece()) {
      return absl::InvalidArgumentError(absl::StrCat("it ends after ", done, " of ", tensor.numel,
                                                     " elements; nothing was changed"));
    }
    const int64_t offset = request.piece().offset_elements(), count = size_bytes / element_bytes;
    if (offset != done || data.empty() || size_bytes % element_bytes != 0 ||
        data.size() > kMaxPieceBytes || count > tensor.numel - done) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece of ", size_bytes, " bytes at element ", offset, ", where element ",
                       done, " of ", tensor.numel, " comes next, in pieces of at most ",
                       kMaxPieceBytes, " bytes; nothing was changed"));
    }
    // The elements of tied tensors are not kept, so their hashes are compared.
    if (tensor.is_shared || tensor.same_as >= 0) hashes_[index] = Hash(hashes_[index], data);
    if (tensor.same_as < 0) RETURN_IF_ERROR(Forward(tensor, request.piece()));
    done += count;
  }
  if (tensor.same_as < 0 || hashes_[index] == hashes_[tensor.same_as]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it is tied to '",
                                                 plan_.tensors[tensor.same_as].name,
                                                 "', and has other values; nothing was changed"));
}

absl::Status LiveWriter::Forward(const PutPlan::Tensor& tensor, const v1::LivePiece& piece) {
  const int64_t element_bytes = tensor.element_bytes;
  const int64_t begin = piece.offset_elements();
  const int64_t end = begin + static_cast<int64_t>(piece.data().size()) / element_bytes;
  for (const Worker& worker : workers_) {
    // With replicas several workers hold an element, and each of them gets it.
    RETURN_IF_ERROR(ForEachHeldRange(
        plan_.layout, {tensor.tensor}, worker.first_rank, worker.end_rank,
        [&](const HeldRange& range) -> absl::Status {
          const int64_t from = std::max(begin, range.begin_elements);
          const int64_t to = std::min(end, range.begin_elements + range.numel);
          if (from >= to) return absl::OkStatus();
          v1::PutCommand command;
          command.mutable_piece()->set_offset_elements(from);
          command.mutable_piece()->set_data(
              piece.data().substr((from - begin) * element_bytes, (to - from) * element_bytes));
          const absl::Status sent = worker.line->Send(
              std::move(command), SteadyNow() + times_.worker, [this] { return Cancelled(); });
          return sent.ok() ? sent : Unset(sent);
        }));
  }
  return absl::OkStatus();
}

absl::Status LiveWriter::Deletion() const {
  const absl::StatusOr<JobView> view = host_->GetJob(job_);
  if (!view.ok() || view->generation != generation_)
    return absl::AbortedError(absl::StrCat("job '", job_.value(), "' was deleted meanwhile"));
  return CheckNotOver(job_, view->status);
}

}  // namespace tessera::coordinator
