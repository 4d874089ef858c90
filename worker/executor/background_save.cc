#include "worker/executor/background_save.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "worker/executor/checkpoint_save.h"
#include "worker/executor/checkpoint_slices.h"

namespace tessera {

absl::Status BackgroundSave::CopySlices(const SavedState& state, int64_t* all_bytes) {
  const std::vector<CheckpointSlice> slices =
      SavedSlicesOf(memory_, memory_.rank, HasStates(memory_.layout, state.progress));
  *all_bytes = 0;
  for (const CheckpointSlice& slice : slices)
    *all_bytes += slice.segment.numel * SizeBytes(slice.segment.dtype);
  copy_.reset(new (std::nothrow) std::byte[*all_bytes]);
  if (copy_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a copy of ", *all_bytes, " bytes of the state"));
  }
  std::byte* at = copy_.get();
  for (const CheckpointSlice& slice : slices) {
    const ConstValues from = state.values(slice.array, slice.segment);
    memcpy(at, from.data(), from.size_bytes());
    values_.emplace(Key(slice.array, slice.segment.unit, slice.segment.parameter),
                    ConstValues(at, static_cast<int64_t>(from.size()), from.dtype()));
    at += from.size_bytes();
  }
  return absl::OkStatus();
}

absl::Status BackgroundSave::Copy(const v1::SaveRequest& request, const SavedState& state) {
  End();
  request_ = request;
  progress_ = state.progress;
  moments_ = state.moments;
  written_bytes_.store(0);
  cancelled_.store(false);
  int64_t all_bytes = 0;
  RETURN_IF_ERROR(CopySlices(state, &all_bytes));
  absl::MutexLock lock(&mu_);
  status_.Clear();
  status_.set_path(request.path());
  status_.set_all_bytes(all_bytes);
  return absl::OkStatus();
}

absl::Status BackgroundSave::Start(Communicator* communicator, const std::atomic<bool>* stopped,
                                   std::function<void(const absl::Status&)> over) {
  {
    absl::MutexLock lock(&mu_);
    status_.set_running(true);
  }
  absl::StatusOr<std::thread> thread = StartThread(
      "a save in the background",
      [this, communicator, stopped, over = std::move(over)] { Run(communicator, stopped, over); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mu_);
  status_.Clear();
  return thread.status();
}

void BackgroundSave::Run(Communicator* communicator, const std::atomic<bool>* stopped,
                         const std::function<void(const absl::Status&)>& over) {
  const auto values = [this](StateArray array, const ShardSegment& segment) {
    return values_.at(Key(array, segment.unit, segment.parameter));
  };
  const SavedState state = {progress_, moments_, values};
  v1::SaveReply reply;
  absl::Status outcome;
  const absl::Status agreed =
      SaveCheckpoint(request_, memory_, state, communicator,
                     {stopped, &cancelled_, &written_bytes_}, &reply, &outcome);
  if (!agreed.ok()) outcome = agreed;
  if (!outcome.ok())
    TESSERA_LOG(WARNING, "checkpoint {} was not saved: {}", request_.path(), outcome.ToString());
  Forget();
  over(agreed);
  absl::MutexLock lock(&mu_);
  status_.set_running(false);
  status_.set_code(outcome.raw_code());
  status_.set_message(std::string(outcome.message()));
}

void BackgroundSave::Forget() {
  copy_.reset();
  values_.clear();
  request_.Clear();
}

void BackgroundSave::End() {
  if (thread_.joinable()) thread_.join();
  Forget();
}

v1::SaveStatus BackgroundSave::status() const {
  absl::MutexLock lock(&mu_);
  v1::SaveStatus status = status_;
  status.set_written_bytes(written_bytes_.load());
  return status;
}

}  // namespace tessera
