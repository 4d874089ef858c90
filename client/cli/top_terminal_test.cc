// The real binary on a pseudo-terminal: `tessera top` refreshes, and Ctrl-C restores the screen.
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "client/cli/fake_server.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kBinary[] = "client/cli/tessera";
constexpr char kEnter[] = "\x1b[?1049h";
constexpr char kLeave[] = "\x1b[?1049l";

// Reads until `wanted` has come, or the other side closed.
void ReadUntil(int fd, const std::string& wanted, std::string* text) {
  char block[4096];
  while (text->find(wanted) == std::string::npos) {
    const ssize_t size_bytes = read(fd, block, sizeof(block));
    if (size_bytes <= 0) return;
    text->append(block, size_bytes);
  }
}

TEST(TopTerminalTest, RefreshesOnTheAlternateScreenUntilInterrupted) {
  char folder[] = "/tmp/tessera_cli_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  // Spawned before the server has threads; the address is told through a pipe.
  int address_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  int terminal = -1;
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = 200;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  ASSERT_GE(child, 0);
  if (child == 0) {
    char address[64] = {};
    if (read(address_pipe[0], address, sizeof(address) - 1) <= 0) _exit(126);
    execl(kBinary, kBinary, "top", "--coordinator", address, static_cast<char*>(nullptr));
    _exit(127);
  }
  const UniqueFd terminal_fd(terminal);
  std::unique_ptr<FakeServer> server = FakeServer::Start(folder);
  server->PutJob(MakeJob());
  const std::string address = server->coordinator_address();
  ASSERT_EQ(write(address_pipe[1], address.data(), address.size()), address.size());

  std::string text;
  ReadUntil(terminal_fd.get(), "unshard blocks.2", &text);
  EXPECT_THAT(text, HasSubstr(kEnter));
  // A change shows without being asked for.
  v1::Job job = MakeJob();
  (*job.mutable_ranks())[0].set_doing("reduce root");
  server->PutJob(job);
  ReadUntil(terminal_fd.get(), "reduce root", &text);
  EXPECT_THAT(text, HasSubstr("reduce root"));
  ASSERT_EQ(write(terminal_fd.get(), "\x03", 1), 1);  // Ctrl-C, as typed.
  ReadUntil(terminal_fd.get(), kLeave, &text);
  EXPECT_THAT(text, HasSubstr(kLeave));

  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  server.reset();
  close(address_pipe[0]);
  close(address_pipe[1]);
  rmdir(folder);
}

}  // namespace
}  // namespace tessera::cli
