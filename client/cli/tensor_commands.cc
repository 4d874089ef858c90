#include "client/cli/tensor_commands.h"

#include <stdlib.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/safetensors/diff_tensors.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/json_text.h"
#include "client/cli/live_file.h"
#include "client/cli/progress_line.h"
#include "client/cli/tensor_text.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string a, b;  // `ls` has only a.
  std::string job;   // Instead of a: what it is now.
  EndpointFlags endpoint;
  std::string match;
  bool no_buffers = false;
  bool json = false;
};

void AddFlags(CLI::App* command, Flags* flags) {
  command->add_option("--match", flags->match,
                      "only tensors with matching names, such as '*.weight'");
  command->add_flag("--json", flags->json, "print JSON");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
}

absl::Status NoneMatches(const Flags& flags) {
  return absl::NotFoundError(absl::StrCat("no tensor's name matches '", flags.match, "'"));
}

Json DTypeJson(const StoredEntry& entry) {
  return entry.dtype.has_value() ? Json(DTypeText(entry)) : Json(nullptr);
}

Json EntryJson(const StoredEntry& entry) {
  return {{"dtype", DTypeJson(entry)}, {"shape", entry.shape}, {"bytes", entry.size_bytes}};
}

Json KeyJson(const StoredKey& key) { return {{"part", key.first}, {"name", key.second}}; }

// What there is of a part: a model has only one.
struct Total {
  int64_t tensors = 0, files = 0, bytes = 0;
};

std::string TotalText(const Total& total) {
  std::string text;
  if (total.tensors > 0 || total.files == 0) absl::StrAppend(&text, total.tensors, " tensors, ");
  if (total.files > 0) absl::StrAppend(&text, total.files, " files of bytes, ");
  return absl::StrCat(text, FormatBytes(total.bytes));
}

void WriteList(const std::map<StoredKey, StoredEntry>& entries, const Console& console) {
  TextTable table({"part", "name", "dtype", "shape", "size"});
  std::map<std::string, Total> totals;
  Total all;
  for (const auto& [key, entry] : entries) {
    table.AddRow({Printable(key.first), Printable(key.second), DTypeText(entry), ShapeText(entry),
                  FormatBytes(entry.size_bytes)});
    for (Total* total : {&totals[key.first], &all}) {
      ++(entry.dtype.has_value() ? total->tensors : total->files);
      total->bytes += entry.size_bytes;
    }
  }
  if (!entries.empty()) *console.out << table.Render("");
  if (totals.size() > 1) {
    for (const auto& [part, total] : totals)
      *console.out << Printable(part) << ": " << TotalText(total) << "\n";
  }
  *console.out << "all: " << TotalText(all) << "\n";
}

absl::StatusOr<std::map<StoredKey, StoredEntry>> EntriesOf(const Flags& flags) {
  if (flags.job.empty()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<StoredTensors> stored, StoredTensors::Open(flags.a));
    return stored->entries();
  }
  v1::LiveStateQuery query;
  query.set_job_id(flags.job);
  query.set_moments(true);
  query.set_buffers(true);
  ASSIGN_OR_RETURN(const auto client, OpenLiveClient(flags.endpoint.Coordinator()));
  return ListLiveState(client.get(), query);
}

absl::Status RunLs(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto all, EntriesOf(flags));
  std::map<StoredKey, StoredEntry> entries;
  Json tensors = Json::array();
  int64_t all_bytes = 0;
  for (const auto& [key, entry] : all) {
    if (!MatchesPattern(flags.match, key.second)) continue;
    entries[key] = entry;
    all_bytes += entry.size_bytes;
    if (!flags.json) continue;
    tensors.push_back(KeyJson(key));
    tensors.back().update(EntryJson(entry));
  }
  if (entries.empty() && !flags.match.empty()) return NoneMatches(flags);
  if (flags.json) {
    *console.out << JsonText({{"tensors", std::move(tensors)}, {"bytes", all_bytes}});
  } else {
    WriteList(entries, console);
  }
  return absl::OkStatus();
}

Json DifferenceJson(const TensorDiff& diff) {
  Json json = KeyJson(diff.key);
  json["differs"] = std::string(Name(diff.kind));
  if (diff.kind != DiffKind::kOnlyInB) json["a"] = EntryJson(diff.a);
  if (diff.kind != DiffKind::kOnlyInA) json["b"] = EntryJson(diff.b);
  if (diff.kind != DiffKind::kValues) return json;
  const bool known = HasDifferences(diff.a.dtype.value_or(StoredDType::kU8));
  json["elements"] = diff.a.numel;
  json["different_elements"] = diff.elements.num_different;
  json["first_element"] = diff.elements.first_element;
  json["non_finite_elements"] = diff.elements.num_non_finite;
  json["largest_difference"] = known ? Json(diff.elements.largest) : Json(nullptr);
  return json;
}

