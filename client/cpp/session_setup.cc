#include "client/cpp/session_setup.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

SessionSetup::SessionSetup(Session* session) : session_(session) {
  for (int unit = 1; unit < session->num_units(); ++unit) {
    if (WholeBytes(unit) > WholeBytes(largest_unit_)) largest_unit_ = unit;
  }
}

int64_t SessionSetup::WholeBytes(int unit) const {
  return session_->layout().units[unit].shards.padded_numel() *
         SizeBytes(session_->full_dtype(unit));
}

absl::Status SessionSetup::RunOnSlot(OpKind kind, int unit) {
  RETURN_IF_ERROR(session_->SubmitSlot(kind, unit));
  return session_->AwaitSlot(unit);
}

absl::Status SessionSetup::Broadcast(absl::Span<char> bytes) {
  const int64_t capacity = WholeBytes(largest_unit_);
  if (capacity == 0) return absl::OkStatus();
  for (size_t at = 0; at < bytes.size(); at += capacity) {
    RETURN_IF_ERROR(session_->ClaimSlot(largest_unit_));
    char* slot = reinterpret_cast<char*>(session_->Slot(largest_unit_));
    const size_t size = std::min<size_t>(capacity, bytes.size() - at);
    if (session_->rank() == 0) memcpy(slot, bytes.data() + at, size);
    RETURN_IF_ERROR(RunOnSlot(OpKind::kBroadcast, largest_unit_));
    memcpy(bytes.data() + at, slot, size);
  }
  return absl::OkStatus();
}

absl::Status SessionSetup::AllGather(absl::Span<const char> own, char* all) {
  const int64_t capacity =
      session_->plan_.ExchangeNumel(session_->config().world_size) * sizeof(float);
  for (size_t at = 0; at < own.size(); at += capacity) {
    RETURN_IF_ERROR(session_->ClaimSlot(largest_unit_));
    char* slot = reinterpret_cast<char*>(session_->Slot(largest_unit_));
    const size_t size = std::min<size_t>(capacity, own.size() - at);
    memcpy(slot + session_->rank() * capacity, own.data() + at, size);
    RETURN_IF_ERROR(RunOnSlot(OpKind::kExchange, largest_unit_));
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
  RETURN_IF_ERROR(AllGather(absl::MakeConstSpan(reinterpret_cast<const char*>(&mine), sizeof(mine)),
                            reinterpret_cast<char*>(all.data())));
  RETURN_IF_ERROR(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(all[rank].code),
        absl::StrCat("rank ", rank, ": ", LoadText(all[rank].text, sizeof(all[rank].text))));
  }
  return absl::OkStatus();
}

absl::Status SessionSetup::CheckNew() const {
  if (!session_->initialized()) return absl::OkStatus();
  return absl::FailedPreconditionError("the job has its initial values already");
}

absl::Status SessionSetup::Finish(const absl::Status& filled) {
  RETURN_IF_ERROR(AgreeOn(filled));
  RETURN_IF_ERROR(session_->Submit(OpKind::kFinishInitialize, -1));
  RETURN_IF_ERROR(session_->AwaitResult(OpKind::kFinishInitialize));
  return session_->ResultStatus();
}

absl::Status SessionSetup::InitializeFromRank0(const Filler& fill) {
  RETURN_IF_ERROR(CheckNew());
  absl::Status filled;
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    const auto fill_on_rank0 = [&](int u, int p, Values values) {
      if (session_->rank() == 0) filled.Update(fill(u, p, values));
    };
    RETURN_IF_ERROR(session_->StageValues(OpKind::kBroadcast, unit, fill_on_rank0));
    RETURN_IF_ERROR(session_->SubmitSlot(OpKind::kInitialize, unit));
  }
  return Finish(filled);
}

absl::Status SessionSetup::InitializeSlices(const SliceFiller& fill) {
  RETURN_IF_ERROR(CheckNew());
  absl::Status filled;
  for (int unit = 0; unit < session_->num_units(); ++unit) {
    const UnitLayout& layout = session_->layout().units[unit];
    const ElementRange slice = layout.shards.RangeOf(Rank(session_->rank()));
    RETURN_IF_ERROR(session_->ClaimSlot(unit));
    // The executor takes this slice and looks at nothing else.
    const Values whole = session_->SlotValues(unit, slice.begin, slice.size());
    memset(whole.data(), 0, whole.size_bytes());
    const std::vector<PlacedParameter>& parameters = layout.flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t offset = parameters[p].offset_elements;
      const ElementRange part = Intersect({offset, offset + parameters[p].numel}, slice);
      if (part.empty()) continue;
      filled.Update(
          fill(unit, p, part.begin - offset, session_->SlotValues(unit, part.begin, part.size())));
    }
    RETURN_IF_ERROR(session_->SubmitSlot(OpKind::kInitialize, unit));
  }
  return Finish(filled);
}

}  // namespace tessera
