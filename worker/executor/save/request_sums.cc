#include "worker/executor/save/request_sums.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/engine/agreed_error.h"

namespace tessera {

absl::Status CompareRequestParts(absl::string_view what, const std::vector<RequestPart>& parts,
                                 Communicator* communicator) {
  std::vector<uint64_t> own, all(parts.size() * communicator->size());
  for (const RequestPart& part : parts) own.push_back(part.sum);
  // Sums, not values: they have one size, and paths may be long.
  RETURN_IF_ERROR(communicator->AllGather(own.data(), all.data(), own.size() * sizeof(own[0])));
  for (size_t rank = 1; rank < static_cast<size_t>(communicator->size()); ++rank) {
    for (size_t part = 0; part < parts.size(); ++part) {
      if (all[rank * parts.size() + part] == all[part]) continue;
      return AsAgreed(absl::FailedPreconditionError(
          absl::StrCat(what, ": ranks 0 and ", rank, " differ in ", parts[part].name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
