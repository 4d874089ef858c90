#include "client/cli/live_commands.h"

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/json_text.h"
#include "client/cli/live_file.h"
#include "client/cli/progress_line.h"
#include "client/cli/text_table.h"
#include "job/job_codec.h"
#include "layout/dtype.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job, out, dtype;
  std::vector<std::string> include, exclude;
  bool optimizer = false, no_buffers = false, json = false, through_coordinator = false;
};

absl::StatusOr<v1::LiveStateQuery> QueryOf(const Flags& flags) {
  v1::LiveStateQuery query;
  query.set_job_id(flags.job);
  for (const std::string& pattern : flags.include) query.add_include(pattern);
  for (const std::string& pattern : flags.exclude) query.add_exclude(pattern);
  query.set_moments(flags.optimizer);
  query.set_buffers(!flags.no_buffers);
  // Without a dtype nothing is rounded.
  if (flags.dtype.empty()) return query;
  absl::StatusOr<DType> dtype = ParseDType(flags.dtype);
  RETURN_IF_ERROR(Annotate(dtype.status(), "--dtype"));
  query.set_dtype(EncodeDType(*dtype));
  return query;
}

LiveClient::Way WayOf(const Flags& flags) {
  return flags.through_coordinator ? LiveClient::Way::kThroughCoordinator
                                   : LiveClient::Way::kDirectIfPossible;
}

absl::Status RunGet(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const v1::LiveStateQuery query, QueryOf(flags));
  ASSIGN_OR_RETURN(const auto client, OpenLiveClient(flags.endpoint.Coordinator()));
  LiveFile file;
  {
    ProgressLine progress(console, "reading");
    ASSIGN_OR_RETURN(file,
                     SaveLiveState(client.get(), query, WayOf(flags), flags.out,
                                   [&](int64_t done, int64_t all) { progress.Tell(done, all); }));
  }
  if (flags.json) {
    const nlohmann::ordered_json json = {{"job", flags.job},
                                         {"path", flags.out},
                                         {"step", file.trained_step},
                                         {"committed_step", file.step},
                                         {"tensors", file.num_tensors},
                                         {"bytes", file.size_bytes}};
    *console.out << JsonText(json);
    return absl::OkStatus();
  }
  *console.out << Printable(flags.out) << ": step " << file.trained_step << " of job '"
               << Printable(flags.job) << "', " << file.num_tensors << " tensors, "
               << FormatBytes(file.size_bytes) << "\n";
  return absl::OkStatus();
}

}  // namespace

void RegisterGetCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app->add_subcommand("get", "writes the parameters and buffers of a running job to a file");
  command->add_option("job", flags->job, "the job's id")->required();
  command->add_option("--out", flags->out, "safetensors file to write")->required();
  command->add_option("--include", flags->include,
                      "only tensors with matching names, such as 'head.*'");
  command->add_option("--exclude", flags->exclude, "except those with matching names");
  command->add_option("--dtype", flags->dtype, "what to round parameters to: fp32, bf16 or fp16");
  command->add_flag("--optimizer", flags->optimizer, "their optimizer state too");
  command->add_flag("--no-buffers", flags->no_buffers, "only parameters");
  command->add_flag("--through-coordinator", flags->through_coordinator,
                    "ask no worker, even if this host reaches them all");
  command->add_flag("--json", flags->json, "print JSON");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return RunGet(*flags, console); };
  });
}

}  // namespace tessera::cli
