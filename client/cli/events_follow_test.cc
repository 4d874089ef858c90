// The real binary: `tessera events --follow` prints events as they happen, until it is interrupted.
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

// Reads until `wanted` has come, or the other side closed.
void ReadUntil(int fd, const std::string& wanted, std::string* text) {
  char block[4096];
  while (text->find(wanted) == std::string::npos) {
    const ssize_t size_bytes = read(fd, block, sizeof(block));
    if (size_bytes <= 0) return;
    text->append(block, size_bytes);
  }
}

v1::Event OfJob(const std::string& text) {
  v1::Event event;
  event.set_kind(v1::EVENT_KIND_JOB_STATE);
  event.set_severity(v1::EVENT_SEVERITY_INFO);
  event.set_job_id("gpt");
  event.set_rank(-1);
  event.set_text(text);
  return event;
}

TEST(EventsFollowTest, PrintsEachEventOnceAsItHappensUntilInterrupted) {
  char folder[] = "/tmp/tessera_cli_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  // Spawned before the server has threads; the address is told through a pipe.
  int address_pipe[2], output_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  ASSERT_EQ(pipe(output_pipe), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char address[64] = {};
    if (read(address_pipe[0], address, sizeof(address) - 1) <= 0) _exit(126);
    dup2(output_pipe[1], STDOUT_FILENO);
    dup2(output_pipe[1], STDERR_FILENO);
    close(output_pipe[0]);
    execl(kBinary, kBinary, "events", "--follow", "--coordinator", address,
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(output_pipe[1]);
  const UniqueFd output(output_pipe[0]);
  std::unique_ptr<FakeServer> server = FakeServer::Start(folder);
  for (const char* text : {"one", "two", "three"}) server->AddEvent(OfJob(text));
  const std::string address = server->coordinator_address();
  ASSERT_EQ(write(address_pipe[1], address.data(), address.size()), address.size());

  std::string text;
  ReadUntil(output.get(), "job gpt: three\n", &text);
  server->AddEvent(OfJob("four"));
  ReadUntil(output.get(), "job gpt: four\n", &text);
  server->StartEventsAgain();
  server->AddEvent(OfJob("five"));
  ReadUntil(output.get(), "job gpt: five\n", &text);
  EXPECT_THAT(text, HasSubstr("the coordinator has started again"));
  for (const char* once : {"one", "two", "three", "four", "five"}) {
    const size_t at = text.find(once);
    EXPECT_NE(at, std::string::npos) << once;
    EXPECT_EQ(text.find(once, at + 1), std::string::npos) << once << " twice";
  }

  ASSERT_EQ(kill(child, SIGINT), 0);
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
