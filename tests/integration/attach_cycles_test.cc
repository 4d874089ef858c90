// Attaching and detaching leaks nothing. Coordinator, worker, executors and trainers are
// all in this process, so what any of them kept shows here.
#include <malloc.h>
#include <unistd.h>

#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "layout/layout_digest.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::MappingsOf;
using testing_support::NumThreads;

// What a process holds, counted by kind.
struct Holdings {
  int shared_memory_objects = 0;
  int sockets = 0;
  int other_descriptors = 0;
  int shared_memory_mappings = 0;
  int mappings = 0;
  int threads = 0;
  int64_t heap_bytes = 0;

  static Holdings Count() {
    Holdings now;
    for (const auto& [fd, name] : DescriptorsOf(getpid())) {
      const bool memory = absl::StartsWith(name, "/memfd:");
      const bool socket = absl::StartsWith(name, "socket:");
      ++(memory ? now.shared_memory_objects : socket ? now.sockets : now.other_descriptors);
    }
    for (const std::string& name : MappingsOf(getpid())) {
      now.shared_memory_mappings += absl::StartsWith(name, "/memfd:");
      ++now.mappings;
    }
    now.threads = NumThreads(getpid());
    now.heap_bytes = mallinfo2().uordblks;
    return now;
  }
};

std::ostream& operator<<(std::ostream& out, const Holdings& h) {
  return out << h.shared_memory_objects << " shared memory objects, " << h.sockets << " sockets, "
             << h.other_descriptors << " other descriptors, " << h.shared_memory_mappings
             << " mappings of shared memory, " << h.mappings << " mappings, " << h.threads
             << " threads, " << h.heap_bytes << " bytes of heap";
}

class AttachCyclesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cluster = LocalCluster::Start({});
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
    options_ = testing_support::ToyOptions(*cluster_, "toy", /*world_size=*/1, /*num_units=*/2);
    options_.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
  }
  // Attaches, does a step, detaches.
  absl::Status CleanCycle() {
    ASSIGN_OR_RETURN(const auto session, Session::Open(options_));
    return testing_support::TrainToy(session.get(), session->next_step());
  }
  // Attaches as a trainer does, and ends as a killed one: the socket closes without a word.
  absl::Status DroppedCycle() {
    v1::AttachRequest request;
    request.set_job_id("toy");
    request.set_world_size(1);
    ASSIGN_OR_RETURN(const ModelLayout layout, ModelLayout::Create(options_.model, layout_, 1));
    request.set_layout_digest(LayoutDigest(layout));
    ASSIGN_OR_RETURN(const v1::Job job, GetJob({cluster_->coordinator_address()}, "toy",
                                               absl::Now() + absl::Seconds(20)));
    request.set_generation(job.generation());
    ASSIGN_OR_RETURN(const AttachedRank rank,
                     AttachToRank(cluster_->worker_address(), request, /*wait_if_attached=*/true,
                                  absl::Now() + absl::Seconds(20)));
    return rank.fds.size() == 3 ? absl::OkStatus() : absl::InternalError("not all descriptors");
  }
  void RunCycles(int count) {
    // A step between two drops: the coordinator slows down a job that only fails.
    for (int i = 0; i < count; ++i) ASSERT_OK(i % 40 == 39 ? DroppedCycle() : CleanCycle());
  }

  std::unique_ptr<LocalCluster> cluster_;
  SessionOptions options_;
  LayoutOptions layout_;
};

// What the RPC library and the allocator (AddressSanitizer's maps more) keep or drop on their own
// between two looks: far less than one a cycle. Shared memory has no slack.
constexpr int kSlackThreads = 8;
constexpr int kSlackMappings = 200;
constexpr int64_t kSlackHeapBytes = 192 << 10;  // Buffers of packets under way: 64 KiB each.

TEST_F(AttachCyclesTest, ThousandCyclesLeaveNoDescriptorMappingThreadOrMemoryBehind) {
  constexpr int kCycles = 1000;
  RunCycles(101);
  const Holdings before = Holdings::Count();
  RunCycles(kCycles + 1);
  Holdings after;
  EXPECT_TRUE(Eventually([&] {
    after = Holdings::Count();  // Fewer: at the first look some had not been closed yet.
    return after.shared_memory_objects <= before.shared_memory_objects &&
           after.shared_memory_mappings <= before.shared_memory_mappings &&
           after.sockets <= before.sockets && after.other_descriptors <= before.other_descriptors &&
           after.heap_bytes <= before.heap_bytes + kSlackHeapBytes;
  })) << "before: "
      << before << "\nafter:  " << after;
  EXPECT_LE(after.threads, before.threads + kSlackThreads);
  EXPECT_LE(after.mappings, before.mappings + kSlackMappings);
}

}  // namespace
}  // namespace tessera
