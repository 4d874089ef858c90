#include "worker/executor/load_request.h"

#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/crc32.h"

namespace tessera {
namespace {

constexpr const char* kParts[] = {"whether it is a checkpoint",
                                  "strict",
                                  "model_only",
                                  "the names to rename",
                                  "the names to include",
                                  "the names to exclude"};
using Sums = std::array<uint32_t, std::size(kParts)>;

Sums SumsOf(const v1::LoadRequest& request) {
  v1::LoadRequest renames, include, exclude;
  *renames.mutable_renames() = request.renames();
  *include.mutable_include() = request.include();
  *exclude.mutable_exclude() = request.exclude();
  return {request.is_checkpoint(),
          request.strict(),
          request.model_only(),
          Crc32(renames.SerializeAsString()),
          Crc32(include.SerializeAsString()),
          Crc32(exclude.SerializeAsString())};
}

}  // namespace

LoadRules RulesOf(const v1::LoadRequest& request, bool first) {
  LoadRules rules;
  rules.strict = request.strict() || first;
  for (const v1::NameRename& rename : request.renames())
    rules.names.renames.push_back({rename.from(), rename.to()});
  rules.names.include.assign(request.include().begin(), request.include().end());
  rules.names.exclude.assign(request.exclude().begin(), request.exclude().end());
  return rules;
}

absl::Status CompareRequests(const v1::LoadRequest& request, Communicator* communicator,
                             absl::Status* outcome) {
  const Sums own = SumsOf(request);
  std::vector<Sums> all(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&own, all.data(), sizeof(own)));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t part = 0; part < own.size(); ++part) {
      if (all[rank][part] == all[0][part]) continue;
      *outcome = absl::FailedPreconditionError(
          absl::StrCat("load: ranks 0 and ", rank, " differ in ", kParts[part]));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
