// What a client that maps state does with workers whose answers do not fit, or mean no good: the test
// is the workers, at real descriptor sockets.
#include "tessera/live_map.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/live_map.pb.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "shm/region.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRegionBytes = 4096;

class FakeWorker {
 public:
  FakeWorker() : folder_("/tmp/tessera-others-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    auto listener = ListenPacketSocket(folder_ + "/descriptors.sock");
    EXPECT_OK(listener.status());
    listener_ = *std::move(listener);
    auto region = SharedRegion::Create("group", kRegionBytes);
    EXPECT_OK(region.status());
    region_ = std::move(*region).TakeFd();
    memory_ = *Mapping::CreateWhole(region_.get(), Access::kReadWrite);
    thread_ = std::thread([this] {
      while (true) {
        UniqueFd socket(accept(listener_.get(), nullptr, nullptr));
        if (!socket.valid()) return;
        if (!ReceivePacket(socket.get()).ok()) continue;
        v1::LocalReply reply;
        *reply.mutable_map() = said();
        EXPECT_OK(SendPacket(socket.get(), EncodeReply(reply), {region_.get()}));
        clients_.push_back(std::move(socket));
      }
    });
  }
  ~FakeWorker() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    unlink((folder_ + "/descriptors.sock").c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0);
  }

  std::string address() const { return absl::StrCat("unix:", folder_, "/worker.sock"); }
  v1::LiveMapAnswer said() const {
    absl::MutexLock lock(&mu_);
    return said_;
  }
  void Say(const v1::LiveMapAnswer& said) {
    absl::MutexLock lock(&mu_);
    said_ = said;
  }
  std::atomic<int64_t>& applied() { return Word(8); }
  std::atomic<int64_t>& writing() { return Word(16); }

 private:
  std::atomic<int64_t>& Word(int64_t offset) {
    return *reinterpret_cast<std::atomic<int64_t>*>(memory_.data() + offset);
  }

  std::string folder_;
  UniqueFd listener_, region_;
  Mapping memory_;
  std::vector<UniqueFd> clients_;  // Of the thread.
  std::thread thread_;
  mutable absl::Mutex mu_;
  v1::LiveMapAnswer said_ ABSL_GUARDED_BY(mu_);
};

// Of tensors "a" of 3 floats and "b" of 2, these numbers of elements, each a slice.
v1::LiveMapAnswer AnswerOf(int first_rank, const std::vector<std::pair<int, int>>& slices) {
  v1::LiveMapAnswer answer;
  answer.set_generation(7);
  answer.set_epoch(5);
  answer.set_first_rank(first_rank);
  answer.set_size_bytes(20);
  v1::LiveMapGiven* given = answer.mutable_given();
  for (const auto& [name, numel] : {std::make_pair("a", 3), std::make_pair("b", 2)}) {
    v1::LiveTensorInfo& info = *answer.add_tensors();
    info.set_name(name);
    info.set_parameter(name);
    info.set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
    info.set_dtype(v1::DTYPE_FP32);
    info.add_shape(numel);
    given->add_parameters(given->parameters_size());
  }
  for (v1::LiveMapNumbers* numbers : {given->mutable_even(), given->mutable_odd()})
    numbers->set_update_counts_offset_bytes(64);
  v1::LiveMapRank* rank = given->add_ranks();
  rank->set_applied_offset_bytes(8);
  rank->set_writing_offset_bytes(16);
  int64_t at = 1024;
  for (const auto& [tensor, numel] : slices) {
    v1::LiveMapSlice* slice = given->add_slices();
    slice->set_tensor(tensor);
    slice->set_even_offset_bytes(at);
    slice->set_odd_offset_bytes(at + 1024);
    slice->set_size_bytes(4 * numel);
    at += 4 * numel;
  }
  return answer;
}

class LiveMapOfOthersTest : public ::testing::Test {
 protected:
  void SetUp() override { worker_.Say(AnswerOf(0, {{0, 1}, {0, 2}, {1, 2}})); }
  absl::StatusOr<std::unique_ptr<LiveMap>> Open() const { return OpenAt({worker_.address()}); }
  static absl::StatusOr<std::unique_ptr<LiveMap>> OpenAt(std::vector<std::string> addresses) {
    LiveReaderOptions options;
    options.worker_addresses = std::move(addresses);
    return LiveMap::Open(options, {});
  }
  // After `change`, which is undone.
  void ExpectRefused(const std::function<void(v1::LiveMapAnswer*)>& change, const std::string& why,
                     absl::StatusCode code = absl::StatusCode::kDataLoss) {
    const v1::LiveMapAnswer before = worker_.said();
    v1::LiveMapAnswer changed = before;
    change(&changed);
    worker_.Say(changed);
    EXPECT_THAT(Open().status(), StatusIs(code, HasSubstr(why)));
    worker_.Say(before);
  }

  FakeWorker worker_;
};

TEST_F(LiveMapOfOthersTest, EachEntryHasItsSlices) {
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  ASSERT_EQ(map->entries().size(), 2u);
  ASSERT_EQ(map->entries()[0].spans.size(), 2u);
  EXPECT_EQ(map->entries()[0].spans[0].size(), 4u);
  EXPECT_EQ(map->entries()[0].spans[1].size(), 8u);
  ASSERT_EQ(map->entries()[1].spans.size(), 1u);
  EXPECT_TRUE(map->Validate());
  // By the words alone: the next version, and one that is overwritten before it is read.
  const char* const even = map->entries()[0].spans[0].data();
  worker_.writing().store(1);
  worker_.applied().store(1);
  EXPECT_TRUE(map->Validate());
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(map->version().committed_step, 1);
  EXPECT_EQ(map->entries()[0].spans[0].data(), even + 1024);
  worker_.writing().store(3);
  EXPECT_FALSE(map->Validate());
  EXPECT_THAT(map->Refresh(), StatusIs(absl::StatusCode::kAborted, HasSubstr("step 1")));
  EXPECT_FALSE(map->Validate());
}

