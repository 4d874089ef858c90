#include "shm/flight_ring.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "shm/region.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr int kUnits = 7;

std::unique_ptr<FlightRing> NewRing() {
  auto ring = std::make_unique<FlightRing>();
  FormatFlightRing(ring.get());
  return ring;
}

// Every field follows from `n`, so that a mixture of two records is seen.
FlightRecord RecordOf(int64_t n) {
  FlightRecord record;
  record.epoch = n;
  record.step = n + 1;
  record.sequence = n + 2;
  record.kind = OpKind::kReduce;
  record.stream = FlightStream::kPostBackward;
  record.unit = static_cast<int>(n % kUnits);
  record.bytes = n + 3;
  record.enqueued_ns = MonotonicNanos();
  return record;
}

bool IsWholeRecordOf(const FlightRecord& record, int64_t n) {
  return record.epoch == n && record.step == n + 1 && record.sequence == n + 2 &&
         record.unit == n % kUnits && record.bytes == n + 3;
}

TEST(FlightRingTest, ReadsBackWhatWasWritten) {
  auto ring = NewRing();
  const FlightRecord written = RecordOf(4);
  const int64_t number = Enqueue(ring.get(), written);
  ASSERT_OK_AND_ASSIGN(FlightRecords read, ReadFlightRing(*ring, kUnits));
  ASSERT_EQ(read.records.size(), 1);
  EXPECT_TRUE(IsWholeRecordOf(read.records[0], 4));
  EXPECT_EQ(read.records[0].number, number);
  EXPECT_EQ(read.records[0].kind, OpKind::kReduce);
  EXPECT_EQ(read.records[0].stream, FlightStream::kPostBackward);
  EXPECT_EQ(read.records[0].enqueued_ns, written.enqueued_ns);
  EXPECT_EQ(read.records[0].started_ns, 0);
  EXPECT_EQ(read.records[0].done_ns, 0);
  const int64_t started = MonotonicNanos();
  MarkStarted(ring.get(), number, started);
  MarkDone(ring.get(), number, started + 1);
  MarkDone(ring.get(), number, started + 1000);  // The first counts.
  ASSERT_OK_AND_ASSIGN(read, ReadFlightRing(*ring, kUnits));
  EXPECT_EQ(read.records[0].started_ns, started);
  EXPECT_EQ(read.records[0].done_ns, started + 1);
  EXPECT_GE(read.read_at_ns, started);
}

TEST(FlightRingTest, KeepsTheNewestInOrder) {
  auto ring = NewRing();
  for (int64_t n = 0; n < 3 * kFlightRecords + 5; ++n) {
    ASSERT_EQ(Enqueue(ring.get(), RecordOf(n)), n);
  }
  ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, kUnits));
  ASSERT_EQ(read.records.size(), kFlightRecords);
  for (int64_t i = 0; i < kFlightRecords; ++i) {
    EXPECT_EQ(read.records[i].number, 2 * kFlightRecords + 5 + i);
    EXPECT_TRUE(IsWholeRecordOf(read.records[i], read.records[i].number));
  }
}

TEST(FlightRingTest, TimeOfAnOverwrittenOperationHasNoEffect) {
  auto ring = NewRing();
  for (int64_t n = 0; n <= kFlightRecords; ++n) Enqueue(ring.get(), RecordOf(n));
  MarkStarted(ring.get(), 0, MonotonicNanos());
  MarkDone(ring.get(), 0, MonotonicNanos());
  ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, kUnits));
  EXPECT_EQ(read.records.back().number, kFlightRecords);
  EXPECT_EQ(read.records.back().started_ns, 0);
  EXPECT_EQ(read.records.back().done_ns, 0);
}

TEST(FlightRingTest, TornRecordIsSkippedAndCounted) {
  auto ring = NewRing();
  for (int64_t n = 0; n < 3; ++n) Enqueue(ring.get(), RecordOf(n));
  ring->slots[1].guard.store(2 * (1 + kFlightRecords) + 1);  // A writer was killed there.
  ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, kUnits));
  ASSERT_EQ(read.records.size(), 2);
  EXPECT_EQ(read.records[0].number, 0);
  EXPECT_EQ(read.records[1].number, 2);
  EXPECT_EQ(read.num_torn, 1);
  EXPECT_EQ(read.num_invalid, 0);
}

