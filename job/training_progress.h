// Where training stands, and its form between a trainer and its executor. Pure.
#ifndef TESSERA_JOB_TRAINING_PROGRESS_H_
#define TESSERA_JOB_TRAINING_PROGRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job_config.h"

namespace tessera {

struct TrainingProgress {
  int64_t step = 0;                     // The last one's number, as trainers count.
  std::vector<int64_t> update_counts;   // By parameter of the job.
  std::vector<HyperParameters> groups;  // The last step's, by param group.
};

// Travels between processes of one build.
std::string EncodeProgress(const TrainingProgress& progress);
// Errors: InvalidArgument  not of a job with so many parameters and groups, or a number is out of
//                          range.
absl::StatusOr<TrainingProgress> DecodeProgress(absl::string_view bytes, int num_parameters,
                                                int num_groups);

}  // namespace tessera

#endif  // TESSERA_JOB_TRAINING_PROGRESS_H_
