#include "worker/executor/save/background_save.h"

#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/yield_to_others.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/part_save.h"

namespace tessera {
absl::Status BackgroundSave::Prepare(const v1::SaveRequest& request, const SavedState& state,
                                     SaveControl control) {
  // Only one save reads a version at a time.
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
    // Pointers into the state: the version is written from its place (docs/adr/0048).
    slices.push_back(state.values(slice.array, slice.segment));
    all_bytes += static_cast<int64_t>(slices.back().size_bytes());
  }
  stays_ = state.stays;
  if (stays_) {
    // It is a copy already, which stays until the next save.
    staying_ = std::move(slices);
  } else {
    RETURN_IF_ERROR(version_.Begin(state.version, std::move(slices), control_.stopped));
  }
  absl::MutexLock lock(&mu_);
  status_.Clear();
  status_.set_path(request.spec().path());
  status_.set_all_bytes(all_bytes);
  return absl::OkStatus();
}

absl::Status BackgroundSave::Start(Communicator* communicator, Over over) {
  {
    absl::MutexLock lock(&mu_);
    // Before its thread: one that ends at once must not be shown as running after that.
    status_.set_running(true);
  }
  const absl::Status started = StartThreads(communicator, std::move(over));
  if (started.ok()) return absl::OkStatus();
  // Training must not wait for a version that nobody takes.
  version_.EndTaking();  // So that copying threads stop.
  absl::MutexLock lock(&mu_);
  status_.Clear();
  return started;
}

absl::Status BackgroundSave::StartThreads(Communicator* communicator, Over over) {
  if (!stays_) {
    ASSIGN_OR_RETURN(copier_, StartThread("the copy of a background save", [this] {
                       // Below training's threads, which wait for it only when they need the
                       // version's place.
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
  const absl::Status outcome = Save(communicator, &reply);
  // Also after an error: training may wait for this version.
  version_.EndTaking();
  if (copier_.joinable()) copier_.join();
  version_.DropMemory();
  // Reported before it counts as ended, so that a trainer that sees the end finds the report.
  over(request_, outcome, reply);
  if (!outcome.ok())
    TESSERA_LOG(WARNING, "checkpoint {} was not saved: {}", request_.spec().path(),
                outcome.ToString());
  absl::MutexLock lock(&mu_);
  status_.set_running(false);
  status_.set_code(outcome.raw_code());
  status_.set_message(std::string(outcome.message()));
}

absl::Status BackgroundSave::Save(Communicator* communicator, v1::SaveReply* reply) {
  const auto bytes = [this](const CheckpointSlice& slice) -> std::unique_ptr<ByteSource> {
    const size_t i = slices_.at(KeyOf(slice));
    if (!stays_) return version_.Slice(i);
    return std::make_unique<MemoryBytes>(
        absl::string_view(static_cast<const char*>(staying_[i].data()), staying_[i].size_bytes()));
  };
  SaveControl control = control_;
  control.wrote = [this](int64_t bytes) {
    written_bytes_.fetch_add(bytes);
    if (control_.wrote != nullptr) control_.wrote(bytes);
  };
  const auto save = request_.spec().in_parts() ? SaveParts : SaveCheckpoint;
  return save(request_, memory_, {progress_, bytes}, communicator, control, reply);
}

void BackgroundSave::AwaitCopied(int64_t step) {
  // The version stands for this step yet: what is not taken by the next one is copied meanwhile.
  if (version_.is_held()) version_.StartCopying();
  version_.AwaitCopied(step);
}

void BackgroundSave::End() {
  // A save that is to end early looks at its flags between two slices.
  if (thread_.joinable()) thread_.join();
  if (copier_.joinable()) copier_.join();  // Where no thread could be started that saves.
  version_.Clear();
  staying_.clear();
  slices_.clear();
  request_.Clear();
}

v1::SaveStatus BackgroundSave::status() const {
  absl::MutexLock lock(&mu_);
  v1::SaveStatus status = status_;
  status.set_written_bytes(written_bytes_.load());
  return status;
}

}  // namespace tessera
