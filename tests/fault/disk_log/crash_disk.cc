#include "tests/fault/disk_log/crash_disk.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tests/testing/process_view.h"

namespace tessera::disk_log {
namespace fs = std::filesystem;

absl::StatusOr<DiskTree> ReadTree(const std::string& folder) {
  DiskTree tree;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const std::string path = entries->path().string();
    std::optional<std::string>& bytes = tree[path.substr(folder.size() + 1)];
    if (!entries->is_directory()) bytes = testing_support::ReadFile(path);
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  return tree;
}

absl::Status WriteTree(const DiskTree& tree, const std::string& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  for (const auto& [path, bytes] : tree) {
    const std::string full = absl::StrCat(folder, "/", path);
    if (!bytes.has_value()) {
      fs::create_directory(full, error);
    } else if (!(std::ofstream(full, std::ios::binary) << *bytes).flush()) {
      return absl::InternalError(absl::StrCat("write ", full));
    }
  }
  return error ? ErrnoStatus(error.value(), absl::StrCat("make ", folder)) : absl::OkStatus();
}

std::optional<DiskTree> TreeAt(const DiskTree& tree, const std::string& path) {
  const auto it = tree.find(path);
  if (it == tree.end() || it->second.has_value()) return std::nullopt;
  DiskTree below;
  const std::string prefix = path + "/";
  for (auto entry = tree.lower_bound(prefix);
       entry != tree.end() && absl::StartsWith(entry->first, prefix); ++entry)
    below[entry->first.substr(prefix.size())] = entry->second;
  return below;
}

void CrashDisk::Change(const FileChange& change, std::string* bytes) {
  const size_t size = change.size_bytes;
  switch (change.event) {
    case DiskEvent::kTruncate:
      bytes->resize(size);
      break;
    case DiskEvent::kReserve:
      bytes->resize(std::max(bytes->size(), size));
      break;
    default:
      bytes->resize(std::max(bytes->size(), change.offset_bytes + change.data.size()));
      bytes->replace(change.offset_bytes, change.data.size(), change.data);
  }
}

void CrashDisk::Change(const NameChange& change, std::map<std::string, int>* names) {
  for (const auto& [name, node] : change.names) {
    for (auto it = names->begin(); change.moves && node.has_value() && it != names->end();)
      it = it->second == *node ? names->erase(it) : std::next(it);
  }
  for (const auto& [name, node] : change.names) {
    if (node.has_value()) {
      (*names)[name] = *node;
    } else if (!change.moves) {
      names->erase(name);
    }
  }
}

void CrashDisk::ChangeTorn(const FileChange& change, Keep random, std::string* bytes) const {
  if (change.event != DiskEvent::kWrite) {
    if ((*random)() % 2 == 0) Change(change, bytes);
    return;
  }
  const int64_t end = change.offset_bytes + static_cast<int64_t>(change.data.size());
  for (int64_t at = change.offset_bytes; at < end;) {
    const int64_t next = std::min(end, (at / piece_bytes_ + 1) * piece_bytes_);
    const size_t from = at - change.offset_bytes;
    const uint64_t fate = (*random)() % 4;
    if (fate < 2) {
      Change({DiskEvent::kWrite, at, next - at, change.data.substr(from, next - at)}, bytes);
    } else if (fate == 2) {
      Change({DiskEvent::kReserve, 0, next, ""}, bytes);  // The size, not the bytes.
    }
    at = next;
  }
}

std::string CrashDisk::BytesAfterCrash(const Node& node, Keep random) const {
  std::string bytes = node.synced_bytes;
  if (random == nullptr) return bytes;
  for (const FileChange& change : node.changes) ChangeTorn(change, random, &bytes);
  return bytes;
}

std::map<std::string, int> CrashDisk::NamesAfterCrash(const Node& node, Keep random) const {
  std::map<std::string, int> names = node.synced_names;
  if (random == nullptr) return names;
  for (const NameChange& change : node.name_changes) {
    if ((*random)() % 2 == 0) Change(change, &names);
  }
  return names;
}

void CrashDisk::Collect(const Node& node, const std::string& path, bool crashed, Keep random,
                        DiskTree* tree) const {
  if (!path.empty()) (*tree)[path];
  for (const auto& [name, number] : crashed ? NamesAfterCrash(node, random) : node.names) {
    const Node& child = nodes_[number];
    const std::string full = path.empty() ? name : absl::StrCat(path, "/", name);
    if (child.is_folder) {
      Collect(child, full, crashed, random, tree);
    } else {
      (*tree)[full] = crashed ? BytesAfterCrash(child, random) : child.bytes;
    }
  }
}

DiskTree CrashDisk::Kept() const {
  DiskTree tree;
  if (!nodes_.empty()) Collect(nodes_[0], "", /*crashed=*/false, nullptr, &tree);
  return tree;
}

DiskTree CrashDisk::Lost() const {
  DiskTree tree;
  if (!nodes_.empty()) Collect(nodes_[0], "", /*crashed=*/true, nullptr, &tree);
  return tree;
}

DiskTree CrashDisk::Torn(std::mt19937_64* random) const {
  DiskTree tree;
  if (!nodes_.empty()) Collect(nodes_[0], "", /*crashed=*/true, random, &tree);
  return tree;
}

absl::StatusOr<std::pair<CrashDisk::Node*, std::string>> CrashDisk::Locate(
    const std::string& path) {
  Node* folder = nodes_.empty() ? nullptr : &nodes_[0];
  size_t begin = 0;
  for (size_t slash; folder != nullptr && (slash = path.find('/', begin)) != std::string::npos;
       begin = slash + 1) {
    const auto it = folder->names.find(path.substr(begin, slash - begin));
    folder = it == folder->names.end() ? nullptr : &nodes_[it->second];
  }
  if (folder == nullptr || !folder->is_folder)
    return absl::FailedPreconditionError(absl::StrCat("no folder for '", path, "'"));
  return std::make_pair(folder, path.substr(begin));
}

absl::StatusOr<int> CrashDisk::Named(const std::string& path) {
  ASSIGN_OR_RETURN(const auto place, Locate(path));
  const auto it = place.first->names.find(place.second);
  if (it != place.first->names.end()) return it->second;
  return absl::FailedPreconditionError(absl::StrCat("nothing is at '", path, "'"));
}

absl::StatusOr<CrashDisk::Node*> CrashDisk::Existing(const DiskRecord& record) {
  const auto it = of_inode_.find(record.inode);
  if (it != of_inode_.end()) return &nodes_[it->second];
  return absl::FailedPreconditionError(absl::StrCat("nobody made inode ", record.inode));
}

absl::Status CrashDisk::Make(const DiskRecord& record, bool is_folder) {
  const int number = static_cast<int>(nodes_.size());
  if (number > 0) {
    ASSIGN_OR_RETURN(const auto place, Locate(record.path));
    if (place.first->names.count(place.second) != 0)
      return absl::FailedPreconditionError(absl::StrCat("'", record.path, "' is there already"));
    NameChange change = {{{place.second, number}}};
    Change(change, &place.first->names);
    place.first->name_changes.push_back(std::move(change));
  }
  nodes_.emplace_back().is_folder = is_folder;
  of_inode_[record.inode] = number;
  return absl::OkStatus();
}

absl::Status CrashDisk::Move(const DiskRecord& record) {
  ASSIGN_OR_RETURN(const int from_node, Named(record.path));
  ASSIGN_OR_RETURN(const auto from, Locate(record.path));
  ASSIGN_OR_RETURN(const auto to, Locate(record.second_path));
  if (from.first != to.first) {
    return absl::UnimplementedError(
        absl::StrCat("from '", record.path, "' to another folder's '", record.second_path, "'"));
  }
  NameChange change = {{{to.second, from_node}}, record.event != DiskEvent::kLink};
  if (record.event == DiskEvent::kExchange) {
    ASSIGN_OR_RETURN(const int to_node, Named(record.second_path));
    change.names.push_back({from.second, to_node});
  }
  Change(change, &from.first->names);
  from.first->name_changes.push_back(std::move(change));
  return absl::OkStatus();
}

absl::Status CrashDisk::Remove(const DiskRecord& record) {
  ASSIGN_OR_RETURN(const int node, Named(record.path));
  if (nodes_[node].is_folder != (record.event == DiskEvent::kRemoveFolder) ||
      !nodes_[node].names.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("'", record.path, "' cannot be removed"));
  }
  ASSIGN_OR_RETURN(const auto place, Locate(record.path));
  NameChange change = {{{place.second, std::nullopt}}};
  Change(change, &place.first->names);
  place.first->name_changes.push_back(std::move(change));
  return absl::OkStatus();
}

