#include "checkpoint/open_model.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/dcp/dcp_model.h"
#include "checkpoint/model_index.h"
#include "checkpoint/model_reader.h"
#include "checkpoint/sharded_model.h"

namespace tessera {
namespace {

template <typename Source>
absl::StatusOr<std::unique_ptr<ModelSource>> Open(const std::string& path) {
  ASSIGN_OR_RETURN(Source source, Source::Open(path));
  return std::make_unique<Source>(std::move(source));
}

absl::StatusOr<std::unique_ptr<ModelSource>> OpenFolder(const std::string& folder) {
  const std::string names[] = {kModelIndexName, kSingleFileName, dcp::kMetadataName};
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (access(absl::StrCat(folder, "/", name).c_str(), F_OK) == 0) found.push_back(name);
  }
  if (found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " holds no model: none of ", absl::StrJoin(names, ", ")));
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " holds more than one model: ", absl::StrJoin(found, ", "), "; name one of them"));
  }
  if (found[0] == dcp::kMetadataName) return Open<dcp::DcpModel>(folder);
  const std::string path = absl::StrCat(folder, "/", found[0]);
  return found[0] == kModelIndexName ? Open<ShardedModel>(path) : Open<ModelReader>(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path) {
  if (path.empty() || path[0] != '/')
    return absl::InvalidArgumentError(absl::StrCat("model '", path, "' is no absolute path"));
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  if (S_ISDIR(info.st_mode)) return OpenFolder(path);
  if (absl::EndsWith(path, ".json")) return Open<ShardedModel>(path);
  return Open<ModelReader>(path);
}

}  // namespace tessera
