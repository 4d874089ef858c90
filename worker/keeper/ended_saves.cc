#include "worker/keeper/ended_saves.h"

#include <algorithm>

#include "absl/status/status.h"

namespace tessera {
namespace {

constexpr int kMaxRemoved = 1024;

bool IsAborted(const v1::SaveReport& report) {
  return report.code() == static_cast<int>(absl::StatusCode::kAborted);
}

}  // namespace

bool EndedSaves::Add(const v1::SaveReport& report) {
  if (report.number() != 0 && !IsAborted(report)) request_ = std::max(request_, report.number());
  // All ranks report the same end. Epoch and ordinal say which save it is.
  const auto known = std::find_if(reports_.begin(), reports_.end(), [&](const auto& other) {
    return report.epoch() == other.epoch() && report.ordinal() == other.ordinal();
  });
  if (known == reports_.end()) {
    reports_.push_back(report);
    if (reports_.size() <= kMax) return true;
    // Full: one that the coordinator may still ask for is kept.
    const auto other = std::find_if(reports_.begin(), reports_.end(), [&](const auto& one) {
      return one.number() == 0 || one.number() != request_ || IsAborted(one);
    });
    // So many of one number are an executor's that says what it likes.
    reports_.erase(other != reports_.end() ? other : reports_.begin());
    return true;
  }
  if (IsAborted(*known) && !IsAborted(report)) {
    *known = report;  // This rank knows how it ended.
    return true;
  }
  if (report.removed().empty()) return false;  // Every rank says it.
  // Each rank may have removed other files. What the coordinator gets must still fit a message.
  if (known->removed_size() < kMaxRemoved) known->mutable_removed()->MergeFrom(report.removed());
  return true;
}

}  // namespace tessera
