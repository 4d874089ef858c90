#include "client/session/state_access.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_state.h"
#include "client/session/tensor_codec.h"
#include "proto/checkpoint.pb.h"

namespace tessera {
namespace {

Op OpOnArray(OpKind kind, int unit, StateArray array) {
  Op op = OpOf(kind, unit);
  op.array_or_event = static_cast<uint32_t>(array);
  return op;
}

}  // namespace

absl::Status StateAccess::Send(absl::string_view message) {
  RETURN_IF_ERROR(session_->state().client.CheckProcess());
  while (!message.empty()) {
    Op op = OpOf(OpKind::kSend);
    op.message_bytes = std::min(message.size(), kPieceBytes);
    // One piece at a time: it has one place in the page.
    memcpy(session_->state().client.page()->piece, message.data(), op.message_bytes);
    RETURN_IF_ERROR(session_->state().client.SubmitAndAwait(op));
    message.remove_prefix(op.message_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateAccess::Receive() {
  const ControlPage* page = session_->state().client.page();
  std::string reply;
  size_t bytes = kPieceBytes;
  // The last piece is not full: an empty one follows a reply that fills its pieces.
  while (bytes == kPieceBytes) {
    RETURN_IF_ERROR(session_->state().client.SubmitAndAwait(OpOf(OpKind::kReceive)));
    // A number from shared memory, bounded before it is used as a length.
    bytes = std::min<size_t>(page->piece_bytes.load(std::memory_order_relaxed), kPieceBytes);
    reply.append(page->piece, bytes);
  }
  return reply;
}

absl::StatusOr<std::string> StateAccess::Call(OpKind kind, absl::string_view request) {
  RankClient& client = session_->state().client;
  absl::StatusOr<std::string> reply = [&]() -> absl::StatusOr<std::string> {
    RETURN_IF_ERROR(Send(request));
    // After the request has arrived in pieces, which are this rank's and wait for no other.
    RETURN_IF_ERROR(client.Finish(OpOf(kind)));
    return Receive();
  }();
  // Another rank's error, which ended the epoch, is told by this.
  // Recovered here, so that the caller need not know that an epoch ended.
  if (!reply.ok() && client.EpochIsOver() && !absl::IsAborted(reply.status())) {
    RETURN_IF_ERROR(client.Recover());
    client.set_agreed_error(true);
  }
  return reply;
}

absl::StatusOr<std::string> StateAccess::CallToWrite(OpKind kind, absl::string_view request) {
  // A rank closes its windows in full precision before it votes for a new version.
  RETURN_IF_ERROR(session_->state().windows.CloseFull());
  return Call(kind, request);
}

absl::Status StateAccess::ReadArray(int unit, StateArray array, const Session::Reader& read) {
  GradientSlots& slots = session_->state().slots;
  RETURN_IF_ERROR(session_->state().client.CheckInitialized());
  RETURN_IF_ERROR(slots.Read(OpOnArray(OpKind::kRead, unit, array)));
  const std::vector<PlacedParameter>& parameters = session_->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) read(p, slots.ValuesOf(unit, parameters[p]));
  return absl::OkStatus();
}

absl::Status StateAccess::StageArray(int unit, StateArray array, const Session::Filler& fill) {
  return session_->state().slots.Stage(OpOnArray(OpKind::kWrite, unit, array), fill);
}

absl::Status StateAccess::StageSlice(int unit, StateArray array,
                                     absl::FunctionRef<absl::Status(Values slice)> fill) {
  GradientSlots& slots = session_->state().slots;
  RETURN_IF_ERROR(slots.Claim(unit));
  RETURN_IF_ERROR(fill(slots.Shard(unit)));
  return slots.Submit(OpOnArray(OpKind::kWrite, unit, array));
}

DialOptions StateAccess::coordinator() const { return session_->state().client.Coordinator(); }

const std::string& StateAccess::job_id() const { return session_->state().client.options().job_id; }

int64_t StateAccess::generation() const { return session_->state().client.generation(); }
int64_t StateAccess::epoch() const { return session_->state().client.epoch(); }
int64_t StateAccess::version() const { return session_->state().client.version(); }

absl::Duration StateAccess::operation_timeout() const {
  return session_->state().client.options().operation_timeout;
}

void StateAccess::OnWantedSave(std::function<std::string(int64_t number)> request) {
  session_->state().wanted_save_request = std::move(request);
}

void StateAccess::SetTrainerTensors(TrainerTensors tensors) {
  session_->state().trainer_tensors = std::make_shared<const TrainerTensors>(std::move(tensors));
}

const TrainerTensors* StateAccess::trainer_tensors() const {
  return session_->state().trainer_tensors.get();
}

absl::Status StateAccess::FinishState(const TrainingProgress& progress) {
  RETURN_IF_ERROR(session_->state().windows.CloseFull());
  RETURN_IF_ERROR(Send(EncodeProgress(progress)));
  Op op = OpOf(OpKind::kFinishWrite);
  op.sets_moments = 1;
  return session_->state().client.Finish(op);
}

void StateAccess::TakeSaveRequest() {
  const RankClient& client = session_->state().client;
  // From shared memory, and the same on all ranks: the vote decided it.
  const int64_t number = client.page()->result.wanted_save;
  if (session_->state().defers_saves) {
    session_->state().deferred_save = number;
  } else if (number != 0) {
    MakeWantedSave(number);
  }
}

void StateAccess::DeferWantedSaves() { session_->state().defers_saves = true; }

void StateAccess::MakeDeferredSave() {
  const int64_t number = std::exchange(session_->state().deferred_save, 0);
  if (number != 0) MakeWantedSave(number);
}

void StateAccess::MakeWantedSave(int64_t number) {
  RankClient& client = session_->state().client;
  std::string bytes;
  if (session_->state().wanted_save_request != nullptr) {
    bytes = session_->state().wanted_save_request(number);
  } else {
    v1::SaveRequest request;
    request.set_request_number(number);
    AddTrainerTensors(session_, &request);
    bytes = request.SerializeAsString();
  }
  const absl::Status status = Call(OpKind::kSave, bytes).status();
  // An error that only this rank has would leave the others in the save.
  const bool all_have_it = status.ok() || client.agreed_error() || client.EpochIsOver();
  client.set_agreed_error(false);  // Not the step's.
  // Its result would be taken for that of what comes next.
  if (!all_have_it) (void)client.Fail(status);
}

}  // namespace tessera
