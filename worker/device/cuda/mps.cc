#include "worker/device/cuda/mps.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Of "nvidia-cuda-mps-control" and "nvidia-cuda-mps-server" the kernel keeps as much.
constexpr char kProcessName[] = "nvidia-cuda-mps";

absl::Status FindControl(const std::string& pipe_folder) {
  const std::string path = absl::StrCat(pipe_folder, "/control");
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  // A socket today; a pipe in drivers of old.
  if (S_ISSOCK(info.st_mode) || S_ISFIFO(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " is neither a socket nor a pipe"));
}

bool IsProcess(const std::filesystem::path& folder) {
  const std::string name = folder.filename();
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); });
}

int CountProcesses(const std::string& proc_folder) {
  int count = 0;
  std::error_code error;
  // Processes may come and go meanwhile: an error only ends the count.
  for (std::filesystem::directory_iterator entry(proc_folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!IsProcess(entry->path())) continue;
    std::ifstream file(entry->path() / "comm");  // Not to be opened once the process is gone.
    std::string name;
    if (std::getline(file, name) && name == kProcessName) ++count;
  }
  return count;
}

}  // namespace

MpsFinding JudgeMps(const MpsFacts& facts) {
  if (facts.control.ok() && facts.processes > 0) {
    return {Mps::kRunning, "its control socket and its process are there"};
  }
  if (facts.control.ok()) {
    return {Mps::kUnclear,
            "its control socket exists, but no process: it was left behind, or the daemon is in "
            "another container"};
  }
  if (facts.processes > 0) {
    return {Mps::kElsewhere,
            absl::StrCat("its process exists, but its control socket is not where it was looked "
                         "for: ",
                         facts.control.message())};
  }
  return {Mps::kNotRunning, "neither its control socket nor its process is there"};
}

MpsFacts ProbeMps(const std::string& pipe_folder, const std::string& proc_folder) {
  return {FindControl(pipe_folder), CountProcesses(proc_folder)};
}

}  // namespace tessera