TEST_F(LiveMapOfOthersTest, WordsThatLieAreAnError) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  for (const int64_t step : {kMost, kMost - 1}) {
    worker_.applied().store(step);
    EXPECT_THAT(map->Refresh(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("says that step")));
    EXPECT_THAT(Open().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
    EXPECT_TRUE(map->Validate());
  }
  worker_.writing().store(kMost);
  EXPECT_FALSE(map->Validate());
  worker_.writing().store(std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(map->Validate());
  worker_.applied().store(kMost - 2);
  EXPECT_OK(map->Refresh());
  EXPECT_TRUE(map->Validate());
  worker_.writing().store(kMost);
  EXPECT_FALSE(map->Validate());
}

TEST_F(LiveMapOfOthersTest, SlicesThatAreNotTheEntriesAreRefused) {
  using Answer = v1::LiveMapAnswer;
  const std::string other = "another part of it";
  const auto slice = [](Answer* said, int i) { return said->mutable_given()->mutable_slices(i); };
  for (const int tensor : {-1, 2, std::numeric_limits<int>::max()})
    ExpectRefused([&](Answer* said) { slice(said, 0)->set_tensor(tensor); }, "gave tensor");
  ExpectRefused([&](Answer* said) { slice(said, 2)->set_tensor(0); }, other);
  ExpectRefused([&](Answer* said) { *said->mutable_given()->add_slices() = *slice(said, 2); },
                other);
  ExpectRefused([&](Answer* said) { slice(said, 0)->set_size_bytes(8); }, other);
  ExpectRefused([&](Answer* said) { slice(said, 0)->set_size_bytes(3); }, other);
  ExpectRefused([&](Answer* said) { slice(said, 1)->set_even_offset_bytes(1025); }, other);
  ExpectRefused([&](Answer* said) { slice(said, 1)->set_odd_offset_bytes(1026); }, other);
  ExpectRefused([&](Answer* said) { slice(said, 2)->set_odd_offset_bytes(kRegionBytes); },
                "of region 0");
  ExpectRefused([](Answer* said) { said->mutable_given()->mutable_parameters()->RemoveLast(); },
                "of other parameters");
  ExpectRefused([](Answer* said) { said->mutable_given()->add_parameters(2); },
                "of other parameters");
  ExpectRefused([](Answer* said) { said->mutable_given()->mutable_slices()->RemoveLast(); },
                "other workers have ranks of the job", absl::StatusCode::kFailedPrecondition);
  EXPECT_OK(Open().status());
}

// --- Several workers ---

class LiveMapOfTwoTest : public LiveMapOfOthersTest {
 protected:
  void SetUp() override {
    worker_.Say(AnswerOf(0, {{0, 1}, {1, 2}}));
    second_.Say(AnswerOf(2, {{0, 2}}));
  }
  absl::StatusOr<std::unique_ptr<LiveMap>> OpenBoth() const {
    return OpenAt({second_.address(), worker_.address()});
  }
  void ExpectBothRefused(const std::function<void(v1::LiveMapAnswer*)>& change,
                         absl::StatusCode code, const std::string& why) {
    v1::LiveMapAnswer changed = AnswerOf(2, {{0, 2}});
    change(&changed);
    second_.Say(changed);
    EXPECT_THAT(OpenBoth().status(), StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(OpenBoth().status(), StatusIs(code, HasSubstr(second_.address())));
  }

  FakeWorker second_;
};

TEST_F(LiveMapOfTwoTest, ElementsAreInTheOrderOfTheRanksHoweverTheWorkersAreNamed) {
  ASSERT_OK_AND_ASSIGN(const auto map, OpenBoth());
  ASSERT_EQ(map->entries()[0].spans.size(), 2u);
  EXPECT_EQ(map->entries()[0].spans[0].size(), 4u);
  EXPECT_EQ(map->entries()[0].spans[1].size(), 8u);
  ASSERT_EQ(map->entries()[1].spans.size(), 1u);
  // Of both the words count.
  second_.writing().store(2);
  EXPECT_FALSE(map->Validate());
}

TEST_F(LiveMapOfTwoTest, OneOfThemAloneIsRefusedByName) {
  for (const FakeWorker* worker : {&worker_, &second_}) {
    EXPECT_THAT(OpenAt({worker->address()}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("other workers have ranks of the job")));
  }
}

TEST_F(LiveMapOfTwoTest, AnswersOfDifferentJobsOrEpochsAreNotJoined) {
  using Answer = v1::LiveMapAnswer;
  ExpectBothRefused([](Answer* said) { said->set_generation(8); }, absl::StatusCode::kUnavailable,
                    "one epoch");
  ExpectBothRefused([](Answer* said) { said->set_epoch(4); }, absl::StatusCode::kUnavailable,
                    "4 is not 5");
  ExpectBothRefused([](Answer* said) { said->mutable_tensors(1)->set_name("c"); },
                    absl::StatusCode::kDataLoss, "have other tensors");
  ExpectBothRefused([](Answer* said) { said->mutable_tensors()->RemoveLast(); },
                    absl::StatusCode::kDataLoss, "have other tensors");
  EXPECT_THAT(OpenAt({worker_.address(), worker_.address()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are one")));
}

TEST(LiveMapTest, WithoutAWorkerNothingIsMapped) {
  LiveReaderOptions options;
  options.coordinator_address = "127.0.0.1:1";
  EXPECT_THAT(LiveMap::Open(options, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("worker_addresses")));
}

}  // namespace
}  // namespace tessera
