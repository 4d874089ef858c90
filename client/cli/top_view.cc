#include "client/cli/top_view.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/job_ranks.h"
#include "client/cli/job_view.h"

namespace tessera::cli {

std::string TopView::Rate(const v1::Job& job, absl::Time now) {
  const auto it = previous_.find(job.job_id());
  if (it == previous_.end()) return "";
  const double elapsed_seconds = absl::ToDoubleSeconds(now - it->second.time);
  // A job may have been deleted and made again under its name.
  if (elapsed_seconds <= 0.0 || job.committed_step() < it->second.step ||
      job.epoch() < it->second.epoch) {
    return "";
  }
  const double steps = static_cast<double>(job.committed_step()) - it->second.step;
  return absl::StrFormat(", %.1f steps/s", steps / elapsed_seconds);
}

std::string TopView::Frame(const v1::ListJobsResponse& jobs, absl::Time now) {
  std::string frame = absl::StrCat(
      "tessera top  ", address_, "  ", absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone()),
      "  ", jobs.jobs_size(), jobs.jobs_size() == 1 ? " job" : " jobs", "\n");
  absl::flat_hash_map<std::string, Sample> samples;
  for (const v1::Job* job : SortedJobs(jobs)) {
    absl::StrAppend(&frame, "\n", JobHeadline(*job), Rate(*job, now), "\n", RanksTable(*job));
    samples[job->job_id()] = {job->epoch(), job->committed_step(), now};
  }
  // Replaced as a whole, so that jobs that are gone leave nothing behind.
  previous_ = std::move(samples);
  return frame;
}

std::string CropFrame(absl::string_view frame, int num_rows) {
  std::vector<absl::string_view> lines = absl::StrSplit(absl::StripSuffix(frame, "\n"), '\n');
  if (num_rows <= 0 || lines.size() <= static_cast<size_t>(num_rows)) return std::string(frame);
  const size_t num_hidden = lines.size() - (num_rows - 1);
  lines.resize(num_rows - 1);
  const std::string kept = lines.empty() ? "" : absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  return absl::StrCat(kept, "... ", num_hidden, " more lines\n");
}

}  // namespace tessera::cli
