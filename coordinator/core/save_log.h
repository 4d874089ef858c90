// The saves of one job: the pending requests, and the results of requested and other saves.
//
//               begun                 reported
//   kWaiting ───────────► kSaving ───────────────► kEnded
//      ▲  │                 │ │                      ▲
//      │  │  epoch over     │ │ given up             │
//      │  └──(nothing)      │ └──────────────────────┤
//      └────────────────────┘                        │
//      kWaiting ── withdrawn, given up, reported ────┘
//
// Requests are served one at a time, in the order of their numbers. Copyable value;
// thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_SAVE_LOG_H_
#define TESSERA_COORDINATOR_CORE_SAVE_LOG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "job/save_spec.h"

namespace tessera::coordinator {

enum class SaveState { kWaiting, kSaving, kEnded };
enum class SaveEvent { kBegun, kEpochOver, kReported, kWithdrawn, kGivenUp };
// The state after `event`, or nullopt where the event cannot happen in `state`.
std::optional<SaveState> NextState(SaveState state, SaveEvent event);

// What has become of a checkpoint, as far as the job's own saves tell.
enum class SaveFate { kNone, kKept, kReplaced, kRemoved };

struct Save {
  int64_t number = 0;      // Counts the job's saves from 1.
  std::string request_id;  // Empty: the trainers decided to save.
  SaveSpec spec;
  SaveState state = SaveState::kWaiting;
  absl::Time requested_at = absl::UnixEpoch();
  absl::Time expires_at = absl::InfiniteFuture();  // If it still waits then, it is withdrawn.
  int32_t tries = 0;                               // Attempts that ended with their epoch.
  std::string last_failure;                        // Why the last attempt ended.
  bool cancelled = false;                          // While kSaving: it should stop.
  Step step;                                       // As trainers count; of the last attempt.
  // Set in kEnded.
  int64_t ended_sequence = 0;  // Rises with each save that ends.
  absl::Time ended_at = absl::UnixEpoch();
  // The epoch, and which of its saves the ranks called this. Ordinal 0: they reported no end.
  Epoch epoch;
  int64_t ordinal = 0;
  absl::Duration took;
  int64_t size_bytes = 0;
  absl::Status outcome;
  SaveFate fate = SaveFate::kNone;

  bool requested() const { return !request_id.empty(); }
};

// A consistent copy of one save, for replies.
struct SaveView {
  Save save;
  int64_t written_bytes = 0, all_bytes = 0;  // While kSaving, as reported so far.
  std::string waits_for;                     // While kWaiting, for display.
};

class SaveLog {
 public:
  // Of the ended ones the newest are kept: this many, with this many bytes of paths and messages.
  static constexpr int kMaxEnded = 256;
  static constexpr size_t kMaxEndedTextBytes = 256 << 10;
  static constexpr int kMaxPending = 16;

  void Put(const Save& save);
  void Forget(int64_t number);

  const Save* Find(int64_t number) const;
  const Save* FindRequest(const std::string& request_id) const;
  // The one that ranks call so, if its end was reported.
  const Save* FindReported(Epoch epoch, int64_t ordinal) const;
  // The save to make next, or in progress; null: none.
  const Save* Head() const;
  // The numbers of the saves that have not ended.
  const std::set<int64_t>& pending() const { return pending_; }
  // In the order in which they ended.
  std::vector<const Save*> Ended() const;

  int64_t NextNumber(int64_t at_least) const { return std::max(last_number_ + 1, at_least); }
  int64_t NextEndedSequence() const { return last_ended_sequence_ + 1; }
  // The numbers of the saves to forget when another one ends.
  std::vector<int64_t> Surplus() const;

  // The other saves whose fate changes when `save` is kept, with their new fate: those that ended
  // before it and had its path, or a path that it removed.
  std::vector<Save> Outdated(const Save& save, const std::vector<std::string>& removed) const;

 private:
  std::map<int64_t, Save> saves_;
  std::set<int64_t> pending_;
  int64_t last_number_ = 0, last_ended_sequence_ = 0;  // The largest ever, as far as known.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_SAVE_LOG_H_
