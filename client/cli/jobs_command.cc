#include "client/cli/jobs_command.h"

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/job_view.h"
#include "client/cli/jobs_client.h"
#include "client/cli/text_table.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_to_delete, job_to_take_back;
  bool json = false;
};

absl::Status List(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client->ListJobs());
  *console.out << (flags.json ? JobsJson(jobs) : JobsTable(jobs));
  return absl::OkStatus();
}

void Say(const std::string& done, const std::string& key, const std::string& job,
         const Flags& flags, const Console& console) {
  if (flags.json) {
    const nlohmann::json json = {{key, job}};
    *console.out << json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    *console.out << done << " " << Printable(job) << "\n";
  }
}

absl::Status Delete(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  RETURN_IF_ERROR(client->DeleteJob(flags.job_to_delete));
  Say("deleted", "deleted", flags.job_to_delete, flags, console);
  return absl::OkStatus();
}

absl::Status TakeBack(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  RETURN_IF_ERROR(client->TakeBack(flags.job_to_take_back));
  Say("took back", "taken_back", flags.job_to_take_back, flags, console);
  return absl::OkStatus();
}

}  // namespace

void RegisterJobsCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command =
      app->add_subcommand("jobs", "list the coordinator's jobs, delete one, or take one back");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->add_flag("--json", flags->json, "print JSON");
  CLI::App* deletion = command->add_subcommand("delete", "delete a job with all its state");
  deletion->fallthrough();  // `jobs delete NAME --coordinator ...` is understood too.
  deletion->add_option("name", flags->job_to_delete, "the job's id")->required();
  CLI::App* back = command->add_subcommand("take-back",
                                           "cancel the hand-over of a job that no other job has "
                                           "taken over yet");
  back->fallthrough();
  back->add_option("name", flags->job_to_take_back, "the job's id")->required();
  command->callback([flags, deletion, back, selected] {
    const bool deletes = deletion->parsed(), takes_back = back->parsed();
    *selected = [flags, deletes, takes_back](const Console& console) {
      if (takes_back) return TakeBack(*flags, console);
      return deletes ? Delete(*flags, console) : List(*flags, console);
    };
  });
}

}  // namespace tessera::cli
