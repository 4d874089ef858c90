#include "tests/fault/disk_log/crash_check.h"

#include <functional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::disk_log {
namespace {

constexpr int kTornStates = 32;   // After each record.
constexpr int kSampledOneIn = 8;  // Of the states that differ.

// What may have each name, as the marks come.
class Allowed {
 public:
  explicit Allowed(const Saved& saved) : saved_(saved) {
    for (const auto& [name, versions] : saved_) allowed_[name] = {std::nullopt};
  }
  void Mark(const std::string& text) {
    const std::pair<std::string, std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    const auto& [verb, name] = words;
    const auto saved = saved_.find(name);
    if (saved == saved_.end()) return;
    std::set<Version>& allowed = allowed_[name];
    const size_t next = ended_[name];
    if (verb == "retire") allowed.insert(std::nullopt);
    if (next >= saved->second.size()) return;
    if (verb == "begin") allowed.insert(saved->second[next]);
    if (verb == "end") {
      allowed = {saved->second[next]};
      ++ended_[name];
    }
  }
  // The first name that has something else; "".
  std::string Wrong(const DiskTree& state) const {
    for (const auto& [name, versions] : allowed_) {
      if (versions.count(VersionAt(state, name)) == 0) return name;
    }
    return "";
  }

 private:
  const Saved& saved_;
  std::map<std::string, size_t> ended_;
  std::map<std::string, std::set<Version>> allowed_;
};

// Collects what is wrong, and which states there were.
class Checker {
 public:
  Checker(const Saved& saved, std::vector<DiskTree>* sample) : allowed_(saved), sample_(*sample) {}

  void Mark(const std::string& text) { allowed_.Mark(text); }
  void Look(const DiskTree& state, const std::string& which) {
    if (!wrong_.empty()) return;
    if (const std::string name = allowed_.Wrong(state); !name.empty())
      wrong_ = absl::StrCat("'", name, "' is wrong where ", which, ":\n", ListOf(state));
    std::string all = ListOf(state);
    for (const auto& [path, bytes] : state) absl::StrAppend(&all, bytes.value_or(""));
    if (seen_.insert(std::hash<std::string>()(all)).second && seen_.size() % kSampledOneIn == 0)
      sample_.push_back(state);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  Allowed allowed_;
  std::vector<DiskTree>& sample_;
  std::set<size_t> seen_;  // Hashes.
  std::string wrong_;
};

}  // namespace

Version VersionAt(const DiskTree& tree, const std::string& name) {
  const auto it = tree.find(name);
  if (it == tree.end() || !it->second.has_value()) return TreeAt(tree, name);
  return DiskTree{{"", it->second}};
}

std::string ListOf(const DiskTree& tree) {
  std::string list;
  for (const auto& [path, bytes] : tree) {
    absl::StrAppend(&list, "  ", path,
                    bytes ? absl::StrCat(" ", bytes->size(), " bytes\n") : "/\n");
  }
  return list;
}

absl::StatusOr<Saved> SavedIn(const std::vector<DiskRecord>& records, const std::string& folder) {
  Saved saved;
  CrashDisk disk;
  for (const DiskRecord& record : records) {
    RETURN_IF_ERROR(disk.Apply(record));
    if (record.event != DiskEvent::kMark || !absl::StartsWith(record.path, "end ")) continue;
    const std::string name = record.path.substr(4);
    saved[name].push_back(VersionAt(disk.Kept(), name));
  }
  ASSIGN_OR_RETURN(const DiskTree real, ReadTree(folder));
  if (real == disk.Kept()) return saved;
  return absl::DataLossError(
      absl::StrCat("the folder:\n", ListOf(real), "the log:\n", ListOf(disk.Kept())));
}

std::string FirstWrong(const std::vector<DiskRecord>& records, const Saved& saved, uint64_t seed,
                       std::vector<DiskTree>* sample) {
  Checker checker(saved, sample);
  CrashDisk disk;
  for (size_t i = 0; i < records.size(); ++i) {
    const DiskRecord& record = records[i];
    if (const absl::Status status = disk.Apply(record); !status.ok()) return status.ToString();
    if (record.event == DiskEvent::kMark) checker.Mark(record.path);
    checker.Look(disk.Lost(), "all is lost");
    checker.Look(disk.Kept(), "all is kept");
    for (int torn = 0; torn < kTornStates; ++torn) {
      const uint64_t own_seed = seed + i * kTornStates + torn;
      std::mt19937_64 random(own_seed);
      checker.Look(disk.Torn(&random), absl::StrCat("some is lost, seed ", own_seed));
    }
    if (!checker.wrong().empty()) {
      return absl::StrCat(checker.wrong(), "after record ", i, ": ", record.path, " ",
                          record.second_path, ", event ", static_cast<int>(record.event));
    }
  }
  return "";
}

}  // namespace tessera::disk_log
