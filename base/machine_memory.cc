#include "base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// A number in a file of one line, or `otherwise`.
int64_t ReadBytes(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  std::string text;
  int64_t bytes = 0;
  return std::getline(file, text) && absl::SimpleAtoi(text, &bytes) ? bytes : otherwise;
}

// Of "name 123 kB" and "name 123" lines; 0: there is none.
int64_t ReadField(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() < 2 || words[0] != name || !absl::SimpleAtoi(words[1], &value)) continue;
    return words.size() > 2 && words[2] == "kB" ? value * 1024 : value;
  }
  return 0;
}

// The folders of the control group that this process is in, and of those around it.
std::vector<std::string> GroupFolders() {
  std::vector<std::string> folders;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    absl::string_view group = line;
    if (!absl::ConsumePrefix(&group, "0::")) continue;  // Of version 2.
    // The groups around it limit it too.
    while (true) {
      folders.push_back(absl::StrCat("/sys/fs/cgroup", group == "/" ? "" : group));
      if (group.empty() || group == "/") break;
      group = group.substr(0, group.rfind('/'));
    }
  }
  return folders;
}

}  // namespace

int64_t MachineMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const std::string& group : GroupFolders())
    bytes = std::min(bytes, ReadBytes(group + "/memory.max", INT64_MAX));
  return bytes;
}

int64_t AvailableMemoryBytes() {
  int64_t available = ReadField("/proc/meminfo", "MemAvailable:");
  for (const std::string& group : GroupFolders()) {
    const int64_t most = ReadBytes(group + "/memory.max", INT64_MAX);
    if (most == INT64_MAX) continue;
    // As MemAvailable counts: of the pages of files that are in use, half may have to stay.
    const std::string stat = group + "/memory.stat";
    const int64_t used = ReadBytes(group + "/memory.current", 0) -
                         ReadField(stat, "inactive_file") - ReadField(stat, "active_file") / 2;
    available = std::min(available, most - used);
  }
  // The tightest group decides.
  return available;
}

}  // namespace tessera
