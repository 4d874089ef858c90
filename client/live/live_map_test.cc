// What a client that maps state does with a coordinator and a worker that do not agree, or mean no
// good: the test is both, over real gRPC and a real descriptor socket.
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
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/live_map.grpc.pb.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "shm/region.h"
#include "shm/shared_file.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRegionBytes = 4096;

// What the two of them say.
struct Said {
  std::vector<v1::LiveTensorInfo> tensors;
  v1::LiveMapReady ready;
  v1::LiveMapGiven given;
};

class Coordinator final : public v1::LiveMap::Service {
 public:
  Said said() const {
    absl::MutexLock lock(&mu_);
    return said_;
  }
  void Say(const Said& said) {
    absl::MutexLock lock(&mu_);
    said_ = said;
  }

  grpc::Status MapLiveState(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::LiveMapReply, v1::LiveStateQuery>* stream) override {
    v1::LiveStateQuery query;
    stream->Read(&query);
    const Said now = said();
    v1::LiveMapReply reply;
    for (const v1::LiveTensorInfo& tensor : now.tensors) {
      *reply.mutable_tensor() = tensor;
      stream->Write(reply);
    }
    *reply.mutable_ready() = now.ready;
    stream->Write(reply);
    if (ends_at_once_) {
      reply.mutable_ended()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
      reply.mutable_ended()->set_message("it has begun again");
      stream->Write(reply);
    }
    while (stream->Read(&query)) continue;
    if (ends_at_once_) client_knows_.Notify();
    return grpc::Status::OK;
  }

  // Of the only call that comes from now on.
  void EndAtOnce() { ends_at_once_ = true; }
  bool ends_at_once() const { return ends_at_once_; }
  // Until the client of that call has read that it ended.
  void AwaitThatClientKnows() const { client_knows_.WaitForNotification(); }

 private:
  std::atomic<bool> ends_at_once_{false};
  absl::Notification client_knows_;
  mutable absl::Mutex mu_;
  Said said_ ABSL_GUARDED_BY(mu_);
};

// Tensor "a" of 3 floats and "b" of 2, of which the worker has 2 slices and 1.
class LiveMapOfOthersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-others-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(listener_, ListenPacketSocket(folder_ + "/d.sock"));
    auto region = SharedRegion::Create("group", kRegionBytes);
    ASSERT_OK(region.status());
    region_ = std::move(*region).TakeFd();
    ASSERT_OK_AND_ASSIGN(memory_, Mapping::CreateWhole(region_.get(), Access::kReadWrite));
    Said said;
    for (const auto& [name, numel] : {std::make_pair("a", 3), std::make_pair("b", 2)}) {
      v1::LiveTensorInfo& info = said.tensors.emplace_back();
      info.set_name(name);
      info.set_parameter(name);
      info.set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
      info.set_dtype(v1::DTYPE_FP32);
      info.add_shape(numel);
      info.add_extents()->set_numel(numel);
      said.given.add_parameters(said.given.parameters_size());
    }
    v1::LiveMapSource* source = said.ready.add_sources();
    source->set_worker_id("w");
    source->set_descriptor_socket(folder_ + "/d.sock");
    for (v1::LiveMapNumbers* numbers : {said.given.mutable_even(), said.given.mutable_odd()})
      numbers->set_update_counts_offset_bytes(64);
    v1::LiveMapRank* rank = said.given.add_ranks();
    rank->set_applied_offset_bytes(8);
    rank->set_writing_offset_bytes(16);
    int64_t at = 1024;
    for (const int64_t numel : {1, 2, 2}) {
      v1::LiveMapSlice* slice = said.given.add_slices();
      slice->set_even_offset_bytes(at);
      slice->set_odd_offset_bytes(at + 1024);
      slice->set_size_bytes(4 * numel);
      at += 4 * numel;
    }
    coordinator_.Say(said);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    worker_ = std::thread([this] {
      while (true) {
        const UniqueFd socket(accept(listener_.get(), nullptr, nullptr));
        if (!socket.valid()) return;
        const auto file = MakeSealedFile("given", coordinator_.said().given.SerializeAsString());
        if (!ReceivePacket(socket.get()).ok()) continue;
        if (coordinator_.ends_at_once()) {
          coordinator_.AwaitThatClientKnows();
          EXPECT_OK(SendPacket(socket.get(), EncodeReply(absl::NotFoundError("no session"))));
          continue;
        }
        EXPECT_OK(
            SendPacket(socket.get(), EncodeReply(absl::OkStatus()), {file->get(), region_.get()}));
      }
    });
  }
  void TearDown() override {
    shutdown(listener_.get(), SHUT_RDWR);
    worker_.join();
    server_->Shutdown();
    unlink((folder_ + "/d.sock").c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0);
  }
  absl::StatusOr<std::unique_ptr<LiveMap>> Open() {
    LiveReaderOptions options;
    options.coordinator_address = absl::StrCat("127.0.0.1:", port_);
    return LiveMap::Open(options, {});
  }
  // After `change`, which is undone.
  void ExpectDataLoss(const std::function<void(Said*)>& change, const std::string& why) {
    const Said before = coordinator_.said();
    Said changed = before;
    change(&changed);
    coordinator_.Say(changed);
    EXPECT_THAT(Open().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why)));
    coordinator_.Say(before);
  }

  std::string folder_;
  UniqueFd listener_, region_;
  Mapping memory_;
  Coordinator coordinator_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread worker_;
};

