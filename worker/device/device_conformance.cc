#include "worker/device/device_conformance.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"

namespace tessera {

void DeviceConformanceTest::SetUp() {
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string test = name.substr(0, name.find('/'));
  const auto excluded = GetParam().exclusions.find(test);
  if (excluded != GetParam().exclusions.end()) GTEST_SKIP() << excluded->second;
  absl::StatusOr<std::unique_ptr<Device>> device = GetParam().create();
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_OK(device);
  device_ = *std::move(device);
}

std::unique_ptr<Stream> DeviceConformanceTest::NewStream(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream(name);
  EXPECT_OK(stream);
  return *std::move(stream);
}

std::unique_ptr<Event> DeviceConformanceTest::NewEvent() {
  absl::StatusOr<std::unique_ptr<Event>> event = device_->CreateEvent();
  EXPECT_OK(event);
  return *std::move(event);
}

namespace {

TEST_P(DeviceConformanceTest, BuffersAreAlignedAndDistinct) {
  std::vector<Buffer> buffers;
  for (int64_t size_bytes : {1, 127, 128, 4097}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, device_->Allocate(size_bytes));
    EXPECT_EQ(size_bytes, buffer.size_bytes());
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(buffer.data()) % Device::kAlignmentBytes);
    buffers.push_back(std::move(buffer));
  }
  for (size_t i = 1; i < buffers.size(); ++i) EXPECT_NE(buffers[0].data(), buffers[i].data());
}

