#include "coordinator/service/journal_starts.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "base/wall_time.h"
#include "coordinator/storage/records.pb.h"

namespace tessera::coordinator {
namespace {

constexpr absl::string_view kPrefix = "start/";

std::string KeyOf(int64_t number) { return absl::StrFormat("%s%020d", kPrefix, number); }

uint64_t NewStart() {
  uint64_t id = 0;
  // 0 stands for a worker that has heard of no start.
  while (id == 0) memcpy(&id, RandomBytes(sizeof(id)).data(), sizeof(id));
  return id;
}

absl::Status Missing(const std::string& worker, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker '", worker, "' has heard of ", what,
      ": this is an older copy of the journal, or another coordinator runs on a copy of it. Start "
      "the coordinator with the newest journal; if that is lost, and no other coordinator of this "
      "cluster runs, with --older-journal"));
}

}  // namespace

bool JournalStarts::IsRowOf(const JournalRow& row) { return absl::StartsWith(row.key, kPrefix); }

absl::StatusOr<JournalStarts> JournalStarts::Read(const std::vector<JournalRow>& rows) {
  JournalStarts starts;
  for (const JournalRow& row : rows) {
    if (!IsRowOf(row)) continue;
    journal::Start start;
    int64_t number = 0;
    if (!absl::SimpleAtoi(row.key.substr(kPrefix.size()), &number) || number < 1 ||
        !start.ParseFromString(row.value) || start.id() == 0) {
      return absl::DataLossError(absl::StrCat("journal row '", row.key, "' names no start"));
    }
    starts.starts_[number] = start.id();
  }
  starts.own_ = NewStart();
  return starts;
}

absl::Status JournalStarts::Note(Journal* journal) {
  // With the first worker, so that starts that end before they serve leave no row.
  if (is_noted_) return absl::OkStatus();
  const int64_t number = starts_.empty() ? 1 : starts_.rbegin()->first + 1;
  journal::Start own;
  own.set_id(own_);
  own.set_at_ns(absl::ToUnixNanos(WallNow()));
  std::vector<JournalChange> batch = {
      {JournalChange::Kind::kPut, KeyOf(number), own.SerializeAsString()}};
  const bool is_full = starts_.size() >= kMaxStarts;
  if (is_full) batch.push_back({JournalChange::Kind::kDelete, KeyOf(starts_.begin()->first), ""});
  // Durable before a worker hears of it: a journal without this start is an older copy.
  RETURN_IF_ERROR(journal->Append(batch, Durability::kPowerLoss));
  if (is_full) starts_.erase(starts_.begin());
  // Only after the write: a start that is not in the journal must not be told to a worker.
  starts_[number] = own_;
  is_noted_ = true;
  return absl::OkStatus();
}

absl::Status JournalStarts::CheckHeard(const std::string& worker, const HeardJournal& heard,
                                       int64_t num_changes) const {
  if (heard.start == 0) return absl::OkStatus();
  const bool is_known = std::any_of(starts_.begin(), starts_.end(),
                                    [&](const auto& start) { return start.second == heard.start; });
  if (!is_known)
    return Missing(worker, "a start of the coordinator that this journal does not have");
  if (heard.changes <= num_changes) return absl::OkStatus();
  return Missing(worker,
                 absl::StrCat(heard.changes, " changes of this journal, which has ", num_changes));
}

}  // namespace tessera::coordinator
