#include "coordinator/service/outbox.h"

#include <thread>

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

TEST(OutboxTest, GivesCommandsInOrder) {
  Outbox outbox(nullptr);
  outbox.Push(DropJob{JobId("a")});
  outbox.Push(DropJob{JobId("b")});
  EXPECT_EQ(std::get<DropJob>(*outbox.Pop()).job, JobId("a"));
  EXPECT_EQ(std::get<DropJob>(*outbox.Pop()).job, JobId("b"));
}

TEST(OutboxTest, CloseWakesTheWriterAndEndsTheStreamOnce) {
  int num_closed = 0;
  Outbox outbox([&] { ++num_closed; });
  std::thread writer([&] { EXPECT_FALSE(outbox.Pop().has_value()); });
  outbox.Close();
  outbox.Close();
  writer.join();
  outbox.Push(DropJob{JobId("late")});
  EXPECT_FALSE(outbox.Pop().has_value());
  EXPECT_EQ(num_closed, 1);
}

TEST(OutboxTest, DetachedOneLeavesTheStreamAlone) {
  int num_closed = 0;
  Outbox outbox([&] { ++num_closed; });
  outbox.Detach();
  outbox.Close();
  EXPECT_EQ(num_closed, 0);
}

TEST(OutboxTest, WorkerThatDoesNotReadLosesItsStream) {
  int num_closed = 0;
  Outbox outbox([&] { ++num_closed; });
  for (int i = 0; i < 70'000; ++i) outbox.Push(DropJob{JobId("a")});
  EXPECT_EQ(num_closed, 1);
}

}  // namespace
}  // namespace tessera::coordinator
