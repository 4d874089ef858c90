#include "client/cli/consolidate_command.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "checkpoint/parts/consolidate.h"
#include "checkpoint/storage/storage_path.h"
#include "client/cli/json_text.h"
#include "client/cli/progress_line.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

struct Flags {
  std::vector<std::string> parts;
  std::string out;
  int64_t max_file_bytes = 0;
  bool allow_missing_ranks = false;
  bool json = false;
};

absl::StatusOr<std::string> OutOf(const Flags& flags) {
  ASSIGN_OR_RETURN(std::string absolute, AbsolutePath(flags.out));
  if (SchemeOf(absolute).empty())  // Keys of objects are not normalized.
    absolute = std::filesystem::path(absolute).lexically_normal().string();
  absolute = WithoutSlashes(std::move(absolute));
  return absolute;
}

int64_t BytesOf(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.size_bytes;
  return bytes;
}

void WriteJson(const Consolidated& made, const std::string& out, const Console& console) {
  nlohmann::ordered_json json;
  json["path"] = out;
  json["job"] = made.manifest.job_id;
  json["step"] = made.manifest.step;
  json["parts"] = made.num_parts;
  json["missing_ranks"] = made.missing_ranks;
  json["files"] = made.manifest.files.size();
  json["bytes"] = BytesOf(made.manifest);
  *console.out << JsonText(json);
}

void WriteText(const Consolidated& made, const std::string& out, const Console& console) {
  if (!made.missing_ranks.empty()) {
    *console.out << "without the bytes of the trainers of ranks "
                 << absl::StrJoin(made.missing_ranks, ", ") << ", whose parts are not given\n";
  }
  *console.out << Printable(out) << ": step " << made.manifest.step << " of job '"
               << Printable(made.manifest.job_id) << "', of " << made.num_parts << " parts, "
               << made.manifest.files.size() << " files, " << FormatBytes(BytesOf(made.manifest))
               << "\n";
}

absl::Status Run(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const std::string out, OutOf(flags));
  std::vector<std::string> parts;
  for (const std::string& given : flags.parts) {
    ASSIGN_OR_RETURN(parts.emplace_back(), PlainPath(given));
  }
  Consolidated made;
  {
    ProgressLine progress(console, "consolidating");
    ConsolidateOptions options;
    options.max_file_bytes = flags.max_file_bytes;
    options.allow_missing_ranks = flags.allow_missing_ranks;
    options.progress = [&](int64_t done_bytes, int64_t all_bytes) {
      progress.Tell(done_bytes, all_bytes);
    };
    ASSIGN_OR_RETURN(made, Consolidate(parts, out, options));
  }
  if (flags.json) {
    WriteJson(made, out, console);
  } else {
    WriteText(made, out, console);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterConsolidateCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app->add_subcommand("consolidate", "assembles a checkpoint from the parts that ranks wrote");
  command->add_option("parts", flags->parts, "parts, or folders with parts")->required();
  command->add_option("--out", flags->out, "the checkpoint's folder")->required();
  command
      ->add_option("--max-file-bytes", flags->max_file_bytes,
                   "split the model into files of this many bytes, with an index; 0: one file")
      ->check(WholeNumber(0, std::numeric_limits<int64_t>::max()));
  command->add_flag("--allow-missing-ranks", flags->allow_missing_ranks,
                    "accept missing ranks if replicas have all tensors");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return Run(*flags, console); };
  });
}

}  // namespace tessera::cli
