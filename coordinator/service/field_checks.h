// Bounds of single fields that come from a wire. Pure; thread-safe. Every error is InvalidArgument
// and names the field.
#ifndef TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_
#define TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera::coordinator {

constexpr size_t kMaxReasonBytes = 4096;

absl::Status CheckJobId(absl::string_view id);      // [a-z0-9-]{1,63}
absl::Status CheckRequestId(absl::string_view id);  // Printable ASCII, 1 to 128 characters.

// At most `max` bytes of a text that is only shown to people.
absl::string_view Truncated(absl::string_view text, size_t max = kMaxReasonBytes);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_FIELD_CHECKS_H_
