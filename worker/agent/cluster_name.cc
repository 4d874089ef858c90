#include "worker/agent/cluster_name.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tessera {

absl::Status ClusterName::Join(const std::string& name, bool holds_jobs) {
  absl::MutexLock lock(&mu_);
  if (name == name_ && !name.empty()) return absl::OkStatus();
  if (name.empty()) return absl::FailedPreconditionError("the coordinator names no cluster");
  // Its jobs' epochs are counted by their cluster's journal. Another one would count from the
  // beginning.
  if (!name_.empty() && holds_jobs) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it belongs to cluster ", name, ", and this worker holds jobs of cluster ", name_,
        ": it keeps them, and obeys only a coordinator of that cluster. Start one with its "
        "journal; if that is lost, with a new journal and --cluster-id=",
        name_));
  }
  TESSERA_LOG(INFO, "{} cluster {}", name_.empty() ? "joins" : "holds no job, and joins", name);
  name_ = name;
  return absl::OkStatus();
}

}  // namespace tessera
