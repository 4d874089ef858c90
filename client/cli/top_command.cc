#include "client/cli/top_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/cli/ending_signals.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/job_view.h"
#include "client/cli/jobs_client.h"
#include "client/cli/live_screen.h"
#include "client/cli/top_view.h"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;  // Empty: all.
  bool once = false;
  bool json = false;
};

int TerminalRows() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
}

absl::StatusOr<v1::ListJobsResponse> GetJobs(const Flags& flags, JobsClient* client) {
  if (flags.job_id.empty()) return client->ListJobs();
  v1::ListJobsResponse jobs;
  ASSIGN_OR_RETURN(*jobs.add_jobs(), client->GetJob(flags.job_id));
  return jobs;
}

absl::Status PrintOnce(const Flags& flags, JobsClient* client, const Console& console) {
  ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, GetJobs(flags, client));
  TopView view(flags.endpoint.Coordinator().address);
  *console.out << (flags.json ? JobsJson(jobs) : view.Frame(jobs, WallNow()));
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags, const Console& console) {
  // Before gRPC starts its threads.
  const bool is_live = console.out_is_terminal && !flags.once && !flags.json;
  std::unique_ptr<EndingSignals> signals;
  if (is_live) signals = std::make_unique<EndingSignals>();
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  if (!is_live) return PrintOnce(flags, client.get(), console);
  TopView view(flags.endpoint.Coordinator().address);
  const auto next_frame = [&]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, GetJobs(flags, client.get()));
    // One row less than there are: a line break in the last row would scroll the screen.
    return CropFrame(view.Frame(jobs, WallNow()), TerminalRows() - 1);
  };
  return RunLive(
      next_frame, [&] { return signals->Wait(absl::Seconds(1)); }, console.out);
}

}  // namespace

void RegisterTopCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand("top", "live view of jobs and their ranks");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->add_option("job", flags->job_id, "only this job");
  command->add_flag("--once", flags->once, "print one frame and end");
  command->add_flag("--json", flags->json, "print one frame as JSON");
  command->callback(
      [flags, selected] { *selected = [flags](const Console& c) { return Run(*flags, c); }; });
}

}  // namespace tessera::cli
