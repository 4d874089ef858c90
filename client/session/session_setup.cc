#include "client/session/session_setup.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "client/session/session_state.h"

namespace tessera {

// The largest slot moves the most at once.
SessionSetup::SessionSetup(Session* session) : session_(session) {
  for (int unit = 1; unit < session->num_units(); ++unit) {
    if (WholeBytes(unit) > WholeBytes(largest_unit_)) largest_unit_ = unit;
  }
}

int64_t SessionSetup::WholeBytes(int unit) const {
  return session_->layout().units[unit].shards.padded_numel() *
         SizeBytes(session_->full_dtype(unit));
}

void SessionSetup::LimitWaits(absl::Time deadline) {
  session_->state().client.LimitWaits(deadline);
}

void SessionSetup::LogIfContinued() const {
  if (!session_->initialized() || session_->rank() != 0) return;
  TESSERA_LOG(INFO, "the job exists already: training continues at step {} with its values",
              session_->next_step());
}

absl::StatusOr<char*> SessionSetup::ClaimSlot() {
  GradientSlots& slots = session_->state().slots;
  RETURN_IF_ERROR(slots.Claim(largest_unit_));
  return reinterpret_cast<char*>(slots.Slot(largest_unit_));
}

absl::Status SessionSetup::RunOnSlot(OpKind kind) {
  GradientSlots& slots = session_->state().slots;
  RETURN_IF_ERROR(slots.Submit(OpOf(kind, largest_unit_)));
  return slots.Await(largest_unit_);
}

absl::Status SessionSetup::Broadcast(absl::Span<char> bytes) {
  const int64_t capacity = WholeBytes(largest_unit_);
  if (capacity == 0) return absl::OkStatus();
  for (size_t at = 0; at < bytes.size(); at += capacity) {
    ASSIGN_OR_RETURN(char* const slot, ClaimSlot());
    const size_t size = std::min<size_t>(capacity, bytes.size() - at);
    // The executor broadcasts whole slots. The others' content is overwritten.
    if (session_->rank() == 0) memcpy(slot, bytes.data() + at, size);
    RETURN_IF_ERROR(RunOnSlot(OpKind::kBroadcast));
    memcpy(bytes.data() + at, slot, size);
  }
  return absl::OkStatus();
}

absl::Status SessionSetup::AllGather(absl::Span<const char> own, char* all) {
  const int64_t capacity =
      session_->state().client.plan().ExchangeNumel(session_->config().world_size) * sizeof(float);
  if (capacity == 0) {
    if (!own.empty()) memcpy(all + session_->rank() * own.size(), own.data(), own.size());
    return absl::OkStatus();
  }
  // Every rank gives as many bytes, so all make the same rounds.
  for (size_t at = 0; at < own.size(); at += capacity) {
    ASSIGN_OR_RETURN(char* const slot, ClaimSlot());
    const size_t size = std::min<size_t>(capacity, own.size() - at);
    memcpy(slot + session_->rank() * capacity, own.data() + at, size);
    RETURN_IF_ERROR(RunOnSlot(OpKind::kExchange));
    for (int rank = 0; rank < session_->config().world_size; ++rank)
      memcpy(all + rank * own.size() + at, slot + rank * capacity, size);
  }
  return absl::OkStatus();
}

absl::Status SessionSetup::AgreeOn(const absl::Status& own) {
  struct Outcome {
    int32_t code = 0;
    char text[508] = {};
  };
  Outcome mine;
  mine.code = own.raw_code();
  StoreText(own.message(), mine.text, sizeof(mine.text));
  std::vector<Outcome> all(session_->config().world_size);
  // All ranks reach this, whatever they found.
  RETURN_IF_ERROR(AllGather(absl::MakeConstSpan(reinterpret_cast<const char*>(&mine), sizeof(mine)),
                            reinterpret_cast<char*>(all.data())));
  // Its own error is complete; the exchanged texts may be cut.
  if (!own.ok()) return ErrorOfAll(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0) continue;
    return ErrorOfAll(absl::Status(
        static_cast<absl::StatusCode>(all[rank].code),
        absl::StrCat("rank ", rank, ": ", LoadText(all[rank].text, sizeof(all[rank].text)))));
  }
  return absl::OkStatus();
}

absl::Status SessionSetup::ErrorOfAll(absl::Status error) {
  if (!error.ok()) session_->state().client.set_agreed_error(true);
  return error;
}

absl::Status SessionSetup::Tell(const absl::Status& own) {
  // Of a wait for the other ranks, which have the same deadline, or of a worker that is gone.
  if (absl::IsDeadlineExceeded(own) || absl::IsUnavailable(own)) return own;
  return session_->state().client.Tell(own);
}

absl::Status SessionSetup::Finish(const absl::Status& filled) {
  // Every rank has staged by now. If one could not fill, all get its error.
  RETURN_IF_ERROR(AgreeOn(filled));
  return session_->state().client.Finish(OpOf(OpKind::kFinishInitialize));
}

absl::Status SessionSetup::InitializeFromRank0(const Filler& fill) {
  RETURN_IF_ERROR(session_->state().client.CheckNotInitialized());
  GradientSlots& slots = session_->state().slots;
  absl::Status filled;
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    const auto fill_on_rank0 = [&](int u, int p, Values values) {
      // Not returned: the other ranks wait in the broadcast.
      if (session_->rank() == 0) filled.Update(fill(u, p, values));
    };
    RETURN_IF_ERROR(slots.Stage(OpOf(OpKind::kBroadcast, unit), fill_on_rank0));
    // From the same slot and without a wait: the executor takes operations in their order.
    RETURN_IF_ERROR(slots.Submit(OpOf(OpKind::kInitialize, unit)));
  }
  return Finish(filled);
}

absl::Status SessionSetup::InitializeSlices(const SliceFiller& fill) {
  RETURN_IF_ERROR(session_->state().client.CheckNotInitialized());
  GradientSlots& slots = session_->state().slots;
  absl::Status filled;
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    const UnitLayout& layout = session_->layout().units[unit];
    const ElementRange slice = layout.shards.RangeOf(Rank(session_->rank()));
    RETURN_IF_ERROR(slots.Claim(unit));
    // The executor takes this slice and looks at nothing else.
    // The slot may hold another unit's values.
    const Values whole = slots.Shard(unit);
    memset(whole.data(), 0, whole.size_bytes());
    const std::vector<PlacedParameter>& parameters = layout.flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t offset = parameters[p].offset_elements;
      const ElementRange part = Intersect({offset, offset + parameters[p].numel}, slice);
      if (part.empty()) continue;
      filled.Update(
          fill(unit, p, part.begin - offset, slots.ValuesOf(unit, part.begin, part.size())));
    }
    RETURN_IF_ERROR(slots.Submit(OpOf(OpKind::kInitialize, unit)));
  }
  return Finish(filled);
}

}  // namespace tessera
