// Bounds of single fields that come from a wire. Pure; thread-safe. Every error is InvalidArgument
// and names the field.
#ifndef TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_
#define TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::coordinator {

constexpr int64_t kMaxParameters = 100'000;  // Of one model.
constexpr size_t kMaxNameBytes = 512;        // Of a unit or parameter.
constexpr int kMaxDimensions = 16;
constexpr size_t kMaxReasonBytes = 4096;
constexpr int32_t kMaxDevices = 1024;  // Of one worker.
constexpr int32_t kMaxWorldSize = 1 << 16;

absl::Status CheckJobId(absl::string_view id);      // [a-z0-9-]{1,63}
absl::Status CheckWorkerId(absl::string_view id);   // [A-Za-z0-9._-]{1,255}
absl::Status CheckRequestId(absl::string_view id);  // Printable ASCII, 1 to 128 characters.
absl::Status CheckValueKey(absl::string_view key);  // Printable ASCII, 1 to 256 characters.
absl::Status CheckName(absl::string_view field, absl::string_view name);
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max);

// At most `max` bytes of a text that is only shown to people.
absl::string_view Truncated(absl::string_view text, size_t max = kMaxReasonBytes);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_
