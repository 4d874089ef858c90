#include "worker/keeper/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

constexpr size_t kMaxThreads = 8;
constexpr size_t kMaxFrames = 16;
constexpr size_t kMaxWordBytes = 80;
constexpr size_t kMaxFileBytes = 8192;

// The first bytes of a file.
absl::StatusOr<std::string> ReadStart(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  // Bounded: a file of /proc may be as long as a process makes it.
  std::string text(kMaxFileBytes, '\0');
  const ssize_t got = read(fd.get(), text.data(), text.size());
  if (got < 0) return ErrnoStatus(errno, path);
  text.resize(got);
  return text;
}

// Fit for a line.
std::string Word(absl::string_view text) {
  // Names of processes and functions come from outside. They may hold anything.
  return absl::CHexEscape(absl::StripAsciiWhitespace(text).substr(0, kMaxWordBytes));
}

// "D (disk sleep)"; empty where there is no such process or thread.
std::string StateOf(const std::string& folder) {
  const absl::StatusOr<std::string> status = ReadStart(folder + "/status");
  if (!status.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (absl::ConsumePrefix(&line, "State:")) return Word(line);
  }
  return "";
}

// "f < g < h" of "[<0>] f+0x1/0x2" and so on: what runs comes first.
std::string FramesOf(absl::string_view stack) {
  std::vector<std::string> frames;
  for (absl::string_view line : absl::StrSplit(stack, '\n', absl::SkipWhitespace())) {
    if (frames.size() == kMaxFrames) break;
    absl::ConsumePrefix(&line, "[<0>] ");
    frames.push_back(Word(line.substr(0, line.find('+'))));
  }
  return absl::StrJoin(frames, " < ");
}

struct Thread {
  int id = 0;
  std::string state;
};

// Those that wait where no signal reaches them come first.
std::vector<Thread> ThreadsOf(const std::string& tasks) {
  std::vector<Thread> threads;
  DIR* const folder = opendir(tasks.c_str());
  if (folder == nullptr) return threads;
  while (const dirent* entry = readdir(folder)) {
    Thread thread;
    if (!absl::SimpleAtoi(entry->d_name, &thread.id)) continue;
    thread.state = StateOf(absl::StrCat(tasks, "/", thread.id));
    if (!thread.state.empty()) threads.push_back(std::move(thread));
  }
  closedir(folder);
  const auto rank = [](const Thread& thread) {
    return std::pair(!absl::StartsWith(thread.state, "D"), thread.id);
  };
  std::sort(threads.begin(), threads.end(),
            [&](const Thread& a, const Thread& b) { return rank(a) < rank(b); });
  return threads;
}

// `stacks`: the first error of reading one.
// Files of /proc vanish with their thread: what cannot be read is left out.
std::string DescribeThread(const Thread& thread, const std::string& folder, absl::Status* stacks) {
  const auto word = [&folder](const char* file) {
    return Word(ReadStart(absl::StrCat(folder, "/", file)).value_or(""));
  };
  std::string text = absl::StrCat("thread ", thread.id, " '", word("comm"), "', ", thread.state);
  const std::string where = word("wchan");
  if (!where.empty() && where != "0") absl::StrAppend(&text, " in ", where);
  int call = -1;  // The file says "running", or the number and the arguments.
  const std::string numbers = word("syscall");
  if (absl::SimpleAtoi(numbers.substr(0, numbers.find(' ')), &call) && call >= 0)
    absl::StrAppend(&text, ", system call ", call);
  const absl::StatusOr<std::string> stack = ReadStart(folder + "/stack");
  stacks->Update(stack.status());
  if (stack.ok() && !stack->empty()) absl::StrAppend(&text, ", kernel stack ", FramesOf(*stack));
  return text;
}

}  // namespace

bool IsStopped(int pid, const std::string& proc) {
  return absl::StartsWith(StateOf(absl::StrCat(proc, "/", pid)), "T");
}

std::string DescribeProcess(int pid, const std::string& proc) {
  const std::string folder = absl::StrCat(proc, "/", pid), tasks = folder + "/task";
  std::string text = absl::StrCat("process ", pid);
  const std::string state = StateOf(folder);
  if (state.empty()) return text;
  absl::StrAppend(&text, ", state ", state);
  const std::vector<Thread> threads = ThreadsOf(tasks);
  absl::Status stacks;
  std::string of_threads;
  for (size_t i = 0; i < threads.size() && i < kMaxThreads; ++i) {
    absl::StrAppend(&of_threads, "; ",
                    DescribeThread(threads[i], absl::StrCat(tasks, "/", threads[i].id), &stacks));
  }
  if (threads.size() > kMaxThreads)
    absl::StrAppend(&of_threads, "; and ", threads.size() - kMaxThreads, " threads more");
  if (absl::IsPermissionDenied(stacks))
    absl::StrAppend(&text, "; kernel stacks: not readable without CAP_SYS_ADMIN, which root has");
  absl::StrAppend(&text, of_threads);
  if (text.size() > kMaxProcessTextBytes) {
    text.resize(kMaxProcessTextBytes - 3);
    text += "...";
  }
  return text;
}

}  // namespace tessera
