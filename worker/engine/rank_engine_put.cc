// How RankEngine applies values that a process outside the job sets: as a version of the state of
// its own, right after a step, while no trainer reads parameters.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/engine/rank_engine.h"

namespace tessera {
namespace {

// What each rank brings to the vote on a put; travels as bytes between ranks of one build.
struct PutVote {
  int64_t step = 0;
  uint64_t put = 0;
  int64_t is_staged = 0;
  int64_t missing_bytes = 0;  // Of the host's memory, where that is why.
};

// The first rank that has not staged it; -1: all have. Ranks that vote here agreed on the put.
int FirstWithoutIt(const std::vector<PutVote>& votes) {
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].is_staged == 0) return static_cast<int>(rank);
  }
  return -1;
}

// What each rank says, whichever of them is heard.
std::string WhyVoid(const std::vector<PutVote>& votes, int without, Rank own,
                    const absl::Status& staged) {
  if (const int64_t missing = votes[without].missing_bytes; missing > 0) {
    return absl::StrCat("rank ", without, ": no memory of the host for ", missing,
                        " bytes of the state");
  }
  return staged.ok() ? absl::StrCat("rank ", without, " could not read its part")
                     : absl::StrCat("rank ", own.value(), ": ", staged.message());
}

}  // namespace

uint64_t RankEngine::OfferPut() {
  return options_.puts->Offer(options_.group->put.load(std::memory_order_acquire));
}

absl::Status RankEngine::StagePut(int64_t next, std::optional<TrainingProgress>* loaded) {
  const std::map<int, int64_t>& counts = options_.puts->update_counts();
  std::vector<StateArray> arrays = {StateArray::kParameter};
  if (!counts.empty()) {
    for (const StateArray moment : optimizer_.Moments()) arrays.push_back(moment);
    *loaded =
        LoadProgress(*options_.group, options_.updates, step_, options_.config->groups.size());
    for (const auto& [parameter, count] : counts) (*loaded)->update_counts[parameter] = count;
  }
  StateImage* image = staged_image();
  if (image == nullptr) {
    for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
      for (const StateArray array : arrays) optimizer_.Stage(array, unit, nullptr, next);
    }
  } else {
    RETURN_IF_ERROR(image->Reserve(options_.kernels));
    RETURN_IF_ERROR(image->Pull(step_ % 2, options_.kernels));
  }
  RETURN_IF_ERROR(options_.puts->Read(optimizer_.segments(),
                                      [&](StateArray array, const ShardSegment& segment) {
                                        return Addressable(image, array, segment, next);
                                      }));
  for (const int buffer : options_.puts->buffers()) {
    if (options_.buffers == nullptr) return absl::DataLossError("buffers of a model that has none");
    RETURN_IF_ERROR(options_.buffers->Load(next, buffer, [&](std::byte* values) {
      return options_.puts->ReadBuffer(buffer, values);
    }));
  }
  return image == nullptr ? absl::OkStatus() : image->Push(next % 2, options_.kernels);
}

absl::Status RankEngine::TakePut(uint64_t offered, uint64_t agreed) {
  if (offered == 0) return absl::OkStatus();
  if (agreed != offered) {
    options_.puts->Settle(PutSource::Outcome::kNotYet, "");
    return absl::OkStatus();
  }
  const int64_t next = step_ + 1;
  const int64_t number = options_.recorder->Enqueued(next, 0, OpKind::kPut, -1, 0);
  options_.recorder->Started(number);
  RETURN_IF_ERROR(AwaitHold());
  StepNumbers numbers;
  const absl::Status staged = StagePut(next, &numbers.loaded);
  PutVote vote = {next, offered, staged.ok() ? 1 : 0};
  if (staged_image() != nullptr && absl::IsResourceExhausted(staged))
    vote.missing_bytes = staged_image()->size_bytes();
  std::vector<PutVote> votes(options_.config->world_size);
  RETURN_IF_ERROR(FaultPoint("put.before-vote"));
  RETURN_IF_ERROR(options_.communicator->AllGather(&vote, votes.data(), sizeof(vote)));
  RETURN_IF_ERROR(FaultPoint("put.after-vote"));
  if (const int without = FirstWithoutIt(votes); without >= 0) {
    options_.recorder->Done(number);
    TESSERA_LOG(WARNING, "rank {}: nothing was put: rank {} has not read its part: {}",
                options_.rank.value(), without, staged.ToString());
    options_.puts->Settle(PutSource::Outcome::kVoid,
                          WhyVoid(votes, without, options_.rank, staged));
    if (options_.buffers != nullptr) options_.buffers->DropLoaded();
    return absl::OkStatus();
  }
  numbers.is_write = true;
  numbers.put = offered;
  RecordDecision(options_.group, options_.updates, next, numbers,
                 std::vector<bool>(options_.memory->num_parameters(), false));
  RETURN_IF_ERROR(FaultPoint("put.after-decision"));
  ForgetGathered();
  remote_.StepTaken();  // All ranks closed their windows before they voted on the step.
  RETURN_IF_ERROR(ApplyDecided(next));
  CommitWrite(next);
  options_.puts->Settle(PutSource::Outcome::kDecided, "");
  options_.recorder->Done(number);
  return absl::OkStatus();
}

}  // namespace tessera
