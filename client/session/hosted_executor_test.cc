#include "client/session/hosted_executor.h"

#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Whether the other end was closed or shut.
bool HasEnded(const UniqueFd& socket) {
  pollfd readable = {socket.get(), POLLIN, 0};
  return poll(&readable, 1, 0) > 0;
}

TEST(HostedExecutorThreadTest, EndsAsItsWorkersSocketDoesAndTellsIt) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  const auto obey = [](UniqueFd socket, const ExecutorIsStuck&) {
    while (ReceivePacket(socket.get()).ok()) {
    }
    return absl::UnavailableError("its GPU is lost");
  };
  ASSERT_OK_AND_ASSIGN(auto executor,
                       HostedExecutor::Start(obey, std::move(sockets.second), /*rank=*/3));
  EXPECT_FALSE(HasEnded(sockets.first));
  executor.reset();
  EXPECT_TRUE(HasEnded(sockets.first));
}

TEST(HostedExecutorThreadTest, OneThatIsStuckIsLeftBehindAndItsSocketStaysOpen) {
  ASSERT_OK_AND_ASSIGN(auto sockets, CreatePacketSocketPair());
  absl::Notification is_stuck;
  const auto hang = [&is_stuck](UniqueFd socket, const ExecutorIsStuck& stuck) {
    const UniqueFd kept = std::move(socket);
    stuck(absl::UnavailableError("a call never came back"));
    is_stuck.Notify();
    absl::SleepFor(absl::InfiniteDuration());
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(auto executor,
                       HostedExecutor::Start(hang, std::move(sockets.second), /*rank=*/3));
  is_stuck.WaitForNotification();
  EXPECT_TRUE(executor->running());
  EXPECT_THAT(executor->status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("never came back")));
  executor.reset();
  EXPECT_FALSE(HasEnded(sockets.first)) << "or the worker took its memory for nobody's";
}

}  // namespace
}  // namespace tessera