void WriteDiff(const TensorsDiff& found, const Flags& flags, const Console& console) {
  const size_t num_different = found.differences.size();
  if (flags.json) {
    Json json = {{"equal", num_different == 0}, {"compared", found.num_compared}};
    json["differences"] = Json::array();
    for (const TensorDiff& diff : found.differences)
      json["differences"].push_back(DifferenceJson(diff));
    *console.out << JsonText(json);
    return;
  }
  if (num_different == 0) {
    *console.out << "equal: " << found.num_compared << " of " << found.num_compared << "\n";
    return;
  }
  TextTable table({"part", "name", "differs", "how"});
  for (const TensorDiff& diff : found.differences) {
    table.AddRow({Printable(diff.key.first), Printable(diff.key.second),
                  std::string(Name(diff.kind)), DifferenceText(diff)});
  }
  *console.out << table.Render("");
  *console.out << "different: " << num_different << " of " << found.num_compared << "\n";
}

// A job's parameters and buffers, in a file that is gone with this.
class LiveCopy {
 public:
  ~LiveCopy() {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  absl::StatusOr<std::unique_ptr<StoredTensors>> Open(const Flags& flags, const Console& console) {
    v1::LiveStateQuery query;
    query.set_job_id(flags.job);
    query.set_buffers(!flags.no_buffers);
    // Only what is compared is read from the job.
    if (!flags.match.empty()) query.add_include(flags.match);
    ASSIGN_OR_RETURN(const auto client, OpenLiveClient(flags.endpoint.Coordinator()));
    // Copied first: the job trains on, and all that is compared must be of one step.
    std::string folder = "/tmp/tessera-diff-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, "make a folder in /tmp");
    folder_ = folder;
    const std::string path = folder_ + "/model.safetensors";
    ProgressLine progress(console, "reading");
    const auto tell = [&](int64_t done, int64_t all) { progress.Tell(done, all); };
    RETURN_IF_ERROR(
        SaveLiveState(client.get(), query, LiveClient::Way::kDirectIfPossible, path, tell)
            .status());
    return StoredTensors::Open(path);
  }

 private:
  std::string folder_;
};

absl::Status RunDiff(const Flags& flags, const Console& console) {
  // Declared first, so that the file outlives the reader.
  LiveCopy copy;
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredTensors> a,
                   flags.job.empty() ? StoredTensors::Open(flags.a) : copy.Open(flags, console));
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredTensors> b, StoredTensors::Open(flags.b));
  TensorsDiff found;
  {
    ProgressLine progress(console, "comparing");
    DiffOptions options;
    options.selects = [&](const std::string& name) {
      if (!MatchesPattern(flags.match, name)) return false;
      // Of a job only its model is compared, not what a checkpoint has in addition.
      return flags.job.empty() || a->entries().count({"model", name}) > 0;
    };
    options.progress = [&](int64_t done, int64_t all) { progress.Tell(done, all); };
    ASSIGN_OR_RETURN(found, DiffTensors(*a, *b, options));
  }
  if (found.num_compared == 0 && !flags.match.empty()) return NoneMatches(flags);
  WriteDiff(found, flags, console);
  if (found.differences.empty()) return absl::OkStatus();
  const std::string what = flags.job.empty() ? flags.a : absl::StrCat("job '", flags.job, "'");
  return absl::FailedPreconditionError(absl::StrCat(what, " and ", flags.b, " differ in ",
                                                    found.differences.size(), " of ",
                                                    found.num_compared, " tensors"));
}

}  // namespace

void RegisterLsCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app->add_subcommand("ls", "lists the tensors of a model or a checkpoint");
  command->add_option("path", flags->a, "file, index or folder");
  command->add_option("--job", flags->job, "the tensors of a running job instead");
  AddFlags(command, flags.get());
  command->callback([flags, selected] {
    if (flags->a.empty() == flags->job.empty())
      throw CLI::ValidationError("ls", "takes a path, or --job");
    *selected = [flags](const Console& console) { return RunLs(*flags, console); };
  });
}

void RegisterDiffCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app->add_subcommand("diff", "shows the differences between two models or checkpoints");
  command->add_option("a", flags->a, "file, index or folder")->required();
  command->add_option("b", flags->b, "the other one");
  command->add_option("--job", flags->job,
                      "compare the model of a running job with one file, index or folder");
  command->add_flag("--no-buffers", flags->no_buffers, "of a job: only parameters");
  AddFlags(command, flags.get());
  command->callback([flags, selected] {
    if (flags->b.empty() == flags->job.empty())
      throw CLI::ValidationError("diff", "takes two paths, or one and --job");
    // With --job, the only path is the second side.
    if (flags->b.empty()) flags->b = flags->a;
    *selected = [flags](const Console& console) { return RunDiff(*flags, console); };
  });
}

}  // namespace tessera::cli
