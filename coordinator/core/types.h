// The coordinator's own types for what is sent and stored: plain values, no wire types.
#ifndef TESSERA_COORDINATOR_CORE_TYPES_H_
#define TESSERA_COORDINATOR_CORE_TYPES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "layout/dtype.h"
#include "layout/tensor_spec.h"

namespace tessera::coordinator {

// The spec of a job. Immutable once it exists; shared between the state and its snapshots.
struct JobSpec {
  ModelSpec model;
  JobConfig config;
  int32_t submitting_rank = -1;  // Who created the job; -1: not a rank.
  uint64_t layout_digest = 0;
  // On a worker whose ranks are in host memory, and on one whose ranks are on a GPU.
  HostMemory cpu_host_memory, gpu_host_memory;
};
using JobSpecPtr = std::shared_ptr<const JobSpec>;

// Where one rank is. A worker that returns with another incarnation has lost its memory.
struct RankPlacement {
  WorkerId worker;
  int32_t device = 0;
  Incarnation incarnation;
  // The first epoch of an unbroken stay. The worker's memory from earlier epochs is void.
  Epoch since = Epoch();

  // Whether they are the same place; `since` may differ.
  friend bool operator==(const RankPlacement& a, const RankPlacement& b) {
    return a.worker == b.worker && a.device == b.device && a.incarnation == b.incarnation;
  }
};

// The last report of a rank about itself.
struct RankStatus {
  Step step;
  int64_t sequence = 0;  // Position in the step's execution order.
  int64_t pass = 0;      // See OrderPosition.
  std::string doing;
  bool attached = false;
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int32_t executor_pid = 0;
  Incarnation finished;  // The last attachment, if its trainer said that it is done.
  std::map<std::string, double> reported;
  double compute_seconds = 0;  // For how long its trainer has computed, since the worker holds it.
  double gradient_norm = 0;    // Of the last step.
};

// One operation of a rank's execution order.
struct OrderEntry {
  std::string operation;
  UnitId unit{-1};  // -1: none.
  DType dtype = DType::kFp32;
  int64_t count_elements = 0;

  friend bool operator==(const OrderEntry& a, const OrderEntry& b) {
    return a.operation == b.operation && a.unit == b.unit && a.dtype == b.dtype &&
           a.count_elements == b.count_elements;
  }
  friend bool operator!=(const OrderEntry& a, const OrderEntry& b) { return !(a == b); }
};

// A position in a job's execution order; ordered by step, then pass, then sequence. A step has one
// pass, or more if ranks evaluate. Each pass is checked against the previous one.
struct OrderPosition {
  Step step;
  int64_t sequence = 0;  // In the pass.
  int64_t pass = 0;

  bool InPassOf(const OrderPosition& other) const {
    return step == other.step && pass == other.pass;
  }
  friend bool operator==(const OrderPosition& a, const OrderPosition& b) {
    return a.InPassOf(b) && a.sequence == b.sequence;
  }
  friend bool operator<(const OrderPosition& a, const OrderPosition& b) {
    return std::tie(a.step, a.pass, a.sequence) < std::tie(b.step, b.pass, b.sequence);
  }
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_TYPES_H_
