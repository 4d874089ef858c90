#include "worker/executor/background_save.h"

#include <map>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/yield_to_others.h"
#include "worker/executor/checkpoint_save.h"
#include "worker/executor/checkpoint_slices.h"
#include "worker/executor/part_save.h"

namespace tessera {
absl::Status BackgroundSave::Prepare(const v1::SaveRequest& request, const SavedState& state,
                                     SaveControl control) {
  End();
  request_ = request;
  progress_ = state.progress;
  moments_ = state.moments;
  control_ = std::move(control);
  written_bytes_.store(0);
  std::vector<ConstValues> slices;
  for (const CheckpointSlice& slice :
       SlicesToWrite(request_, memory_, HasStates(memory_.layout, state.progress))) {
    slices.push_back(state.values(slice.array, slice.segment));
    keys_.push_back(KeyOf(slice.array, slice.segment));
  }
  int64_t all_bytes = 0;
  for (const ConstValues& slice : slices) all_bytes += static_cast<int64_t>(slice.size_bytes());
  stays_ = state.stays;
  if (stays_) {
    staying_ = std::move(slices);
  } else {
    RETURN_IF_ERROR(copy_.Begin(state.version, std::move(slices), control_.stopped));
  }
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
  absl::StatusOr<std::thread> thread =
      StartThread("a save in the background",
                  [this, communicator, over = std::move(over)] { Run(communicator, over); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mu_);
  status_.Clear();
  return thread.status();
}

void BackgroundSave::Run(Communicator* communicator, const Over& over) {
  YieldToOthers();
  v1::SaveReply reply;
  absl::Status outcome;
  // Where a copy was cut off the other ranks need not be told: their epoch ends too.
  const bool is_copied = stays_ || copy_.CopyAll();
  const absl::Status agreed =
      is_copied ? SaveCopy(communicator, &reply, &outcome) : absl::AbortedError("the epoch ended");
  over(request_, agreed, outcome, reply);
  if (!agreed.ok()) outcome = agreed;
  if (!outcome.ok())
    TESSERA_LOG(WARNING, "checkpoint {} was not saved: {}", request_.path(), outcome.ToString());
  absl::MutexLock lock(&mu_);
  status_.set_running(false);
  status_.set_code(outcome.raw_code());
  status_.set_message(std::string(outcome.message()));
}

absl::Status BackgroundSave::SaveCopy(Communicator* communicator, v1::SaveReply* reply,
                                      absl::Status* outcome) {
  std::map<Key, ConstValues> copies;
  for (size_t i = 0; i < keys_.size(); ++i)
    copies.emplace(keys_[i], stays_ ? staying_[i] : copy_.slice(i));
  const auto values = [&copies](StateArray array, const ShardSegment& segment) {
    return copies.at(KeyOf(array, segment));
  };
  const SavedState state = {/*version=*/0, progress_, moments_, values};
  SaveControl control = control_;
  control.wrote = [this](int64_t bytes) {
    written_bytes_.fetch_add(bytes);
    if (control_.wrote != nullptr) control_.wrote(bytes);
  };
  const auto save = request_.in_parts() ? SaveParts : SaveCheckpoint;
  const absl::Status status = save(request_, memory_, state, communicator, control, reply, outcome);
  copy_.DropMemory();
  return status;
}

void BackgroundSave::End() {
  if (thread_.joinable()) thread_.join();
  copy_.Clear();
  staying_.clear();
  keys_.clear();
  request_.Clear();
}

v1::SaveStatus BackgroundSave::status() const {
  absl::MutexLock lock(&mu_);
  v1::SaveStatus status = status_;
  status.set_written_bytes(written_bytes_.load());
  return status;
}

}  // namespace tessera
