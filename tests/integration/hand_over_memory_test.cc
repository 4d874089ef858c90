// The memory that a hand-over needs besides the shards of both jobs, and readers that hang.
// Coordinator, worker and trainers are of this process, so the bound holds for all of them
// together.
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/resize/hand_over_rpc.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tessera/hand_over.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/freed_memory.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::TrainerTeam;

constexpr int64_t kNumel = 8 << 20;
constexpr int64_t kMostBytes = 64 << 20;  // The state that goes over is 96 MiB.

// A number of /proc/self/FILE, in its own unit; 0: it is not there.
int64_t NumberOf(const std::string& file, absl::string_view field) {
  std::ifstream stream("/proc/self/" + file);
  for (std::string line; std::getline(stream, line);) {
    absl::string_view text = line;
    int64_t number = 0;
    if (!absl::ConsumePrefix(&text, field)) continue;
    absl::ConsumeSuffix(&text, "kB");
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return number;
  }
  return 0;
}
// Not the shards, which are memfds.
int64_t OwnBytes() { return NumberOf("status", "RssAnon:") << 10; }
int64_t WrittenBytes() { return NumberOf("io", "write_bytes:"); }

SessionOptions Options(const LocalCluster& cluster, const std::string& job, int world_size) {
  SessionOptions options = testing_support::ToyOptions(cluster, job, world_size);
  options.model = {
      {{"root", {{"w", {kNumel / 2}, DType::kFp32}, {"b", {kNumel / 2}, DType::kFp32}}}}};
  return options;
}

absl::Status GiveValues(Session* session) {
  RETURN_IF_ERROR(session->Initialize([](int, int p, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000 + p);
  }));
  TrainingProgress progress;
  progress.step = 7;
  progress.update_counts = {7, 7};
  for (const ParamGroup& group : session->config().groups) progress.groups.push_back(group);
  return WriteOptimizerState(session, progress, [](StateArray array, int, int p, Values values) {
    for (float& value : values.as<float>())
      value = static_cast<float>(p + 10 * static_cast<int>(array));
  });
}

TEST(HandOverMemoryTest, TakesLittleMemoryAndNoFileHoweverLargeTheModel) {
  // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
  static const auto* const last = new grpc::CompletionQueue();
  ASSERT_NE(last, nullptr);
  LocalCluster::Options of_cluster;
  of_cluster.num_devices = 5;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(of_cluster));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(*cluster, "old", 2)));
  ASSERT_OK(team.RunAll(GiveValues));
  ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(Options(*cluster, "new", 3)));
  const int64_t before = OwnBytes(), written_before = WrittenBytes();
  std::atomic<bool> done{false};
  int64_t most = before;
  std::thread watch([&] {
    while (!done.load()) {
      most = std::max(most, OwnBytes());
      std::this_thread::yield();
    }
  });
  std::thread old([&] {
    for (const absl::Status& status : team.Run([](Session* s) { return HandOver(s); }))
      EXPECT_OK(status);
  });
  EXPECT_OK(taker.RunAll([](Session* session) {
    return TakeOver(session, {"old", absl::Seconds(60)}).status();
  }));
  old.join();
  done.store(true);
  watch.join();
  if (!testing_support::kKeepsFreedMemory) {
    EXPECT_LT(most - before, kMostBytes);
  }
  RecordProperty("most_mib", absl::StrCat((most - before) >> 20));
  EXPECT_LT(WrittenBytes() - written_before, 1 << 20);
  EXPECT_OK(taker.RunAll([](Session* session) -> absl::Status {
    EXPECT_EQ(session->next_step(), 8);
    RETURN_IF_ERROR(session->ReadParameters(0, [](int p, ConstValues values) {
      const absl::Span<const float> all = values;
      for (size_t i = 0; i < all.size(); i += 997)
        ASSERT_EQ(all[i], static_cast<float>(i % 1000 + p));
    }));
    return ReadMoments(session, 0, StateArray::kSecondMoment, [](int p, ConstValues values) {
      const absl::Span<const float> all = values;
      EXPECT_EQ(all.back(), static_cast<float>(p + 20));
    });
  }));
}

TEST(HandOverMemoryTest, ReadersThatHangHoldNobodyUpOnceTheyAreGone) {
  LocalCluster::Options of_cluster;
  of_cluster.num_devices = 3;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(of_cluster));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(Options(*cluster, "old", 1)));
  ASSERT_OK(team.RunAll(GiveValues));
  std::thread old([&] { EXPECT_OK(HandOver(team.session(0))); });
  const DialOptions coordinator = {cluster->coordinator_address()};
  v1::GetHandOverRequest get;
  get.set_job_id("old");
  auto info = HandOverRpc(coordinator).Get(get, absl::Now() + absl::Seconds(20));
  EXPECT_OK(info);
  v1::ReadHandOverRequest all;
  all.set_job_id("old");
  all.set_generation(info->generation());
  all.set_number(info->number());
  v1::LiveRange* range = all.add_ranges();
  range->set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
  range->set_numel(kNumel / 2);
  std::vector<std::unique_ptr<HandOverStream>> hanging;
  for (int i = 0; i < 4; ++i) {  // As many as there are places.
    auto stream = HandOverStream::Open(coordinator, all);
    EXPECT_OK(stream);
    EXPECT_OK((*stream)->Next());
    hanging.push_back(*std::move(stream));
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam taker, TrainerTeam::Open(Options(*cluster, "new", 2)));
  std::thread go([&] { hanging.clear(); });
  EXPECT_OK(taker.RunAll([](Session* session) {
    return TakeOver(session, {"old", absl::Seconds(60)}).status();
  }));
  go.join();
  old.join();
  all.set_number(info->number() + 1);
  auto late = HandOverStream::Open(coordinator, all);
  EXPECT_OK(late);
  EXPECT_THAT((*late)->Next(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        testing::HasSubstr("is no longer pending")));
}

}  // namespace
}  // namespace tessera
