#include "tests/testing/process_view.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/unique_fd.h"

namespace tessera::testing_support {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);
constexpr absl::Duration kLookAgain = absl::Milliseconds(1);

// The value of a line "key:\tvalue" of /proc/PID/status, -1 where there is none.
int StatusField(int pid, const std::string& key) {
  for (absl::string_view line :
       absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/status")), '\n')) {
    int value;
    if (absl::ConsumePrefix(&line, key + ":\t") && absl::SimpleAtoi(line, &value)) return value;
  }
  return -1;
}

std::string NameOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error).string();
}

// The regions of a job that a process has open, by label.
std::map<std::string, UniqueFd> OpenRegions(int pid, const std::string& job_id) {
  std::map<std::string, UniqueFd> regions;
  const std::string prefix = absl::StrCat("/memfd:tessera:", job_id, "/");
  for (const auto& [fd, name] : DescriptorsOf(pid)) {
    if (!absl::StartsWith(name, prefix)) continue;
    UniqueFd region(open(absl::StrCat("/proc/", pid, "/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
    // The number may be another file's by now, so the name counts that this one has.
    const std::string opened = NameOf(region.get());
    absl::string_view label = opened;
    if (!absl::ConsumePrefix(&label, prefix)) continue;
    absl::ConsumeSuffix(&label, " (deleted)");
    regions[std::string(label)] = std::move(region);
  }
  return regions;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[1 << 16];
  ssize_t got;
  while (fd >= 0 && (got = read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, got);
  return text;
}

}  // namespace

std::string ReadFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return ReadAll(fd.get());
}

std::string CommandLine(int pid) { return ReadFile(absl::StrCat("/proc/", pid, "/cmdline")); }

bool IsStopped(int pid) {
  return absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/status")), "\nState:\tT");
}

int VaultOf(const std::string& socket_dir) {
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    int pid = 0;
    if (!absl::SimpleAtoi(process.path().filename().string(), &pid)) continue;
    if (ReadFile(absl::StrCat("/proc/", pid, "/comm")) != "tessera-vault\n") continue;
    const std::string line = ReadFile(absl::StrCat("/proc/", pid, "/cmdline"));
    if (absl::StrContains(line, absl::StrCat("--socket-dir=", socket_dir, std::string(1, '\0'))))
      return pid;
  }
  return 0;
}

std::vector<int> ChildrenOf(int pid) {
  std::vector<int> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    int child;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &child)) continue;
    if (StatusField(child, "PPid") == pid && !CommandLine(child).empty()) children.push_back(child);
  }
  return children;
}

std::map<std::string, int> ExecutorsOf(int worker_pid) {
  std::map<std::string, int> executors;
  for (int pid : ChildrenOf(worker_pid)) {
    const std::string command = CommandLine(pid);
    const size_t label = command.find("--label=");
    if (label != std::string::npos) executors[command.substr(label + 8).c_str()] = pid;
  }
  return executors;
}

std::map<int, std::string> DescriptorsOf(int pid) {
  std::map<int, std::string> descriptors;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    int fd;
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), error);
    if (error || !absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (absl::EndsWith(target.string(), "/fd")) continue;  // The listing's own.
    descriptors[fd] = target.string();
  }
  return descriptors;
}

std::vector<std::string> MappingsOf(int pid) {
  std::vector<std::string> names;
  for (absl::string_view line :
       absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/maps")), '\n')) {
    if (line.empty()) continue;
    // address perms offset device inode [name]
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(' ', 5), absl::AllowEmpty());
    names.emplace_back(fields.size() > 5 ? absl::StripAsciiWhitespace(fields[5])
                                         : absl::string_view());
  }
  return names;
}

int NumThreads(int pid) { return StatusField(pid, "Threads"); }

std::map<std::string, std::string> RegionsOf(int pid, const std::string& job_id) {
  std::map<std::string, std::string> regions;
  for (const auto& [label, fd] : OpenRegions(pid, job_id)) regions[label] = ReadAll(fd.get());
  return regions;
}

std::map<std::string, int64_t> ResidentBytesOf(int pid, const std::string& job_id) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [label, fd] : OpenRegions(pid, job_id)) {
    struct stat info;
    if (fstat(fd.get(), &info) == 0) bytes[label] = static_cast<int64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (absl::Now() < deadline) {
    if (condition()) return true;
    absl::SleepFor(kLookAgain);
  }
  return false;
}

}  // namespace tessera::testing_support
