#include "job/training_progress.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

static_assert(std::is_trivially_copyable_v<HyperParameters>, "travels as bytes");

template <typename T>
void Append(const T* from, size_t count, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(from), count * sizeof(T));
}

template <typename T>
void Take(absl::string_view* bytes, T* into, size_t count) {
  memcpy(into, bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
}

}  // namespace

std::string EncodeProgress(const TrainingProgress& progress) {
  std::string bytes;
  Append(&progress.step, 1, &bytes);
  Append(progress.update_counts.data(), progress.update_counts.size(), &bytes);
  Append(progress.groups.data(), progress.groups.size(), &bytes);
  return bytes;
}

absl::StatusOr<TrainingProgress> DecodeProgress(absl::string_view bytes, int num_parameters,
                                                int num_groups) {
  TrainingProgress progress;
  // Before anything is read: the length is the sender's.
  if (bytes.size() != sizeof(int64_t) * (1 + num_parameters) + sizeof(HyperParameters) * num_groups)
    return absl::InvalidArgumentError(
        absl::StrCat("training progress of ", bytes.size(), " bytes"));
  progress.update_counts.resize(num_parameters);
  progress.groups.resize(num_groups);
  Take(&bytes, &progress.step, 1);
  Take(&bytes, progress.update_counts.data(), num_parameters);
  Take(&bytes, progress.groups.data(), num_groups);
  if (progress.step < 0)
    return absl::InvalidArgumentError(absl::StrCat("training progress: step ", progress.step));
  for (const int64_t count : progress.update_counts) {
    // The group page counts in 32 bits.
    if (count < 0 || count > std::numeric_limits<uint32_t>::max())
      return absl::InvalidArgumentError(absl::StrCat("training progress: ", count, " updates"));
  }
  for (int i = 0; i < num_groups; ++i)
    RETURN_IF_ERROR(ValidateHyperParameters(progress.groups[i], i));
  return progress;
}

}  // namespace tessera
