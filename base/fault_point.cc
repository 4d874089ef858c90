#include "base/fault_point.h"

#include <atomic>
#include <csignal>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"

namespace tessera {
namespace {

std::atomic<bool> any_armed{false};

struct Registry {
  absl::Mutex mu;
  absl::flat_hash_map<std::string, Fault> faults ABSL_GUARDED_BY(mu);
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

absl::Status FaultPoint(absl::string_view name) {
  if (!any_armed.load(std::memory_order_relaxed)) return absl::OkStatus();
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  auto it = registry.faults.find(name);
  if (it == registry.faults.end() || --it->second.at_hit > 0) return absl::OkStatus();
  if (it->second.action == FaultAction::kKillProcess) raise(SIGKILL);
  absl::Status status = it->second.status;
  registry.faults.erase(it);
  return status;
}

void ArmFaultPoint(absl::string_view name, Fault fault) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.faults.insert_or_assign(name, std::move(fault));
  any_armed.store(true, std::memory_order_relaxed);
}

void DisarmAllFaultPoints() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.faults.clear();
  any_armed.store(false, std::memory_order_relaxed);
}

absl::Status ArmFaultPointsFromFlag(absl::string_view text) {
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> name_rest =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::pair<absl::string_view, absl::string_view> action_hit =
        absl::StrSplit(name_rest.second, absl::MaxSplits('@', 1));
    Fault fault;
    if (action_hit.first == "kill") {
      fault.action = FaultAction::kKillProcess;
    } else if (action_hit.first != "fail") {
      return absl::InvalidArgumentError(
          absl::StrCat("fault '", item, "': action is not kill or fail"));
    }
    if (!absl::SimpleAtoi(action_hit.second, &fault.at_hit) || fault.at_hit < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("fault '", item, "': no hit number after '@'"));
    }
    ArmFaultPoint(name_rest.first, fault);
  }
  return absl::OkStatus();
}

}  // namespace tessera
