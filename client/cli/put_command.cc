#include "client/cli/put_command.h"

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/json_text.h"
#include "client/cli/live_file.h"
#include "client/cli/progress_line.h"
#include "client/cli/put_client.h"
#include "client/cli/put_file.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job, from, wait = "10m";
  PutFileOptions options;
  std::vector<std::string> renames;
  bool json = false;
};

absl::Status RunPut(const Flags& flags, const Console& console) {
  PutFileOptions options = flags.options;
  absl::Duration wait;
  if (!absl::ParseDuration(flags.wait, &wait) || wait < absl::Milliseconds(1) ||
      wait > absl::Hours(24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wait ", flags.wait, ": a time from 1ms to 24h"));
  }
  options.wait_ms = absl::ToInt64Milliseconds(wait);
  for (const std::string& rename : flags.renames) {
    const size_t equals = rename.find('=');
    if (equals == std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat("--rename ", rename, ": is not OLD=NEW"));
    options.selection.renames.push_back({rename.substr(0, equals), rename.substr(equals + 1)});
  }
  ASSIGN_OR_RETURN(const auto live, OpenLiveClient(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const auto client, PutClient::Create(flags.endpoint.Coordinator()));
  v1::PutReply reply;
  // In a scope of its own, so that the line has ended before anything else is written.
  {
    ProgressLine progress(console, "sending");
    ASSIGN_OR_RETURN(reply, PutFile(live.get(), client.get(), flags.job, flags.from, options,
                                    [&](int64_t done, int64_t all) { progress.Tell(done, all); }));
  }
  if (flags.json) {
    const nlohmann::ordered_json json = {{"job", flags.job},
                                         {"path", flags.from},
                                         {"step", reply.trained_step()},
                                         {"committed_step", reply.step()},
                                         {"tensors", reply.num_tensors()},
                                         {"bytes", reply.size_bytes()}};
    *console.out << JsonText(json);
    return absl::OkStatus();
  }
  *console.out << "job '" << Printable(flags.job) << "' has " << reply.num_tensors()
               << " tensors of " << Printable(flags.from) << " since the end of step "
               << reply.trained_step() << ", " << FormatBytes(reply.size_bytes()) << "\n";
  return absl::OkStatus();
}

}  // namespace

void RegisterPutCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app->add_subcommand("put", "sets the parameters and buffers of a running job from a file");
  command->add_option("--job", flags->job, "the job's id")->required();
  command->add_option("--from", flags->from, "a model's file or folder, or a checkpoint")
      ->required();
  command->add_option("--include", flags->options.selection.include,
                      "only parameters and buffers with matching names, such as 'head.*'");
  command->add_option("--exclude", flags->options.selection.exclude,
                      "except those with matching names");
  command->add_option("--rename", flags->renames,
                      "OLD=NEW: what is stored as OLD is NEW in the job, such as model.=");
  command->add_flag("--moments", flags->options.moments, "their optimizer state too");
  command->add_flag("!--no-buffers", flags->options.buffers, "only parameters");
  command->add_option("--wait", flags->wait, "how long the trainers may take for a step")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return RunPut(*flags, console); };
  });
}

}  // namespace tessera::cli
