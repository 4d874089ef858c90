// Bounds of what a job's wire messages may hold. Pure; thread-safe. Every error is InvalidArgument
// and names the field.
#ifndef TESSERA_JOB_FIELD_LIMITS_H_
#define TESSERA_JOB_FIELD_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

constexpr int64_t kMaxParameters = 100'000;  // Of one model.
constexpr size_t kMaxNameBytes = 512;        // Of a unit or parameter.
constexpr int kMaxDimensions = 16;
constexpr int32_t kMaxWorldSize = 1 << 16;

absl::Status CheckName(absl::string_view field, absl::string_view name);
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max);

}  // namespace tessera

#endif  // TESSERA_JOB_FIELD_LIMITS_H_
