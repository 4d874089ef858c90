#include "coordinator/core/save_log.h"

#include <algorithm>

namespace tessera::coordinator {
namespace {

size_t TextBytes(const Save& save) {
  return save.request_id.size() + save.spec.path.size() + save.spec.root.size() +
         save.last_failure.size() + save.outcome.message().size();
}

}  // namespace

std::optional<SaveState> NextState(SaveState state, SaveEvent event) {
  if (state == SaveState::kEnded) return std::nullopt;
  const bool saving = state == SaveState::kSaving;
  switch (event) {
    case SaveEvent::kBegun:
      return SaveState::kSaving;
    case SaveEvent::kEpochOver:
      // The save is gone with its epoch, so that of a later step takes its place.
      return SaveState::kWaiting;
    case SaveEvent::kReported:
    case SaveEvent::kGivenUp:
      return SaveState::kEnded;
    case SaveEvent::kWithdrawn:
      // The ranks may already have written everything, so their report decides how it ends.
      return saving ? std::nullopt : std::optional<SaveState>(SaveState::kEnded);
  }
  return std::nullopt;
}

void SaveLog::Put(const Save& save) {
  saves_[save.number] = save;
  if (save.state == SaveState::kEnded) {
    pending_.erase(save.number);
  } else {
    pending_.insert(save.number);
  }
  // Kept when the save is forgotten, so that no number is given twice.
  last_number_ = std::max(last_number_, save.number);
  last_ended_sequence_ = std::max(last_ended_sequence_, save.ended_sequence);
}

void SaveLog::Forget(int64_t number) {
  saves_.erase(number);
  pending_.erase(number);
}

const Save* SaveLog::Find(int64_t number) const {
  const auto it = saves_.find(number);
  return it == saves_.end() ? nullptr : &it->second;
}

const Save* SaveLog::FindRequest(const std::string& request_id) const {
  for (const auto& [number, save] : saves_) {
    if (save.requested() && save.request_id == request_id) return &save;
  }
  return nullptr;
}

const Save* SaveLog::FindReported(Epoch epoch, int64_t ordinal) const {
  for (const auto& [number, save] : saves_) {
    if (save.ordinal != 0 && save.epoch == epoch && save.ordinal == ordinal) return &save;
  }
  return nullptr;
}

const Save* SaveLog::Head() const { return pending_.empty() ? nullptr : Find(*pending_.begin()); }

std::vector<const Save*> SaveLog::Ended() const {
  std::vector<const Save*> ended;
  for (const auto& [number, save] : saves_) {
    if (save.state == SaveState::kEnded) ended.push_back(&save);
  }
  std::sort(ended.begin(), ended.end(),
            [](const Save* a, const Save* b) { return a->ended_sequence < b->ended_sequence; });
  return ended;
}

std::vector<int64_t> SaveLog::Surplus() const {
  const std::vector<const Save*> ended = Ended();
  int num_kept = 0;
  size_t text_bytes = 0;
  std::vector<int64_t> surplus;
  // The newest first, so that the oldest are those that do not fit.
  for (auto save = ended.rbegin(); save != ended.rend(); ++save) {
    text_bytes += TextBytes(**save);
    const bool is_kept = num_kept + 1 < kMaxEnded && text_bytes <= kMaxEndedTextBytes;
    if (is_kept) ++num_kept;
    if (!is_kept) surplus.push_back((*save)->number);
  }
  std::reverse(surplus.begin(), surplus.end());
  return surplus;
}

std::vector<Save> SaveLog::Outdated(const Save& save,
                                    const std::vector<std::string>& removed) const {
  std::vector<Save> outdated;
  for (const auto& [number, other] : saves_) {
    // A save that ended later was not replaced by this one.
    if (other.fate != SaveFate::kKept || other.ended_sequence >= save.ended_sequence) continue;
    const bool is_removed =
        std::find(removed.begin(), removed.end(), other.spec.path) != removed.end();
    if (!is_removed && other.spec.path != save.spec.path) continue;
    Save& changed = outdated.emplace_back(other);
    changed.fate = is_removed ? SaveFate::kRemoved : SaveFate::kReplaced;
  }
  return outdated;
}

}  // namespace tessera::coordinator
