#include "worker/executor/agreement.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/control_page.h"

namespace tessera {
namespace {

// A rank's outcome as bytes that ranks exchange.
struct Outcome {
  int32_t code = 0;
  char message[512] = {};
};

}  // namespace

absl::Status AgreeOn(absl::string_view what, absl::Status* status, Communicator* communicator) {
  Outcome outcome;
  outcome.code = status->raw_code();
  StoreText(status->message(), outcome.message, sizeof(outcome.message));
  std::vector<Outcome> all(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&outcome, all.data(), sizeof(Outcome)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0) continue;
    *status = absl::Status(static_cast<absl::StatusCode>(all[rank].code),
                           absl::StrCat(what, " on rank ", rank, ": ",
                                        LoadText(all[rank].message, sizeof(all[rank].message))));
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace tessera
