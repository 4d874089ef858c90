// The programs that a check runs: lines of a file that tools/bundle reads too.
//
//   # target                                seconds  what of it needs a GPU, as gtest's filter
//   //worker/device/cuda:cuda_device_test   300      Cuda/DeviceConformanceTest.*
//   //tests/gpu:gpu_bench                   300      rows
//   //tests/gpu:torch_peers                 300      peer-rows
//   //tests/gpu:gpu_step_bench              300      rows         mps
//
// The last word, which may be missing, says how the program runs once more when all have run by
// themselves: "memcheck", "racecheck": under that tool of compute-sanitizer; "mps": under a daemon
// of NVIDIA's multi-process service. Several are joined by commas.
// "rows": no tests but a benchmark, which writes its rows; "peer-rows": one of software that is not
// ours, which the machine may lack. Pure; thread-safe.
#ifndef TESSERA_TESTS_GPU_CHECK_SUITES_H_
#define TESSERA_TESTS_GPU_CHECK_SUITES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera {
namespace gpu_check {

inline constexpr char kMemcheck[] = "memcheck";
inline constexpr char kRacecheck[] = "racecheck";
inline constexpr char kUnderMps[] = "mps";

struct Suite {
  std::string name;  // Of the target, and of the program's file.
  absl::Duration deadline;
  std::string filter;
  std::vector<std::string> again = {};  // "memcheck", "racecheck", "mps".

  bool is_bench() const { return filter == "rows" || is_peer(); }
  bool is_peer() const { return filter == "peer-rows"; }
};

// Errors: InvalidArgument  a line is none of these, two have one name, or there is none
absl::StatusOr<std::vector<Suite>> ParseSuites(absl::string_view text);

// Those of the names, in the file's order; all where `names` is empty.
// Errors: NotFound  a name is of none of them: the message has those that there are
absl::StatusOr<std::vector<Suite>> ChooseSuites(const std::vector<Suite>& suites,
                                                const std::vector<std::string>& names);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_CHECK_SUITES_H_
