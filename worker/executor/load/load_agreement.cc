#include "worker/executor/load/load_agreement.h"

#include <vector>

#include "checkpoint/safetensors/crc32.h"
#include "worker/executor/save/request_sums.h"

namespace tessera {
namespace {

std::vector<RequestPart> PartsOf(const v1::LoadRequest& request) {
  v1::LoadRequest renames, include, exclude;
  *renames.mutable_renames() = request.renames();
  *include.mutable_include() = request.include();
  *exclude.mutable_exclude() = request.exclude();
  // Not the path, which may differ between nodes: what is found there is compared instead.
  return {{"whether it is a checkpoint", request.is_checkpoint()},
          {"strict", request.strict()},
          {"model_only", request.model_only()},
          {"optimizer_only", request.optimizer_only()},
          // Checksums stand for the lists: they are compared, not sent.
          {"the names to rename", Crc32(renames.SerializeAsString())},
          {"the names to include", Crc32(include.SerializeAsString())},
          {"the names to exclude", Crc32(exclude.SerializeAsString())}};
}

}  // namespace

LoadRules RulesOf(const v1::LoadRequest& request, bool first) {
  LoadRules rules;
  // A first load must give everything, so nothing may be missing.
  rules.strict = request.strict() || first;
  rules.optimizer_only = request.optimizer_only();
  for (const v1::NameRename& rename : request.renames())
    rules.names.renames.push_back({rename.from(), rename.to()});
  rules.names.include.assign(request.include().begin(), request.include().end());
  rules.names.exclude.assign(request.exclude().begin(), request.exclude().end());
  return rules;
}

absl::Status CompareRequests(const v1::LoadRequest& request, Communicator* communicator) {
  return CompareRequestParts("load", PartsOf(request), communicator);
}

}  // namespace tessera
