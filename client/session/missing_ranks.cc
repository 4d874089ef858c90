#include "client/session/missing_ranks.h"

#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr size_t kMostNamed = 8;

bool HasTrainer(const v1::Job& job, int rank) {
  const auto found = job.ranks().find(rank);
  return found != job.ranks().end() && found->second.attached();
}

// An operation that waits for others counts as not started.
std::tuple<int64_t, int64_t, int64_t, bool> PlaceOf(const v1::RankStatus& status) {
  return {status.step(), status.pass(), status.sequence(), status.doing() != "idle"};
}

std::string Joined(std::vector<std::string> ranks) {
  const size_t more = ranks.size() > kMostNamed ? ranks.size() - kMostNamed : 0;
  ranks.resize(ranks.size() - more);
  std::string text = absl::StrJoin(ranks, "; ");
  if (more > 0) absl::StrAppend(&text, "; and ", more, " more");
  return text;
}

}  // namespace

std::string MissingRanks(const v1::Job& job, int rank) {
  // Ranks cannot be told apart if the job as a whole does not run.
  if (job.state() != v1::JOB_STATE_RUNNING && job.state() != v1::JOB_STATE_STARTING) {
    return absl::StrCat("the job is ",
                        absl::StripPrefix(v1::JobState_Name(job.state()), "JOB_STATE_"), ": ",
                        job.state_reason());
  }
  std::vector<std::string> without_trainer, behind;
  const auto own = job.ranks().find(rank);
  for (int r = 0; r < job.config().world_size(); ++r) {
    if (r == rank) continue;
    const auto found = job.ranks().find(r);
    const std::string last =
        found == job.ranks().end()
            ? ""
            : absl::StrCat("at step ", found->second.step(), " (", found->second.doing(), ")");
    if (!HasTrainer(job, r)) {
      without_trainer.push_back(
          absl::StrCat("rank ", r, " has no trainer", last.empty() ? "" : ", and was last ", last));
    } else if (own != job.ranks().end() && PlaceOf(found->second) < PlaceOf(own->second)) {
      behind.push_back(absl::StrCat("rank ", r, " is behind, ", last));
    }
  }
  // A missing trainer explains those that are behind it.
  return Joined(without_trainer.empty() ? behind : without_trainer);
}

bool AllHaveTrainers(const v1::Job& job) {
  for (int rank = 0; rank < job.config().world_size(); ++rank) {
    if (!HasTrainer(job, rank)) return false;
  }
  return job.state() == v1::JOB_STATE_RUNNING;
}

}  // namespace tessera
