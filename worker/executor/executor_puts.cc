#include "worker/executor/executor_puts.h"

#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "job/live_tensors.h"

namespace tessera {
namespace {

// A range of each array of each parameter, and a count of each, of the largest job.
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

absl::Status ReadAt(int file, int64_t offset_bytes, void* into, int64_t size_bytes) {
  char* next = static_cast<char*>(into);
  while (size_bytes > 0) {
    const ssize_t got = pread(file, next, size_bytes, offset_bytes);
    if (got < 0 && errno == EINTR) continue;
    // The file ends before what the manifest says.
    if (got <= 0) {
      return absl::DataLossError(
          absl::StrCat("byte ", offset_bytes, " of the stored values cannot be read"));
    }
    next += got;
    offset_bytes += got;
    size_bytes -= got;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExecutorPuts::ReadManifest(const v1::ExecutorPut& command, Put* put) const {
  // Manifest and offsets come from a file that the worker wrote. They are checked all the same,
  // since they become offsets in a state.
  if (!put->file.valid() || command.put() == 0)
    return absl::DataLossError("a put without a file, or without a number");
  if (command.manifest_offset_bytes() < 0 || command.manifest_size_bytes() < 0 ||
      command.manifest_size_bytes() > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat("a manifest of ", command.manifest_size_bytes(), " bytes"));
  }
  std::string bytes(command.manifest_size_bytes(), 0);
  RETURN_IF_ERROR(
      ReadAt(put->file.get(), command.manifest_offset_bytes(), bytes.data(), bytes.size()));
  v1::PutManifest manifest;
  if (!manifest.ParseFromString(bytes)) return absl::DataLossError("the manifest is malformed");
  for (const v1::PutManifest::Range& range : manifest.ranges()) {
    if (range.array() == static_cast<int>(LiveArray::kBuffer)) {
      if (!IsWhole(range)) return absl::DataLossError("the manifest is of another job");
      put->buffers[range.job_parameter()] = {range.numel(), range.offset_bytes(), range.crc32()};
      continue;
    }
    // Sizes are compared again in Read, with the segment that they go to.
    const bool fits = range.job_parameter() >= 0 && range.job_parameter() < num_parameters_ &&
                      range.array() >= 0 &&
                      range.array() <= static_cast<int>(StateArray::kSecondMoment) &&
                      range.begin_elements() >= 0 && range.numel() > 0 && range.offset_bytes() >= 0;
    if (!fits) return absl::DataLossError("the manifest is of another job");
    put->ranges[{range.job_parameter(), range.array(), range.begin_elements()}] = {
        range.numel(), range.offset_bytes(), range.crc32()};
  }
  for (const auto& [parameter, count] : manifest.update_counts()) {
    // The group page counts in 32 bits.
    if (parameter < 0 || parameter >= num_parameters_ || count < 0 ||
        count > std::numeric_limits<uint32_t>::max())
      return absl::DataLossError("the manifest is of another job");
    put->update_counts[parameter] = count;
  }
  return absl::OkStatus();
}

bool ExecutorPuts::IsWhole(const v1::PutManifest::Range& of_buffer) const {
  const int buffer = of_buffer.job_parameter();
  if (buffer < 0 || buffer >= static_cast<int>(buffers_->size())) return false;
  const absl::StatusOr<int64_t> numel = Numel((*buffers_)[buffer]);
  return numel.ok() && of_buffer.begin_elements() == 0 && of_buffer.numel() == *numel &&
         of_buffer.offset_bytes() >= 0;
}

void ExecutorPuts::Give(const v1::ExecutorPut& command, UniqueFd file) {
  auto put = std::make_unique<Put>();
  put->id = command.put();
  put->file = std::move(file);
  // Outside the lock: the engine's Offer must not wait for a disk.
  const absl::Status read = ReadManifest(command, put.get());
  absl::MutexLock lock(&mu_);
  // Given again by a worker that is not sure: the one that is here stands.
  if (put_ != nullptr && put_->id == command.put()) return;
  if (!read.ok()) return gone_(command.put(), std::string(read.message()));
  // The engine reads the offered put without the lock, so it stays until Settle().
  if (is_offered_) return gone_(command.put(), "the rank is voting for another one");
  if (put_ != nullptr) ForgetLocked("another one took its place");
  put_ = std::move(put);
  is_dropped_ = false;
}

void ExecutorPuts::Drop(uint64_t put) {
  absl::MutexLock lock(&mu_);
  // Answered as well: the worker waits until each rank has let go of it.
  if (put_ == nullptr || put_->id != put) return gone_(put, "");
  is_dropped_ = true;
  // A vote may already name it. Then Settle() forgets it.
  if (!is_offered_) ForgetLocked("");
}

void ExecutorPuts::ForgetLocked(const std::string& failure) {
  const uint64_t id = put_->id;
  put_.reset();
  is_dropped_ = false;
  gone_(id, failure);
}

uint64_t ExecutorPuts::Offer(uint64_t decided) {
  absl::MutexLock lock(&mu_);
  if (put_ == nullptr) return 0;
  // The put was applied and its end not told: it must not be voted on again.
  if (put_->id == decided) {  // In an epoch that ended right after it.
    ForgetLocked("");
    return 0;
  }
  is_offered_ = true;
  // Read without the lock until Settle. Give and Drop leave an offered put in its place.
  offered_ = put_.get();
  return put_->id;
}

const std::map<int, int64_t>& ExecutorPuts::update_counts() const {
  return offered_->update_counts;
}

bool ExecutorPuts::Sets(const Put& put, int job_parameter, StateArray array) {
  const auto it = put.ranges.lower_bound({job_parameter, static_cast<int>(array), 0});
  return it != put.ranges.end() && std::get<0>(it->first) == job_parameter &&
         std::get<1>(it->first) == static_cast<int>(array);
}

absl::Status ExecutorPuts::Read(
    const std::vector<ShardSegment>& segments,
    absl::FunctionRef<Values(StateArray, const ShardSegment&)> values) const {
  for (const ShardSegment& segment : segments) {
    for (const StateArray array :
         {StateArray::kParameter, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
      // The worker cuts what it stores at the ranks' slices, as segments are, so keys meet
      // exactly.
      const RangeKey key = {segment.job_parameter, static_cast<int>(array),
                            segment.parameter_begin_elements};
      // A put that sets some elements of an array of a parameter sets all of this rank's.
      if (!Sets(*offered_, segment.job_parameter, array)) continue;
      const auto it = offered_->ranges.find(key);
      if (it == offered_->ranges.end()) {
        return absl::DataLossError(absl::StrCat("parameter ", segment.job_parameter, ": element ",
                                                segment.parameter_begin_elements,
                                                " was not stored"));
      }
      const Range& range = it->second;
      const Values into = values(array, segment);
      if (range.numel != static_cast<int64_t>(into.size())) {
        return absl::DataLossError(absl::StrCat("parameter ", segment.job_parameter, ": ",
                                                range.numel, " stored elements for ", into.size()));
      }
      const auto size_bytes = static_cast<int64_t>(into.size_bytes());
      RETURN_IF_ERROR(ReadAt(offered_->file.get(), range.offset_bytes, into.data(), size_bytes));
      // After it is in its place: what was read is what is checked.
      if (Crc32(into.data(), into.size_bytes()) != range.crc32) {
        return absl::DataLossError(absl::StrCat("parameter ", segment.job_parameter,
                                                ": the stored values were changed on disk"));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<int> ExecutorPuts::buffers() const {
  std::vector<int> set;
  for (const auto& [buffer, range] : offered_->buffers) set.push_back(buffer);
  return set;
}

absl::Status ExecutorPuts::ReadBuffer(int buffer, std::byte* values) const {
  const BufferSpec& spec = (*buffers_)[buffer];
  const Range& range = offered_->buffers.at(buffer);
  ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(spec));
  RETURN_IF_ERROR(ReadAt(offered_->file.get(), range.offset_bytes, values, size_bytes));
  if (Crc32(values, size_bytes) == range.crc32) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("buffer '", spec.name, "': the stored values were changed on disk"));
}

void ExecutorPuts::Settle(Outcome outcome, const std::string& why) {
  absl::MutexLock lock(&mu_);
  is_offered_ = false;
  offered_ = nullptr;
  // The next vote offers it again.
  if (outcome == Outcome::kNotYet && !is_dropped_) return;
  ForgetLocked(outcome == Outcome::kVoid ? why : "");
}

void ExecutorPuts::EndEpoch() {
  absl::MutexLock lock(&mu_);
  is_offered_ = false;
  offered_ = nullptr;
  // Offered in an epoch that ended: nobody counts that vote.
  if (put_ != nullptr && is_dropped_) ForgetLocked("");
}

}  // namespace tessera