TEST(FlightRingTest, ReaderBesideAWriterNeverSeesAMixture) {
  auto ring = NewRing();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t n = 0; !stop.load(); ++n) {
      const int64_t number = Enqueue(ring.get(), RecordOf(n));
      MarkStarted(ring.get(), number, MonotonicNanos());
      MarkDone(ring.get(), number, MonotonicNanos());
    }
  });
  int64_t newest = 0;
  for (int round = 0; round < 200 || newest < 5 * kFlightRecords; ++round) {
    auto read = ReadFlightRing(*ring, kUnits);
    ASSERT_OK(read);
    EXPECT_EQ(read->num_invalid, 0);
    for (const FlightRecord& record : read->records) {
      ASSERT_TRUE(IsWholeRecordOf(record, record.number)) << record.number;
      ASSERT_TRUE(record.done_ns == 0 || record.started_ns != 0);
      newest = std::max(newest, record.number);
    }
  }
  stop.store(true);
  writer.join();
}

TEST(FlightRingTest, RecordsOfAKilledProcessAreThereAndItsSuccessorGoesOn) {
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("f", sizeof(FlightRing)));
  ASSERT_OK_AND_ASSIGN(const Mapping mapping,
                       Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  auto* ring = reinterpret_cast<FlightRing*>(mapping.data());
  FormatFlightRing(ring);
  const pid_t child = fork();
  if (child == 0) {
    MarkStarted(ring, Enqueue(ring, RecordOf(0)), MonotonicNanos());
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(Enqueue(ring, RecordOf(1)), 1);
  ASSERT_OK_AND_ASSIGN(const Mapping reader, Mapping::CreateWhole(region.fd(), Access::kReadOnly));
  ASSERT_OK_AND_ASSIGN(const FlightRecords read,
                       ReadFlightRing(*reinterpret_cast<const FlightRing*>(reader.data()), kUnits));
  ASSERT_EQ(read.records.size(), 2);
  EXPECT_TRUE(IsWholeRecordOf(read.records[0], 0));
  EXPECT_GT(read.records[0].started_ns, 0);
  EXPECT_EQ(read.records[0].done_ns, 0);
}

TEST(FlightRingTest, WhatNoExecutorWritesIsSkippedAndCounted) {
  const auto spoil = [](FlightSlot* slot, int what) {
    const int64_t future = MonotonicNanos() + int64_t{1000000000} * 3600;
    switch (what) {
      case 0:
        return slot->unit.store(kUnits);
      case 1:
        return slot->unit.store(-2);
      case 2:
        return slot->bytes.store(-1);
      case 3:
        return slot->step.store(-1);
      case 4:
        return slot->epoch.store(INT64_MIN);
      case 5:
        return slot->sequence.store(-1);
      case 6:
        return slot->stream.store(2);
      case 7:
        return slot->enqueued_ns.store(0);
      case 8:
        return slot->enqueued_ns.store(INT64_MAX);
      case 9:
        return slot->enqueued_ns.store(future);
      case 10:
        return slot->started.store((uint64_t{1} << 48) - 1);  // Ends in the future.
      case 11:
        return slot->done.store(1);  // Done and never started.
      case 12:
        return slot->guard.store(UINT64_MAX - 1);
      default:
        return slot->guard.store(4);  // Another slot's number.
    }
  };
  for (int what = 0; what <= 13; ++what) {
    SCOPED_TRACE(what);
    auto ring = NewRing();
    Enqueue(ring.get(), RecordOf(0));
    spoil(&ring->slots[0], what);
    ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, kUnits));
    EXPECT_EQ(read.records.size(), 0);
    EXPECT_EQ(read.num_invalid, 1);
  }
}

TEST(FlightRingTest, RandomBytesAreReadWithoutHarm) {
  const int seed = 5;
  std::mt19937_64 random(seed);
  auto ring = NewRing();
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    for (FlightSlot& slot : ring->slots) {
      uint64_t words[sizeof(FlightSlot) / 8];
      for (uint64_t& word : words) word = random();
      memcpy(static_cast<void*>(&slot), words, sizeof(slot));
    }
    ring->next.store(static_cast<int64_t>(random()));
    ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, kUnits));
    for (const FlightRecord& record : read.records) {
      EXPECT_TRUE(record.unit >= -1 && record.unit < kUnits && record.bytes >= 0);
    }
    const int64_t number = Enqueue(ring.get(), RecordOf(0));
    EXPECT_GE(number, 0);
    MarkDone(ring.get(), number, MonotonicNanos());
  }
}

TEST(FlightRingTest, AnotherVersionOrSizeIsRefused) {
  auto ring = std::make_unique<FlightRing>();
  EXPECT_THAT(ReadFlightRing(*ring, kUnits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("flight ring")));
  FormatFlightRing(ring.get());
  ring->version = kFlightRingVersion + 1;
  EXPECT_THAT(CheckFlightRing(*ring),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("version ", kFlightRingVersion + 1))));
  FormatFlightRing(ring.get());
  ring->num_records = 1 << 30;
  EXPECT_FALSE(ReadFlightRing(*ring, kUnits).ok());
}

}  // namespace
}  // namespace tessera
