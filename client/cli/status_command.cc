#include "client/cli/status_command.h"

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/job_ranks.h"
#include "client/cli/job_view.h"
#include "client/cli/jobs_client.h"
#include "client/cli/worker_client.h"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;  // Empty: all.
  bool json = false;
};

absl::Status ShowWorker(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, WorkerClient::Create(flags.endpoint.Worker()));
  ASSIGN_OR_RETURN(const v1::WorkerStatusResponse worker, client->GetStatus());
  *console.out << (flags.json ? WorkerJson(worker) : WorkerText(worker));
  return absl::OkStatus();
}

absl::Status ShowJobs(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  v1::ListJobsResponse jobs;
  if (flags.job_id.empty()) {
    ASSIGN_OR_RETURN(jobs, client->ListJobs());
  } else {
    ASSIGN_OR_RETURN(*jobs.add_jobs(), client->GetJob(flags.job_id));
  }
  if (flags.json) {
    *console.out << JobsJson(jobs);
    return absl::OkStatus();
  }
  if (jobs.jobs().empty()) *console.out << JobsTable(jobs);
  for (const v1::Job* job : SortedJobs(jobs)) {
    *console.out << JobHeadline(*job) << "\n" << RanksTable(*job);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterStatusCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand("status", "show what jobs and their ranks are doing");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddWorker(command);
  flags->endpoint.AddTimeout(command);
  command->add_option("job", flags->job_id, "only this job of the coordinator");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, selected] {
    flags->endpoint.CheckOnlyOne();
    if (flags->endpoint.has_worker() && !flags->job_id.empty()) {
      throw CLI::ValidationError("status", "ask the coordinator about a job, not a worker");
    }
    *selected = [flags](const Console& console) {
      return flags->endpoint.has_worker() ? ShowWorker(*flags, console) : ShowJobs(*flags, console);
    };
  });
}

}  // namespace tessera::cli