TEST_P(DeviceConformanceTest, EmptyAndImpossibleAllocations) {
  ASSERT_OK_AND_ASSIGN(Buffer empty, device_->Allocate(0));
  EXPECT_TRUE(empty.empty());
  EXPECT_THAT(device_->Allocate(-1), StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(device_->Allocate(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
}

TEST_P(DeviceConformanceTest, MovedBufferIsReleasedOnce) {
  ASSERT_OK_AND_ASSIGN(Buffer a, device_->Allocate(256));
  void* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(data, b.data());
  EXPECT_EQ(nullptr, a.data());
  b = Buffer();
  EXPECT_EQ(nullptr, b.data());
}

TEST_P(DeviceConformanceTest, CopyAndFillFollowStreamOrder) {
  std::unique_ptr<Stream> stream = NewStream("copy");
  for (int64_t size_bytes : {0, 1, 3, 128, 1001}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, device_->Allocate(size_bytes + 8));
    const std::vector<uint8_t> source(size_bytes, 0x5A);
    std::vector<uint8_t> result(size_bytes + 8, 0);
    device_->Fill(stream.get(), buffer.data(), 0xFF, size_bytes + 8);
    device_->Copy(stream.get(), buffer.data(), source.data(), size_bytes);
    device_->Copy(stream.get(), result.data(), buffer.data(), size_bytes + 8);
    stream->Synchronize();
    std::vector<uint8_t> expected(size_bytes, 0x5A);
    expected.resize(size_bytes + 8, 0xFF);
    EXPECT_EQ(expected, result);
  }
}

TEST_P(DeviceConformanceTest, WorkOfOneStreamRunsInOrder) {
  std::unique_ptr<Stream> stream = NewStream("order");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream->Enqueue([&order, i] { order.push_back(i); });
  stream->Synchronize();
  ASSERT_EQ(1000u, order.size());
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(i, order[i]);
}

TEST_P(DeviceConformanceTest, StreamsRunSideBySide) {
  std::unique_ptr<Stream> blocked = NewStream("blocked");
  std::unique_ptr<Stream> free = NewStream("free");
  absl::Notification release;
  blocked->Enqueue([&release] { release.WaitForNotification(); });
  bool ran = false;
  free->Enqueue([&ran] { ran = true; });
  free->Synchronize();  // Would hang if the blocked stream held it up.
  EXPECT_TRUE(ran);
  release.Notify();
  blocked->Synchronize();
}

TEST_P(DeviceConformanceTest, EventIsReachedOnlyAfterWorkBeforeIt) {
  std::unique_ptr<Stream> stream = NewStream("record");
  std::unique_ptr<Event> event = NewEvent();
  EXPECT_TRUE(event->Query()) << "an event never recorded counts as reached";
  event->Synchronize();
  absl::Notification release;
  std::atomic<bool> done{false};
  stream->Enqueue([&] {
    release.WaitForNotification();
    done = true;
  });
  stream->Record(event.get());
  EXPECT_FALSE(event->Query());
  release.Notify();
  event->Synchronize();
  EXPECT_TRUE(done);
  EXPECT_TRUE(event->Query());
}

TEST_P(DeviceConformanceTest, AWaitStaysForItsRecordWhenAnotherStreamRecordsTheEventAgain) {
  std::unique_ptr<Stream> held = NewStream("held");
  std::unique_ptr<Stream> free = NewStream("free");
  std::unique_ptr<Stream> waiting = NewStream("waiting");
  std::unique_ptr<Event> event = NewEvent();
  absl::Notification release;
  std::atomic<bool> written{false}, seen{false};
  held->Enqueue([&] {
    release.WaitForNotification();
    written = true;
  });
  held->Record(event.get());
  waiting->Wait(event.get());
  free->Record(event.get());
  free->Synchronize();
  EXPECT_TRUE(event->Query()) << "the event is the newest record";
  waiting->Enqueue([&] { seen = written.load(); });
  release.Notify();
  waiting->Synchronize();
  EXPECT_TRUE(seen);
  held->Synchronize();
}

TEST_P(DeviceConformanceTest, WaitHoldsBackOneStreamUntilAnotherReachesTheMark) {
  std::unique_ptr<Stream> producer = NewStream("producer");
  std::unique_ptr<Stream> consumer = NewStream("consumer");
  std::unique_ptr<Event> ready = NewEvent();
  absl::Notification release;
  int value = 0;
  int seen = -1;
  producer->Enqueue([&] {
    release.WaitForNotification();
    value = 42;
  });
  producer->Record(ready.get());
  consumer->Wait(ready.get());
  consumer->Enqueue([&] { seen = value; });
  release.Notify();
  consumer->Synchronize();
  EXPECT_EQ(42, seen);
}

TEST_P(DeviceConformanceTest, RecordingAgainMovesTheMark) {
  std::unique_ptr<Stream> stream = NewStream("again");
  std::unique_ptr<Stream> waiter = NewStream("waiter");
  std::unique_ptr<Event> event = NewEvent();
  absl::Notification release;
  stream->Record(event.get());
  event->Synchronize();
  waiter->Wait(event.get());  // The first mark: reached.
  stream->Enqueue([&release] { release.WaitForNotification(); });
  stream->Record(event.get());
  waiter->Synchronize();  // Not held up by the second mark.
  EXPECT_FALSE(event->Query());
  release.Notify();
  event->Synchronize();
  EXPECT_TRUE(event->Query());
  stream->Synchronize();
}

TEST_P(DeviceConformanceTest, PingPongBetweenTwoStreamsKeepsOrder) {
  std::unique_ptr<Stream> a = NewStream("ping");
  std::unique_ptr<Stream> b = NewStream("pong");
  constexpr int kTurns = 200;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 2 * kTurns; ++i) events.push_back(NewEvent());
  int counter = 0;
  std::vector<int> mismatches;
  for (int i = 0; i < 2 * kTurns; ++i) {
    Stream* stream = i % 2 == 0 ? a.get() : b.get();
    if (i > 0) stream->Wait(events[i - 1].get());
    stream->Enqueue([&counter, &mismatches, i] {
      if (counter++ != i) mismatches.push_back(i);
    });
    stream->Record(events[i].get());
  }
  events.back()->Synchronize();
  EXPECT_TRUE(mismatches.empty());
  EXPECT_EQ(2 * kTurns, counter);
  a->Synchronize();
  b->Synchronize();
}

TEST_P(DeviceConformanceTest, DestroyingAStreamRunsWhatIsLeft) {
  int ran = 0;
  {
    std::unique_ptr<Stream> stream = NewStream("drain");
    for (int i = 0; i < 100; ++i) stream->Enqueue([&ran] { ++ran; });
  }
  EXPECT_EQ(100, ran);
}

TEST_P(DeviceConformanceTest, ManyThreadsMayEnqueue) {
  std::unique_ptr<Stream> stream = NewStream("shared");
  int total = 0;  // Only the stream touches it.
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) stream->Enqueue([&total] { ++total; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream->Synchronize();
  EXPECT_EQ(1000, total);
}

}  // namespace
}  // namespace tessera
