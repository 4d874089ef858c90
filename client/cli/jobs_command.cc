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
  std::string job_to_delete;
  bool json = false;
};

absl::Status List(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client->ListJobs());
  *console.out << (flags.json ? JobsJson(jobs) : JobsTable(jobs));
  return absl::OkStatus();
}

absl::Status Delete(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  RETURN_IF_ERROR(client->DeleteJob(flags.job_to_delete));
  if (flags.json) {
    const nlohmann::json json = {{"deleted", flags.job_to_delete}};
    *console.out << json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    *console.out << "deleted " << Printable(flags.job_to_delete) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterJobsCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand("jobs", "list the coordinator's jobs, or delete one");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->add_flag("--json", flags->json, "print JSON");
  CLI::App* deletion = command->add_subcommand("delete", "delete a job with all its state");
  deletion->fallthrough();  // `jobs delete NAME --coordinator ...` is understood too.
  deletion->add_option("name", flags->job_to_delete, "the job's id")->required();
  command->callback([flags, deletion, selected] {
    const bool deletes = deletion->parsed();
    *selected = [flags, deletes](const Console& console) {
      return deletes ? Delete(*flags, console) : List(*flags, console);
    };
  });
}

}  // namespace tessera::cli
