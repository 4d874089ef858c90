#include "client/cli/checkpoint_commands.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/storage/storage_path.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/json_text.h"
#include "client/cli/progress_line.h"
#include "client/cli/save_commands.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string path, job;
  bool json = false;
};

CLI::App* AddCommand(CLI::App* app, const char* name, const char* help, Flags* flags) {
  CLI::App* command = app->add_subcommand(name, help);
  command->add_option("path", flags->path, "the folder");
  command->add_flag("--json", flags->json, "print JSON");
  return command;
}

absl::Status RunCheckpoints(const Flags& flags, const Console& console) {
  if (!flags.job.empty())
    return ListSaves(flags.endpoint.Coordinator(), flags.job, /*ended=*/true, flags.json, console);
  ASSIGN_OR_RETURN(const std::string folder, PlainPath(flags.path));
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> found, ListCheckpoints(folder));
  if (flags.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const ListedCheckpoint& listed : found) {
      json.push_back({{"path", listed.path},
                      {"job", listed.job_id},
                      {"step", listed.step},
                      {"bytes", listed.size_bytes}});
    }
    const nlohmann::ordered_json all = {{"checkpoints", std::move(json)}};
    *console.out << JsonText(all);
    return absl::OkStatus();
  }
  if (found.empty()) {
    *console.out << "no checkpoints\n";
    return absl::OkStatus();
  }
  TextTable table({"step", "size", "job", "path"});
  for (const ListedCheckpoint& listed : found) {
    table.AddRow({absl::StrCat(listed.step), FormatBytes(listed.size_bytes),
                  Printable(listed.job_id), Printable(listed.path)});
  }
  *console.out << table.Render("");
  return absl::OkStatus();
}

void WriteVerificationJson(const Verification& found, const Console& console) {
  nlohmann::ordered_json json;
  json["job"] = found.manifest.job_id;
  json["step"] = found.manifest.step;
  json["whole"] = found.damages.empty();
  json["damages"] = nlohmann::ordered_json::array();
  for (const absl::Status& damage : found.damages)
    json["damages"].push_back(std::string(damage.message()));
  *console.out << JsonText(json);
}

absl::Status RunVerify(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const std::string path, PlainPath(WithoutSlashes(flags.path)));
  Verification found;
  // In a scope of its own, so that the line has ended before anything else is written.
  {
    ProgressLine progress(console, "verifying");
    ASSIGN_OR_RETURN(found, VerifyCheckpoint(path, [&](int64_t done_bytes, int64_t all_bytes) {
                       progress.Tell(done_bytes, all_bytes);
                     }));
  }
  int64_t tensors = 0, bytes = 0;
  for (const auto& [name, file] : found.manifest.files) {
    tensors += static_cast<int64_t>(file.tensors.size());
    bytes += file.size_bytes;
  }
  if (flags.json) {
    WriteVerificationJson(found, console);
  } else {
    for (const absl::Status& damage : found.damages)
      *console.out << Printable(damage.message()) << "\n";
  }
  if (!found.damages.empty()) {
    // The damages are listed above, because an error is one line.
    return absl::DataLossError(
        absl::StrCat(path, ": ", found.damages.size(), " of its parts are damaged"));
  }
  if (!flags.json) {
    *console.out << Printable(path) << ": whole. Step " << found.manifest.step << " of job '"
                 << Printable(found.manifest.job_id) << "', " << found.manifest.files.size()
                 << " files, " << tensors << " tensors, " << FormatBytes(bytes) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterCheckpointsCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "checkpoints", "lists the checkpoints in a folder, or what a job has saved",
                 flags.get());
  CLI::Option* job = command->add_option("--job", flags->job, "the job's id");
  command->get_option("path")->excludes(job);
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->callback([flags, selected] {
    // The parser has no rule for "one of the two".
    if (flags->path.empty() && flags->job.empty()) throw CLI::RequiredError("path or --job");
    *selected = [flags](const Console& console) { return RunCheckpoints(*flags, console); };
  });
}

void RegisterVerifyCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "verify", "reads a whole checkpoint and reports damage", flags.get());
  command->get_option("path")->required();
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return RunVerify(*flags, console); };
  });
}

}  // namespace tessera::cli
