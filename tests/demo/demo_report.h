// What a demo run measured, as human-readable text and as JSON.
#ifndef TESSERA_TESTS_DEMO_DEMO_REPORT_H_
#define TESSERA_TESTS_DEMO_DEMO_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::demo {

struct DemoReport {
  int world_size = 0;
  int units = 0;
  int64_t parameters = 0;
  int64_t steps = 0;
  std::vector<double> losses;            // Mean over ranks, by step.
  std::vector<double> unsharded_losses;  // The same batches in one process.
  double params_max_abs_diff_vs_unsharded = 0;
  int trainer_kills = 0;
  double reattach_seconds = 0;  // From the kill to the new trainer's attachment.
  int64_t steps_redone = 0;
  int64_t unsharded_param_bytes = 0;
  int64_t peak_parameter_bytes_per_rank = 0;
  int64_t peak_gradient_bytes_per_rank = 0;
  int64_t peak_optimizer_bytes_per_rank = 0;
  double step_seconds_p50 = 0;
  double compute_only_step_seconds_p50 = 0;
  double tokens_per_second = 0;
  std::string checkpoint_path;
  double checkpoint_seconds = 0;
  std::string parameters_sha;  // Of the final model file, to compare runs.

  double LossMaxRelDiff() const;
  std::string Text() const;
  std::string Json() const;
};

double Median(std::vector<double> values);  // 0 of none.

// The largest difference of any element between two model files.
// Errors: FailedPrecondition  they hold different tensors; and as ReadModelFile.
absl::StatusOr<double> MaxAbsDifference(const std::string& path_a, const std::string& path_b);

// 64-bit FNV-1a of a file's bytes, in hex.
absl::StatusOr<std::string> FileDigest(const std::string& path);

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_DEMO_REPORT_H_
