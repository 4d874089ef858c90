#include "worker/engine/trainer_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Of what a trainer sends at once, its own bytes for a checkpoint included.
constexpr size_t kMaxRequestBytes = size_t{1} << 30;

}  // namespace

absl::Status TrainerLink::Append(const Op& op) {
  // The size comes from shared memory, and many pieces add up.
  if (op.message_bytes > kPieceBytes || request_.size() + op.message_bytes > kMaxRequestBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_.value(), ": a message of ",
                                                   request_.size() + op.message_bytes,
                                                   " bytes, or a piece of ", op.message_bytes));
  }
  request_.append(control_.piece, op.message_bytes);
  return absl::OkStatus();
}

// Taken, so that what is sent next belongs to the next operation, whatever becomes of this one.
std::string TrainerLink::TakeRequest() { return std::exchange(request_, std::string()); }

void TrainerLink::Reply(std::string reply) {
  reply_ = std::move(reply);
  reply_offset_ = 0;
}

void TrainerLink::SendPiece() {
  const size_t bytes = std::min(kPieceBytes, reply_.size() - reply_offset_);
  memcpy(control_.piece, reply_.data() + reply_offset_, bytes);
  // Relaxed: the trainer looks once the operation counts as consumed, which is a release.
  control_.piece_bytes.store(bytes, std::memory_order_relaxed);
  reply_offset_ += bytes;
}

void TrainerLink::PublishResult(const absl::Status& status, double gradient_norm, bool non_finite) {
  OpResult& result = control_.result;
  // Release by the count: the trainer reads the fields once it has seen it.
  result.status_code = status.raw_code();
  result.gradient_norm = gradient_norm;
  result.non_finite = non_finite;
  StoreText(status.message(), result.message, kMaxErrorBytes);
  result.count.fetch_add(1, std::memory_order_acq_rel);
  Bump(&control_.events);
}

void TrainerLink::ReleaseSlot(int unit) {
  // After the last read of the slot. The trainer acquires it before it writes there again.
  control_.units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&control_.events);
}

}  // namespace tessera