absl::Status CrashDisk::ChangeFile(const DiskRecord& record) {
  ASSIGN_OR_RETURN(Node * node, Existing(record));
  FileChange change = {record.event, record.offset_bytes, record.size_bytes, record.data};
  Change(change, &node->bytes);
  node->changes.push_back(std::move(change));
  return absl::OkStatus();
}

absl::Status CrashDisk::Sync(const DiskRecord& record) {
  ASSIGN_OR_RETURN(Node * node, Existing(record));
  node->synced_bytes = node->bytes;
  node->synced_names = node->names;
  node->changes.clear();
  node->name_changes.clear();
  return absl::OkStatus();
}

absl::Status CrashDisk::Apply(const DiskRecord& record) {
  switch (record.event) {
    case DiskEvent::kMark:
      return absl::OkStatus();
    case DiskEvent::kCreate:
    case DiskEvent::kMakeFolder:
      return Make(record, record.event == DiskEvent::kMakeFolder);
    case DiskEvent::kTruncate:
    case DiskEvent::kReserve:
    case DiskEvent::kWrite:
      return ChangeFile(record);
    case DiskEvent::kSync:
      return Sync(record);
    case DiskEvent::kRename:
    case DiskEvent::kExchange:
    case DiskEvent::kLink:
      return Move(record);
    case DiskEvent::kUnlink:
    case DiskEvent::kRemoveFolder:
      return Remove(record);
    case DiskEvent::kUnseen:
      return absl::UnimplementedError(absl::StrCat("not followed: ", record.path));
  }
  return absl::UnimplementedError("an event that is not known");
}

}  // namespace tessera::disk_log
