#include "worker/engine/agreed_error.h"

#include "absl/strings/cord.h"

namespace tessera {
namespace {

constexpr char kPayload[] = "tessera.agreed";

}  // namespace

absl::Status AsAgreed(absl::Status status) {
  status.SetPayload(kPayload, absl::Cord());  // Does nothing for OK.
  return status;
}

bool IsAgreed(const absl::Status& status) { return status.GetPayload(kPayload).has_value(); }

}  // namespace tessera
