// The frames of `tessera top`: all jobs, their ranks, and how fast steps commit.
//
// Remembers each job's step of the frame before, for the rate. Thread-compatible. No terminal here.
#ifndef TESSERA_CLIENT_CLI_TOP_VIEW_H_
#define TESSERA_CLIENT_CLI_TOP_VIEW_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace tessera::cli {

class TopView {
 public:
  explicit TopView(std::string address) : address_(std::move(address)) {}

  // The frame of what the coordinator said at `now`; lines that each end in a newline.
  std::string Frame(const v1::ListJobsResponse& jobs, absl::Time now);

 private:
  struct Sample {
    int64_t epoch = 0;
    int64_t step = 0;
    absl::Time time;
  };
  // ", 2.5 steps/s", or empty where there is nothing to compare with.
  std::string Rate(const v1::Job& job, absl::Time now);

  const std::string address_;
  absl::flat_hash_map<std::string, Sample> previous_;  // By job id.
};

// The part of `frame` that fits on `num_rows` lines; its last line says how many are missing.
// num_rows <= 0: all.
std::string CropFrame(absl::string_view frame, int num_rows);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TOP_VIEW_H_
