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
#include "absl/time/clock.h"

namespace tessera {
namespace {

std::atomic<bool> any_armed{false};
std::atomic<int64_t> num_delays{0};

constexpr uint64_t kHitsOfADelay = 8;

// The n-th number of a seed.
uint64_t RandomNumber(uint64_t seed, uint64_t n) {
  uint64_t x = seed + (n + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

struct Registry {
  absl::Mutex mu;
  absl::Duration longest_delay ABSL_GUARDED_BY(mu);
  uint64_t delay_seed ABSL_GUARDED_BY(mu) = 0;
  uint64_t hits ABSL_GUARDED_BY(mu) = 0;
  absl::flat_hash_map<std::string, Fault> faults ABSL_GUARDED_BY(mu);
  int64_t disarms ABSL_GUARDED_BY(mu) = 0;
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

// Of the next hit.
absl::Duration NextDelay(Registry* registry) {
  absl::MutexLock lock(&registry->mu);
  if (registry->longest_delay == absl::ZeroDuration()) return absl::ZeroDuration();
  const uint64_t number = RandomNumber(registry->delay_seed, registry->hits++);
  if (number % kHitsOfADelay != 0) return absl::ZeroDuration();
  return registry->longest_delay * (static_cast<double>(number >> 32) / 4294967296.0);
}

}  // namespace

absl::Status FaultPoint(absl::string_view name) {
  // The common case costs one load. It orders nothing: tests arm before they act.
  if (!any_armed.load(std::memory_order_relaxed)) return absl::OkStatus();
  Registry& registry = GetRegistry();
  const absl::Duration delay = NextDelay(&registry);
  if (delay > absl::ZeroDuration()) {
    num_delays.fetch_add(1, std::memory_order_relaxed);
    // Outside the lock, so that delays of several threads overlap.
    absl::SleepFor(delay);
  }
  absl::MutexLock lock(&registry.mu);
  auto it = registry.faults.find(name);
  if (it == registry.faults.end() || --it->second.at_hit > 0) return absl::OkStatus();
  // No handler can tidy up after this signal, so what stays is what a crash leaves.
  if (it->second.action == FaultAction::kKillProcess) raise(SIGKILL);
  const FaultAction action = it->second.action;
  absl::Status status = action == FaultAction::kFail ? it->second.status : absl::OkStatus();
  // Before the process stops: a fault happens once.
  registry.faults.erase(it);
  if (action == FaultAction::kStopProcess) raise(SIGSTOP);
  if (action == FaultAction::kHold) {
    const auto released = [&registry, then = registry.disarms]()
                              ABSL_NO_THREAD_SAFETY_ANALYSIS { return registry.disarms != then; };
    registry.mu.Await(absl::Condition(&released));
  }
  return status;
}

void ArmFaultPoint(absl::string_view name, Fault fault) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.faults.insert_or_assign(name, std::move(fault));
  any_armed.store(true, std::memory_order_relaxed);
}

void ArmDelays(uint64_t seed, absl::Duration longest) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.delay_seed = seed;
  registry.hits = 0;
  registry.longest_delay = longest;
  any_armed.store(true, std::memory_order_relaxed);
}

int64_t NumDelays() { return num_delays.load(std::memory_order_relaxed); }

void DisarmAllFaultPoints() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.longest_delay = absl::ZeroDuration();
  registry.faults.clear();
  ++registry.disarms;
  any_armed.store(false, std::memory_order_relaxed);
}

absl::Status ArmFaultPointsFromFlag(absl::string_view text) {
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> name_rest =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::pair<absl::string_view, absl::string_view> action_hit =
        absl::StrSplit(name_rest.second, absl::MaxSplits('@', 1));
    if (name_rest.first == "*") {
      uint64_t seed = 0;
      if (action_hit.first != "delay" || !absl::SimpleAtoi(action_hit.second, &seed))
        return absl::InvalidArgumentError(absl::StrCat("fault '", item, "': not *=delay@SEED"));
      ArmDelays(seed);
      continue;
    }
    Fault fault;
    if (action_hit.first == "kill") {
      fault.action = FaultAction::kKillProcess;
    } else if (action_hit.first == "stop") {
      fault.action = FaultAction::kStopProcess;
    } else if (action_hit.first == "hold") {
      fault.action = FaultAction::kHold;
    } else if (action_hit.first != "fail") {
      return absl::InvalidArgumentError(
          absl::StrCat("fault '", item, "': action is not kill, stop, fail or hold"));
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
