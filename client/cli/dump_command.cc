#include "client/cli/dump_command.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/flight_trace.h"
#include "client/cli/flight_view.h"
#include "client/cli/jobs_client.h"
#include "client/cli/worker_client.h"
#include "job/job_config.h"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;
  int32_t rank = -1;
  bool json = false;
  int last = 20;
  std::string perfetto_path;
};

// With the fields of the .proto file under their names there; int64 are strings, as ever.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  // Also zeros, so that programs find every field.
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
    const std::string fake =
        FakeText(job.config().fake_all_gather(), job.config().fake_reduce_scatter());
    if (!fake.empty()) *console.out << "# TRAINS NOTHING: " << fake << "\n";  // A comment to it.
    *console.out << text;
  }
  return absl::OkStatus();
}

// The ranks that the flags name: one, or all that the worker has of the job.
absl::StatusOr<std::vector<v1::DumpRankResponse>> GetDumps(const Flags& flags) {
  ASSIGN_OR_RETURN(const auto client, WorkerClient::Create(flags.endpoint.Worker()));
  std::vector<int32_t> ranks;
  if (flags.rank >= 0) {
    ranks.push_back(flags.rank);
  } else {
    ASSIGN_OR_RETURN(const v1::WorkerStatusResponse worker, client->GetStatus());
    for (const v1::JobProgress& job : worker.jobs()) {
      if (job.job_id() != flags.job_id) continue;
      for (const auto& [rank, status] : job.ranks()) ranks.push_back(rank);
    }
    // A protobuf map has no order.
    std::sort(ranks.begin(), ranks.end());
  }
  if (ranks.empty()) {
    return absl::NotFoundError(absl::StrCat("worker ", flags.endpoint.Worker().address,
                                            ": no rank of job '", flags.job_id, "'"));
  }
  std::vector<v1::DumpRankResponse> dumps;
  for (int32_t rank : ranks) {
    ASSIGN_OR_RETURN(v1::DumpRankResponse dump, client->DumpRank(flags.job_id, Rank(rank)));
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  // Only closing shows whether everything could be written.
  out.close();
  if (out.fail()) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status DumpRanks(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const std::vector<v1::DumpRankResponse> dumps, GetDumps(flags));
  if (!flags.perfetto_path.empty()) {
    RETURN_IF_ERROR(WriteFile(flags.perfetto_path, FlightTrace(dumps)));
    *console.out << "wrote " << flags.perfetto_path << ", for Perfetto\n";
  } else if (flags.json) {
    *console.out << FlightJson(dumps);
  } else {
    for (const v1::DumpRankResponse& dump : dumps) *console.out << FlightText(dump, flags.last);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDumpCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand(
      "dump",
      "show a job in detail (--coordinator), or the flight records of its ranks (--worker)");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddWorker(command);
  flags->endpoint.AddTimeout(command);
  command->add_option("job", flags->job_id, "the job's id")->required();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  std::vector<CLI::Option*> of_worker = {
      command->add_option("--rank", flags->rank, "only this rank")->check(WholeNumber(0, kMax)),
      command
          ->add_option("--last", flags->last, "this many operations per rank, and those in flight")
          ->check(WholeNumber(0, kMax)),
      command->add_option("--perfetto", flags->perfetto_path,
                          "write all operations to this file, as trace events")};
  CLI::Option* json = command->add_flag("--json", flags->json, "print JSON, all operations");
  json->excludes(of_worker.back());
  command->callback([flags, of_worker, selected] {
    flags->endpoint.CheckOnlyOne();
    for (const CLI::Option* option : of_worker) {
      if (option->count() > 0 && !flags->endpoint.has_worker()) {
        throw CLI::ValidationError("dump", option->get_name() + " needs --worker");
      }
    }
    *selected = [flags](const Console& console) {
      return flags->endpoint.has_worker() ? DumpRanks(*flags, console) : DumpJob(*flags, console);
    };
  });
}

}  // namespace tessera::cli
