#include "tests/gpu/rows_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/unique_fd.h"

namespace tessera {
namespace gpu_check {

absl::Status RowsFile::Add(const std::vector<BenchRow>& rows) {
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  const std::string unfinished = path_ + ".new";
  std::ofstream file(unfinished);
  file << RowsToJson(rows_) << "\n";
  file.close();
  if (!file || rename(unfinished.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_);
  return absl::OkStatus();
}

absl::Status RowsFile::AddError(const std::string& name, const absl::Status& why) {
  BenchRow row;
  row.name = name;
  row.error = why.ToString();
  return Add({row});
}

}  // namespace gpu_check
}  // namespace tessera
