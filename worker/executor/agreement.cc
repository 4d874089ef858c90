#include "worker/executor/agreement.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "shm/control_page.h"
#include "worker/engine/agreed_error.h"

namespace tessera {
namespace {

constexpr size_t kMaxCauseBytes = 512;
constexpr size_t kMaxCauses = 4;
constexpr size_t kMaxRuns = 4;

// A rank's outcome as bytes that ranks exchange.
struct Outcome {
  int32_t code = 0;
  char message[kMaxCauseBytes] = {};
};

// The ranks that failed alike, rising.
struct Cause {
  absl::Status status;
  std::vector<int> ranks;
};

std::vector<Cause> CausesOf(const std::vector<absl::Status>& by_rank) {
  std::vector<Cause> causes;
  // Ranks usually fail alike: one cause is told once, with the ranks that have it.
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].ok()) continue;
    const auto same = std::find_if(causes.begin(), causes.end(), [&](const Cause& cause) {
      return cause.status == by_rank[rank];
    });
    Cause& cause = same == causes.end() ? causes.emplace_back() : *same;
    cause.status = by_rank[rank];
    cause.ranks.push_back(static_cast<int>(rank));
  }
  return causes;
}

// "rank 3", "ranks 0-2, 5", "ranks 0, 2, 4, 6 and 9 more"
std::string RanksOf(const Cause& cause) {
  std::vector<std::string> runs;
  const std::vector<int>& ranks = cause.ranks;
  size_t told = 0;
  while (told < ranks.size() && runs.size() < kMaxRuns) {
    size_t last = told;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    runs.push_back(last == told ? absl::StrCat(ranks[told])
                                : absl::StrCat(ranks[told], "-", ranks[last]));
    told = last + 1;
  }
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "),
      told < ranks.size() ? absl::StrCat(" and ", ranks.size() - told, " more") : "");
}

// At most so many bytes of it: its beginning and its end.
std::string WithoutMiddle(absl::string_view text, size_t max_bytes) {
  constexpr absl::string_view kGap = " ... ";
  if (text.size() <= max_bytes) return std::string(text);
  const size_t head_bytes = (max_bytes - kGap.size()) / 3;
  size_t tail = text.size() - (max_bytes - kGap.size() - head_bytes);
  // Not from within a character.
  while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xc0) == 0x80) ++tail;
  return absl::StrCat(Utf8Prefix(text, head_bytes), kGap, text.substr(tail));
}

// Of each cause at most `max_bytes`.
std::string TextOf(absl::string_view what, const std::vector<Cause>& causes, size_t max_bytes) {
  std::vector<std::string> told;
  size_t num_left_out = 0;
  for (const Cause& cause : causes) {
    if (told.size() == kMaxCauses) {
      num_left_out += cause.ranks.size();
      continue;
    }
    told.push_back(
        absl::StrCat(RanksOf(cause), ": ", WithoutMiddle(cause.status.message(), max_bytes)));
  }
  return absl::StrCat(what, " on ", absl::StrJoin(told, "; "),
                      num_left_out == 0   ? ""
                      : num_left_out == 1 ? "; 1 more rank failed"
                                          : absl::StrCat("; ", num_left_out, " more ranks failed"));
}

}  // namespace

absl::Status JoinOutcomes(absl::string_view what, const std::vector<absl::Status>& by_rank) {
  constexpr size_t kStepBytes = 16, kLeastBytes = 64;
  // In rank order: every rank makes the same text.
  // Trainers of all ranks are told it, and their users compare.
  const std::vector<Cause> causes = CausesOf(by_rank);
  if (causes.empty()) return absl::OkStatus();
  size_t max_bytes = kMaxCauseBytes;
  std::string text = TextOf(what, causes, max_bytes);
  // A packet and a page have room for so much. The causes are shortened, the ranks are kept.
  while (text.size() > kMaxJoinedBytes && max_bytes > kLeastBytes) {
    max_bytes -= kStepBytes;
    text = TextOf(what, causes, max_bytes);
  }
  // The first rank's code: one answer for all trainers.
  return absl::Status(causes[0].status.code(), text);
}

absl::Status AgreeOn(absl::string_view what, const absl::Status& own, Communicator* communicator) {
  Outcome outcome;
  outcome.code = own.raw_code();
  // A fixed size, so that one all-gather is enough.
  StoreText(WithoutMiddle(own.message(), kMaxCauseBytes - 1), outcome.message, kMaxCauseBytes);
  std::vector<Outcome> all(communicator->size());
  // Not agreed: a rank that is missing ends the epoch, whatever the others think.
  RETURN_IF_ERROR(communicator->AllGather(&outcome, all.data(), sizeof(Outcome)));
  std::vector<absl::Status> by_rank;
  for (const Outcome& of_rank : all) {
    by_rank.push_back(absl::Status(static_cast<absl::StatusCode>(of_rank.code),
                                   LoadText(of_rank.message, kMaxCauseBytes)));
  }
  return AsAgreed(JoinOutcomes(what, by_rank));
}

}  // namespace tessera
