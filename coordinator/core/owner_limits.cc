#include "coordinator/core/owner_limits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_spec.h"

namespace tessera::coordinator {
namespace {

absl::Status TooMany(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": delete jobs that are not needed, or have an operator do it"));
}

}  // namespace

absl::Status OwnerLimits::Create(const CoordinatorOptions& options,
                                 const std::map<JobId, Job>& jobs, const CreateJobEvent& event,
                                 absl::Time now) {
  if (static_cast<int64_t>(jobs.size()) >= options.max_jobs)
    return TooMany(absl::StrCat("there are ", options.max_jobs, " jobs already"));
  if (event.by_operator) return absl::OkStatus();
  const int64_t wanted = SizeBytes(*event.spec);
  int64_t jobs_of_owner = 0, bytes_of_owner = 0, all_bytes = 0;
  for (const auto& [id, job] : jobs) {
    all_bytes += job.spec_bytes;
    if (job.owner != event.owner) continue;
    ++jobs_of_owner;
    bytes_of_owner += job.spec_bytes;
  }
  const std::string who = absl::StrCat("'", event.owner, "'");
  if (jobs_of_owner >= options.max_jobs_of_owner) {
    return TooMany(absl::StrCat(who, " has ", jobs_of_owner, " jobs, and may have ",
                                options.max_jobs_of_owner, " (--max-jobs-of-owner)"));
  }
  const std::string takes =
      absl::StrCat("the model of job '", event.job.value(), "' takes ", wanted, " bytes");
  if (bytes_of_owner + wanted > options.max_model_bytes_of_owner) {
    return TooMany(absl::StrCat(takes, ", the other jobs of ", who, " take ", bytes_of_owner,
                                ", and together they may take ", options.max_model_bytes_of_owner,
                                " (--max-model-bytes-of-owner)"));
  }
  if (all_bytes + wanted > options.max_model_bytes) {
    return TooMany(absl::StrCat(takes, ", those of all other jobs take ", all_bytes,
                                ", and together they may take ", options.max_model_bytes,
                                " (--max-model-bytes)"));
  }
  // Jobs that were deleted meanwhile count too: each was written to the disk.
  while (!created_.empty() && now - created_.front().at >= absl::Minutes(1)) created_.pop_front();
  int64_t lately_bytes = 0;
  for (const Created& created : created_)
    lately_bytes += created.owner == event.owner ? created.bytes : 0;
  if (lately_bytes + wanted > options.max_model_bytes_of_owner) {
    return absl::ResourceExhaustedError(absl::StrCat(
        takes, ", those that ", who, " created within the last minute take ", lately_bytes,
        ", and in a minute they may take ", options.max_model_bytes_of_owner,
        " (--max-model-bytes-of-owner): create it later"));
  }
  // TakeBackCreate removes it if the job cannot be journalled.
  created_.push_back({event.owner, wanted, now});
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
