#include "worker/engine/put_applier.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"

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
  // Votes have numbers only. Another rank's text is not known here.
  if (const int64_t missing = votes[without].missing_bytes; missing > 0) {
    return absl::StrCat("rank ", without, ": no host memory for ", missing, " bytes of the state");
  }
  return staged.ok() ? absl::StrCat("rank ", without, " could not read its part")
                     : absl::StrCat("rank ", own.value(), ": ", staged.message());
}

}  // namespace

uint64_t PutApplier::Offer() {
  const RankEngineOptions& options = context_.options;
  // The put that was applied last is not offered twice.
  return options.puts->Offer(options.group->put.load(std::memory_order_acquire));
}

absl::Status PutApplier::Stage(int64_t next, std::optional<TrainingProgress>* loaded) {
  const RankEngineOptions& options = context_.options;
  const std::map<int, int64_t>& counts = options.puts->update_counts();
  std::vector<StateArray> arrays = {StateArray::kParameter};
  if (!counts.empty()) {
    for (const StateArray moment : context_.optimizer.Moments()) arrays.push_back(moment);
    // Only some parameters may have counts of their own. The others keep theirs.
    *loaded =
        LoadProgress(*options.group, options.updates, next - 1, options.config->groups.size());
    for (const auto& [parameter, count] : counts) (*loaded)->update_counts[parameter] = count;
  }
  AddressableState& state = versions_.next();
  // It may fail for want of memory on this rank alone, which the second vote tells all.
  RETURN_IF_ERROR(state.Reserve());
  RETURN_IF_ERROR(state.BeginWrite(next, arrays));
  // The version to be, which nobody reads before the decision.
  RETURN_IF_ERROR(options.puts->Read(context_.optimizer.segments(),
                                     [&](StateArray array, const ShardSegment& segment) {
                                       return state.At(array, segment, next);
                                     }));
  RETURN_IF_ERROR(ReadBuffers(next));
  return state.EndWrite(next);
}

absl::Status PutApplier::ReadBuffers(int64_t next) {
  const RankEngineOptions& options = context_.options;
  for (const int buffer : options.puts->buffers()) {
    if (buffer >= options.buffers->size())
      return absl::DataLossError(
          absl::StrCat("buffer ", buffer, " of a model that has ", options.buffers->size()));
    RETURN_IF_ERROR(options.buffers->Load(
        next, buffer, [&](std::byte* values) { return options.puts->ReadBuffer(buffer, values); }));
  }
  return absl::OkStatus();
}

absl::Status PutApplier::Apply(uint64_t offered, uint64_t agreed) {
  const RankEngineOptions& options = context_.options;
  if (offered == 0) return absl::OkStatus();
  // Not all ranks know of it yet. It is offered again at the next step.
  if (agreed != offered) {
    options.puts->Settle(PutSource::Outcome::kNotYet, "");
    return absl::OkStatus();
  }
  const int64_t next = context_.order.step() + 1;
  const int64_t number = options.recorder->Enqueued(next, 0, OpKind::kPut, -1, 0);
  options.recorder->Started(number);
  // The version before the last step is overwritten: readers may hold it.
  RETURN_IF_ERROR(versions_.AwaitRoom());
  StepNumbers numbers;
  const absl::Status staged = Stage(next, &numbers.loaded);
  PutVote vote = {next, offered, staged.ok() ? 1 : 0};
  if (absl::IsResourceExhausted(staged)) vote.missing_bytes = versions_.next().size_bytes();
  std::vector<PutVote> votes(options.config->world_size);
  RETURN_IF_ERROR(FaultPoint("put.before-vote"));
  // A second vote: the first one said that all know of the put, this one that all could read it.
  RETURN_IF_ERROR(options.communicator->AllGather(&vote, votes.data(), sizeof(vote)));
  RETURN_IF_ERROR(FaultPoint("put.after-vote"));
  if (const int without = FirstWithoutIt(votes); without >= 0) {
    options.recorder->Done(number);
    TESSERA_LOG(WARNING, "rank {}: nothing was put: rank {} has not read its part: {}",
                options.rank.value(), without, staged.ToString());
    options.puts->Settle(PutSource::Outcome::kVoid, WhyVoid(votes, without, options.rank, staged));
    // Nobody decides, so nothing changed: the staged version is overwritten by the next step.
    options.buffers->DropLoaded();
    return absl::OkStatus();
  }
  // A death up to here leaves no trace: the worker gives the put to the next executor.
  numbers.put = offered;
  RETURN_IF_ERROR(Decide(next, std::move(numbers)));
  options.recorder->Done(number);
  return absl::OkStatus();
}

absl::Status PutApplier::Decide(int64_t next, StepNumbers numbers) {
  const RankEngineOptions& options = context_.options;
  numbers.is_write = true;
  // No parameter counts an update.
  RecordDecision(options.group, options.updates, next, numbers,
                 std::vector<bool>(options.memory->num_parameters(), false));
  // From here on a successor redoes it from the staged version, without the put's file.
  RETURN_IF_ERROR(FaultPoint("put.after-decision"));
  // A put comes right after a step, before any trainer's step returns: all windows are closed.
  gathers_.ParametersChange(/*windows_are_closed=*/true);
  RETURN_IF_ERROR(versions_.Apply(next));
  context_.order.CommitWrite(next);
  // After the decision is applied: until then a successor would have to find the put again.
  options.puts->Settle(PutSource::Outcome::kDecided, "");
  return absl::OkStatus();
}

}  // namespace tessera
