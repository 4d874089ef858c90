#include "client/cli/workers_command.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes_text.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/jobs_client.h"
#include "client/cli/json_text.h"
#include "client/cli/text_table.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  EndpointFlags endpoint;
  bool json = false;
};

// Of its host's memory: "18.2 GiB of 20.7 GiB".
std::string FreeText(const v1::WorkerInfo& worker) {
  if (worker.memory_bytes() == 0) return "not told";
  const int64_t free_bytes = worker.memory_bytes() - worker.claimed_memory_bytes();
  return absl::StrCat(BytesText(std::max<int64_t>(free_bytes, 0)), " of ",
                      BytesText(worker.memory_bytes()));
}

std::string Table(const std::vector<v1::WorkerInfo>& workers) {
  if (workers.empty()) return "no workers\n";
  TextTable table(
      {"worker", "state", "devices", "last heard of", "address", "memory", "free for jobs"});
  for (const v1::WorkerInfo& worker : workers) {
    table.AddRow(
        {Printable(worker.worker_id()), worker.lost() ? "LOST" : "live",
         absl::StrCat(worker.num_devices()),
         absl::StrCat(absl::FormatDuration(absl::Milliseconds(worker.silent_ms())), " ago"),
         Printable(worker.address()), worker.device().empty() ? "host" : Printable(worker.device()),
         FreeText(worker)});
  }
  return table.Render("");
}

std::string WorkersJson(const std::vector<v1::WorkerInfo>& workers) {
  Json list = Json::array();
  for (const v1::WorkerInfo& worker : workers) {
    list.push_back({{"worker_id", worker.worker_id()},
                    {"lost", worker.lost()},
                    {"num_devices", worker.num_devices()},
                    {"max_ranks_of_job", worker.max_ranks_of_job()},
                    {"device", worker.device()},
                    {"memory_bytes", worker.memory_bytes()},
                    {"claimed_memory_bytes", worker.claimed_memory_bytes()},
                    {"silent_ms", worker.silent_ms()},
                    {"incarnation", worker.incarnation()},
                    {"address", worker.address()}});
  }
  return AsciiJsonText({{"workers", std::move(list)}});
}

absl::Status Run(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::ListWorkersResponse reply, client->ListWorkers());
  std::vector<v1::WorkerInfo> workers(reply.workers().begin(), reply.workers().end());
  std::sort(workers.begin(), workers.end(),
            [](const auto& a, const auto& b) { return a.worker_id() < b.worker_id(); });
  *console.out << (flags.json ? WorkersJson(workers) : Table(workers));
  return absl::OkStatus();
}

}  // namespace

void RegisterWorkersCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand("workers", "list the coordinator's workers");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->add_flag("--json", flags->json, "print JSON");
  command->callback(
      [flags, selected] { *selected = [flags](const Console& c) { return Run(*flags, c); }; });
}

}  // namespace tessera::cli
