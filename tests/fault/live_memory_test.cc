// What memory a worker with all of a job's ranks needs while as many clients as are served at once
// read the state, and another one sets it: 64 MiB, executors included, however large the state is
// and whether the clients are slow or all read at once.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/freed_memory.h"
#include "tests/testing/own_memory.h"
#include "tests/testing/process_view.h"
#include "tests/testing/stepped_live_reader.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::MemoryPeak;
using testing_support::SteppedLiveReader;

constexpr int kReaders = 4;                   // As many as a job has at once.
constexpr int64_t kLargeElements = 12 << 20;  // With momentum each of them reads 96 MiB.
constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr int64_t kMostOfCoordinatorBytes = int64_t{128} << 20;  // Two readings go through it.

class LiveMemoryTest : public LiveCluster {
 protected:
  LiveMemoryTest() { world_size_ = 4; }

  // Takes steps until `tessera put` has ended, however long that takes; after each, calls `beside`.
  void PutBeside(const std::string& name, const std::function<void()>& beside) {
    const std::string path = Path("put.safetensors");
    const std::vector<float> values = WriteBig(path, name);
    testing_support::CliResult put;
    do {  // The one before may not quite have ended.
      Client client = StartClient({"put", "--job", "toy", "--from", path});
      while (client.process->running() && !HasFatalFailure()) {
        Step();
        beside();
      }
      put = Await(std::move(client));
    } while (absl::StrContains(put.err, "another client sets its values"));
    EXPECT_EQ(put.exit_code, 0) << put.err;
    big_ = values;
  }
};

TEST_F(LiveMemoryTest, OfAWorkerIsBoundedWithAsManyReadersAsThereMayBeAndAPut) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kLargeElements));
  std::vector<int> pids = {worker_->pid()};
  for (const auto& [label, pid] : ExecutorsOf(worker_->pid())) pids.push_back(pid);
  ASSERT_EQ(pids.size(), 1 + world_size_);
  MemoryPeak peak(pids);
  MemoryPeak of_coordinator({coordinator_->pid()});

  std::vector<std::unique_ptr<SteppedLiveReader>> readers;
  for (int i = 0; i < kReaders; ++i) {
    const bool is_direct = i % 2 == 0;
    readers.push_back(std::make_unique<SteppedLiveReader>(coordinator_address(), "toy", is_direct));
    ASSERT_TRUE(readers.back()->Read());
    if (is_direct) {
      ASSERT_TRUE(readers.back()->Fetch());
    }
  }
  EXPECT_EQ(CountSpoolFiles(worker_->pid()), kReaders);
  // All of them take a piece a step while a put is sent and set, so that much of it waits.
  PutBeside("slowly", [&] {
    for (int i = 0; i < kReaders; ++i)
      (void)(i % 2 == 0 ? readers[i]->Fetch() : readers[i]->Read());
  });
  // All of them read as fast as they can while another one is.
  std::vector<std::thread> threads;
  for (const auto& reader : readers)
    threads.emplace_back([&reader] { EXPECT_OK(reader->Finish()); });
  PutBeside("at once", [] {});
  for (std::thread& thread : threads) thread.join();

  const int64_t grown_bytes = peak.Stop(), of_coordinator_bytes = of_coordinator.Stop();
  RecordProperty("grown_kib", static_cast<int>(grown_bytes >> 10));
  RecordProperty("coordinator_grown_kib", static_cast<int>(of_coordinator_bytes >> 10));
  if (!testing_support::kKeepsFreedMemory) {
    EXPECT_LT(grown_bytes, kMostBytes);
    EXPECT_LT(of_coordinator_bytes, kMostOfCoordinatorBytes);
  }
  for (const auto& reader : readers) {
    const auto state_bytes = static_cast<int64_t>(2 * 4 * (big_.size() + small_.size()));
    EXPECT_EQ(reader->read_bytes(), state_bytes) << "all of it";
  }
  EXPECT_TRUE(Eventually([this] { return CountSpoolFiles(worker_->pid()) == 0; }));
  ExpectTrainersSee();
}

}  // namespace
}  // namespace tessera
