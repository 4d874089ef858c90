#include "worker/executor/background_save.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/yield_to_others.h"
#include "worker/executor/checkpoint_save.h"
#include "worker/executor/checkpoint_slices.h"
#include "worker/executor/part_save.h"

namespace tessera {
namespace {

// Of the two steps for which a version stands. Its end is left for a disk that is slower for once,
// and for the copy of the rest.
constexpr double kStepsToTake = 1.6;
// Where units are written in backward: once the next backward begins they may not wait for a save.
constexpr double kStepsToTakeBeforeBackward = 1.2;
// Of those between this save and the last: the next one is not to wait for this, nor for what there
// is to do once all is taken.
constexpr double kShareOfSteps = 0.8;

}  // namespace

// Bytes of the version, taken at their pace.
class BackgroundSave::PacedBytes final : public ByteSource {
 public:
  PacedBytes(PacedTaking* taking, std::unique_ptr<ByteSource> bytes)
      : taking_(*taking), bytes_(std::move(bytes)) {}
  int64_t size_bytes() const override { return bytes_->size_bytes(); }
  const char* Take(int64_t size_bytes, char* room) override {
    taking_.AwaitTurn();
    const char* const taken = bytes_->Take(size_bytes, room);
    taking_.Took(size_bytes);
    return taken;
  }

 private:
  PacedTaking& taking_;
  const std::unique_ptr<ByteSource> bytes_;
};

absl::Duration BackgroundSave::SinceSomeTime() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

SavePace BackgroundSave::Pace(int64_t version, int64_t all_bytes) const {
  double steps = memory_.config.optimizer_in_backward ? kStepsToTakeBeforeBackward : kStepsToTake;
  if (saved_before_ >= 0 && step_time_ > absl::ZeroDuration()) {
    steps = std::min(steps, kShareOfSteps * static_cast<double>(version - saved_before_) -
                                absl::FDivDuration(tail_, step_time_));
  }
  return {all_bytes, step_time_, std::max(steps, 0.0)};
}

absl::Status BackgroundSave::Prepare(const v1::SaveRequest& request, const SavedState& state,
                                     SaveControl control) {
  End();
  request_ = request;
  progress_ = state.progress;
  control_ = std::move(control);
  written_bytes_.store(0);
  std::vector<ConstValues> slices;
  int64_t all_bytes = 0;
  for (const CheckpointSlice& slice :
       SlicesToWrite(request_, memory_, HasStates(memory_.layout, state.progress))) {
    slices_.emplace(KeyOf(slice), slices.size());
    slices.push_back(state.values(slice.array, slice.segment));
    all_bytes += static_cast<int64_t>(slices.back().size_bytes());
  }
  stays_ = state.stays;
  if (stays_) {
    staying_ = std::move(slices);
  } else {
    RETURN_IF_ERROR(version_.Begin(state.version, std::move(slices), control_.stopped));
    taking_.Begin(Pace(state.version, all_bytes), control_.stopped, control_.cancelled);
    plans_copy_ = false;
  }
  asked_ = 0;
  saving_ = state.version;
  absl::MutexLock lock(&mu_);
  status_.Clear();
  status_.set_path(request.path());
  status_.set_all_bytes(all_bytes);
  return absl::OkStatus();
}

absl::Status BackgroundSave::Start(Communicator* communicator, Over over) {
  {
    absl::MutexLock lock(&mu_);
    status_.set_running(true);
  }
  const absl::Status started = StartThreads(communicator, std::move(over));
  if (started.ok()) {
    saved_before_ = saving_;
    return absl::OkStatus();
  }
  version_.EndTaking();  // So that copying threads stop.
  absl::MutexLock lock(&mu_);
  status_.Clear();
  return started;
}

absl::Status BackgroundSave::StartThreads(Communicator* communicator, Over over) {
  if (!stays_) {
    ASSIGN_OR_RETURN(copier_, StartThread("the copy of a background save", [this] {
                       YieldToOthers();
                       version_.CopyBehind();
                     }));
  }
  ASSIGN_OR_RETURN(thread_, StartThread("a save in the background",
                                        [this, communicator, over = std::move(over)] {
                                          Run(communicator, over);
                                        }));
  return absl::OkStatus();
}

void BackgroundSave::Run(Communicator* communicator, const Over& over) {
  YieldToOthers();
  v1::SaveReply reply;
  absl::Status outcome;
  const absl::Status agreed = Save(communicator, &reply, &outcome);
  if (!stays_) tail_ = taking_.SinceTaken();
  version_.EndTaking();
  if (copier_.joinable()) copier_.join();
  version_.DropMemory();
  over(request_, agreed, outcome, reply);
  if (!agreed.ok()) outcome = agreed;
  if (!outcome.ok())
    TESSERA_LOG(WARNING, "checkpoint {} was not saved: {}", request_.path(), outcome.ToString());
  absl::MutexLock lock(&mu_);
  status_.set_running(false);
  status_.set_code(outcome.raw_code());
  status_.set_message(std::string(outcome.message()));
}

absl::Status BackgroundSave::Save(Communicator* communicator, v1::SaveReply* reply,
                                  absl::Status* outcome) {
  const auto bytes = [this](const CheckpointSlice& slice) -> std::unique_ptr<ByteSource> {
    const size_t i = slices_.at(KeyOf(slice));
    if (!stays_) return std::make_unique<PacedBytes>(&taking_, version_.Slice(i));
    return std::make_unique<MemoryBytes>(
        absl::string_view(static_cast<const char*>(staying_[i].data()), staying_[i].size_bytes()));
  };
  SaveControl control = control_;
  control.wrote = [this](int64_t bytes) {
    written_bytes_.fetch_add(bytes);
    if (control_.wrote != nullptr) control_.wrote(bytes);
  };
  const auto save = request_.in_parts() ? SaveParts : SaveCheckpoint;
  return save(request_, memory_, {progress_, bytes}, communicator, control, reply, outcome);
}

void BackgroundSave::AwaitCopied(int64_t step) {
  const absl::Duration now = clock_();
  if (step != last_step_) {  // It is called again for one that is written in parts.
    // A put after a step counts as a short step, and a save right after it is not delayed.
    if (last_step_ >= 0 && step == last_step_ + 1) step_time_ = now - last_step_at_;
    last_step_ = step;
    last_step_at_ = now;
  }
  asked_ = 0;
  if (version_.is_held() && !std::exchange(plans_copy_, true))
    version_.CopyFrom(SteadyNow() + taking_.StepVoted());
  version_.AwaitCopied(step);
}

void BackgroundSave::End() {
  taking_.Hurry();
  if (thread_.joinable()) thread_.join();
  if (copier_.joinable()) copier_.join();  // Where no thread could be started that saves.
  version_.Clear();
  staying_.clear();
  slices_.clear();
  request_.Clear();
}

v1::SaveStatus BackgroundSave::StatusForTrainer() {
  if (++asked_ > 1) taking_.Hurry();
  return status();
}

v1::SaveStatus BackgroundSave::status() const {
  absl::MutexLock lock(&mu_);
  v1::SaveStatus status = status_;
  status.set_written_bytes(written_bytes_.load());
  return status;
}

}  // namespace tessera