TEST_F(LiveMapOfOthersTest, WhereTheyAgreeEachEntryHasItsSlices) {
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  ASSERT_EQ(map->entries().size(), 2u);
  ASSERT_EQ(map->entries()[0].spans.size(), 2u);
  EXPECT_EQ(map->entries()[0].spans[0].size(), 4u);
  EXPECT_EQ(map->entries()[0].spans[1].size(), 8u);
  ASSERT_EQ(map->entries()[1].spans.size(), 1u);
  EXPECT_TRUE(map->Validate());
  // By the words alone: the next version, and one that is overwritten before it is read.
  const char* const even = map->entries()[0].spans[0].data();
  auto* const applied = reinterpret_cast<std::atomic<int64_t>*>(memory_.data() + 8);
  auto* const writing = reinterpret_cast<std::atomic<int64_t>*>(memory_.data() + 16);
  writing->store(1);
  applied->store(1);
  EXPECT_TRUE(map->Validate());
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(map->version().committed_step, 1);
  EXPECT_EQ(map->entries()[0].spans[0].data(), even + 1024);
  writing->store(3);
  EXPECT_FALSE(map->Validate());
  EXPECT_THAT(map->Refresh(), StatusIs(absl::StatusCode::kAborted, HasSubstr("step 1")));
  EXPECT_FALSE(map->Validate());
}

TEST_F(LiveMapOfOthersTest, WordsThatLieAreAnError) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  auto* const applied = reinterpret_cast<std::atomic<int64_t>*>(memory_.data() + 8);
  auto* const writing = reinterpret_cast<std::atomic<int64_t>*>(memory_.data() + 16);
  for (const int64_t step : {kMost, kMost - 1}) {
    applied->store(step);
    EXPECT_THAT(map->Refresh(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("says that step")));
    EXPECT_THAT(Open().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
    EXPECT_TRUE(map->Validate());
  }
  writing->store(kMost);
  EXPECT_FALSE(map->Validate());
  writing->store(std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(map->Validate());
  applied->store(kMost - 2);
  EXPECT_OK(map->Refresh());
  EXPECT_TRUE(map->Validate());
  writing->store(kMost);
  EXPECT_FALSE(map->Validate());
}

TEST_F(LiveMapOfOthersTest, SessionThatHasJustEndedIsNotTakenForAWorkerOfAnotherHost) {
  coordinator_.EndAtOnce();
  EXPECT_THAT(Open().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has begun again")));
}

TEST_F(LiveMapOfOthersTest, SlicesThatAreNotTheEntriesAreRefused) {
  const std::string other = "other parts of it";
  ExpectDataLoss([](Said* said) { said->tensors[0].mutable_extents(0)->set_source(1); }, other);
  ExpectDataLoss([](Said* said) { said->tensors[0].mutable_extents(0)->set_source(-1); }, other);
  for (const int64_t numel :
       {int64_t{-1}, int64_t{2}, int64_t{4}, int64_t{1} << 62, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()})
    ExpectDataLoss([numel](Said* said) { said->tensors[0].mutable_extents(0)->set_numel(numel); },
                   other);
  ExpectDataLoss([](Said* said) { said->tensors[1].clear_extents(); }, other);
  ExpectDataLoss(
      [](Said* said) { *said->tensors[1].add_extents() = *said->tensors[0].mutable_extents(0); },
      other);
  ExpectDataLoss([](Said* said) { said->given.mutable_slices()->RemoveLast(); }, other);
  ExpectDataLoss([](Said* said) { said->given.mutable_slices(0)->set_size_bytes(8); }, other);
  ExpectDataLoss([](Said* said) { said->given.mutable_slices(0)->set_size_bytes(3); }, other);
  ExpectDataLoss([](Said* said) { said->given.mutable_slices(1)->set_even_offset_bytes(1025); },
                 other);
  ExpectDataLoss([](Said* said) { said->given.mutable_slices(1)->set_odd_offset_bytes(1026); },
                 other);
  ExpectDataLoss(
      [](Said* said) { said->given.mutable_slices(2)->set_odd_offset_bytes(kRegionBytes); },
      "of region 0");
  ExpectDataLoss([](Said* said) { said->given.mutable_parameters()->RemoveLast(); },
                 "of other parameters");
  ExpectDataLoss([](Said* said) { said->given.add_parameters(2); }, "of other parameters");
  ExpectDataLoss([](Said* said) { said->ready.clear_sources(); }, "no worker");
  EXPECT_OK(Open().status());
}

}  // namespace
}  // namespace tessera
