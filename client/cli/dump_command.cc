#include "client/cli/dump_command.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <limits>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/jobs_client.h"
#include "client/cli/text_table.h"
#include "client/cli/worker_client.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;
  int32_t rank = -1;
  bool json = false;
};

// With the fields of the .proto file under their names there; int64 are strings, as ever.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (status.ok()) return json;
  return absl::InternalError("the job cannot be written as JSON");
}

absl::Status DumpJob(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job_id));
  if (flags.json) {
    ASSIGN_OR_RETURN(const std::string json, MessageJson(job));
    *console.out << json;
  } else {
    std::string text;
    google::protobuf::TextFormat::PrintToString(job, &text);  // Escapes what is not printable.
    *console.out << text;
  }
  return absl::OkStatus();
}

absl::Status DumpRank(const Flags& flags, const Console& console) {
  const Endpoint endpoint = flags.endpoint.Worker();
  ASSIGN_OR_RETURN(const auto client, WorkerClient::Create(endpoint));
  ASSIGN_OR_RETURN(const v1::DumpRankResponse dump,
                   client->DumpRank(flags.job_id, Rank(flags.rank)));
  if (!flags.json) {
    *console.out << PrintableLines(dump.text());
    if (!absl::EndsWith(dump.text(), "\n")) *console.out << "\n";
    return absl::OkStatus();
  }
  const auto json = nlohmann::ordered_json::parse(dump.json(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InternalError(
        absl::StrCat("worker ", endpoint.address, ": the dump that it sent is not JSON"));
  }
  *console.out << json.dump(2) << "\n";
  return absl::OkStatus();
}

}  // namespace

void RegisterDumpCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand(
      "dump", "all about a job (--coordinator), or the flight record of a rank (--worker, --rank)");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command, /*required=*/false);
  flags->endpoint.AddWorker(command);
  flags->endpoint.AddTimeout(command);
  command->add_option("job", flags->job_id, "the job's id")->required();
  CLI::Option* rank = command->add_option("--rank", flags->rank, "a rank on that worker")
                          ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, rank, selected] {
    if (flags->endpoint.has_coordinator() == flags->endpoint.has_worker()) {
      throw CLI::ValidationError("dump", "either --coordinator or --worker is required");
    }
    if (flags->endpoint.has_worker() != (rank->count() > 0)) {
      throw CLI::ValidationError("dump", "--worker and --rank go together");
    }
    *selected = [flags](const Console& console) {
      return flags->endpoint.has_worker() ? DumpRank(*flags, console) : DumpJob(*flags, console);
    };
  });
}

}  // namespace tessera::cli
