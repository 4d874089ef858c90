#include "tests/fault/save_steps/saver.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr char kProgram[] = "tests/fault/save_steps/saver_main";

}  // namespace

absl::StatusOr<std::unique_ptr<Saver>> Saver::Start() {
  std::unique_ptr<Saver> saver(new Saver());
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  saver->to_.Reset(in[1]);
  saver->from_.Reset(out[0]);
  const UniqueFd child_in(in[0]), child_out(out[1]);
  saver->pid_ = fork();
  if (saver->pid_ < 0) return ErrnoStatus(errno, "fork");
  if (saver->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(child_in.get(), STDIN_FILENO);
    dup2(child_out.get(), STDOUT_FILENO);
    // The log knows ranks by this flag.
    execl(kProgram, kProgram, "--label=saver/0", static_cast<char*>(nullptr));
    _exit(1);
  }
  return saver;
}

Saver::~Saver() {
  to_.Reset();  // It ends at the end of its input.
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

absl::Status Saver::Prepare(SaveKind kind, const std::string& root, int version) {
  return Call("prepare", kind, root, version);
}

absl::Status Saver::Save(SaveKind kind, const std::string& root, int version) {
  return Call("save", kind, root, version);
}

absl::Status Saver::Call(const std::string& verb, SaveKind kind, const std::string& root,
                         int version) {
  const std::string line =
      absl::StrCat(verb, " ", static_cast<int>(kind), " ", version, " ", root, "\n");
  if (write(to_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return absl::UnavailableError("the saver takes no line");
  std::string answer;
  for (char c = 0; c != '\n';) {
    const ssize_t got = read(from_.get(), &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::UnavailableError("the saver has ended");
    answer.push_back(c);
  }
  answer.pop_back();
  const size_t space = answer.find(' ');
  int code = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(answer.substr(0, space), &code))
    return absl::UnavailableError(absl::StrCat("the saver says '", answer, "'"));
  return absl::Status(static_cast<absl::StatusCode>(code), answer.substr(space + 1));
}

bool WasKilled(const absl::Status& status) {
  return absl::IsInternal(status) && status.message() == absl::StrCat("killed by signal ", SIGKILL);
}

}  // namespace tessera
