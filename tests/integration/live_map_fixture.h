// A cluster of this process whose jobs' state is mapped, against what clients read that have it
// sent to them. A fixture.
#ifndef TESSERA_TESTS_INTEGRATION_LIVE_MAP_FIXTURE_H_
#define TESSERA_TESTS_INTEGRATION_LIVE_MAP_FIXTURE_H_

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tessera/live_map.h"
#include "tessera/live_reader.h"
#include "tessera/local_cluster.h"
#include "tests/testing/region_view.h"
#include "tests/testing/trainer_team.h"
#include "worker/engine/group_page.h"

namespace tessera {

struct Copied {
  LiveVersion version;
  std::vector<LiveEntry> entries;
  std::vector<std::string> bytes;  // By entry.
};

inline Copied CopyOf(const LiveVersion& version, absl::Span<const MappedEntry> entries) {
  Copied copied;
  copied.version = version;
  for (const MappedEntry& mapped : entries) {
    copied.entries.push_back(mapped.entry);
    std::string& bytes = copied.bytes.emplace_back();
    for (const absl::string_view span : mapped.spans) bytes.append(span.data(), span.size());
  }
  return copied;
}

class LiveMapTest : public ::testing::Test {
 protected:
  void Start(int num_workers, int num_devices) {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    LocalCluster::Options options;
    options.num_workers = num_workers;
    options.num_devices = num_devices;
    options.executor_binary = "worker/tessera-executor";
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    reader_options_.coordinator_address = cluster_->coordinator_address();
    for (int worker = 0; worker < num_workers; ++worker)
      reader_options_.worker_addresses.push_back(cluster_->worker_address(worker));
    query_.job_id = "toy";
    query_.moments = true;
  }
  // Ranks fill the workers one after the other.
  absl::StatusOr<testing_support::TrainerTeam> OpenTeam(const SessionOptions& options,
                                                        int num_devices) {
    std::vector<std::string> workers;
    for (int rank = 0; rank < options.config.world_size; ++rank)
      workers.push_back(cluster_->worker_address(rank / num_devices));
    return testing_support::TrainerTeam::Open(options, workers);
  }
  // Without a coordinator.
  LiveReaderOptions AtWorker(int worker = 0) const {
    LiveReaderOptions options;
    options.worker_addresses = {cluster_->worker_address(worker)};
    return options;
  }
  absl::StatusOr<Copied> Get(const LiveQuery& query) const {
    ASSIGN_OR_RETURN(const auto reader, LiveReader::Open(reader_options_));
    Copied copied;
    ASSIGN_OR_RETURN(copied.version, reader->Read(query, [&](const LiveEntry& entry) {
      if (copied.entries.empty()) copied.bytes.reserve(10'000);
      copied.entries.push_back(entry);
      std::string& bytes = copied.bytes.emplace_back(entry.size_bytes, '?');
      return absl::MakeSpan(&bytes[0], bytes.size());
    }));
    return copied;
  }
  static void ExpectSame(const Copied& mapped, const Copied& read) {
    EXPECT_EQ(mapped.version.generation, read.version.generation);
    EXPECT_EQ(mapped.version.committed_step, read.version.committed_step);
    EXPECT_EQ(mapped.version.trained_step, read.version.trained_step);
    EXPECT_EQ(mapped.version.num_entries, read.version.num_entries);
    EXPECT_EQ(mapped.version.size_bytes, read.version.size_bytes);
    ASSERT_EQ(mapped.version.groups.size(), read.version.groups.size());
    for (size_t i = 0; i < read.version.groups.size(); ++i)
      EXPECT_EQ(mapped.version.groups[i].learning_rate, read.version.groups[i].learning_rate);
    ASSERT_EQ(mapped.entries.size(), read.entries.size());
    for (size_t i = 0; i < read.entries.size(); ++i) {
      const LiveEntry &a = mapped.entries[i], &b = read.entries[i];
      SCOPED_TRACE(b.name);
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.parameter, b.parameter);
      EXPECT_EQ(a.array, b.array);
      EXPECT_EQ(a.dtype, b.dtype);
      EXPECT_EQ(a.shape, b.shape);
      EXPECT_EQ(a.size_bytes, b.size_bytes);
      EXPECT_EQ(a.aliases, b.aliases);
      EXPECT_EQ(a.param_group, b.param_group);
      EXPECT_EQ(a.update_count, b.update_count);
      EXPECT_TRUE(mapped.bytes[i] == read.bytes[i]) << "other bytes";
    }
  }
  // Visits what cannot be mapped with these options.
  void ExpectFetched(const LiveReaderOptions& options, const LiveQuery& query) const {
    Copied seen;
    ASSERT_OK_AND_ASSIGN(
        const VisitedState visited,
        VisitLiveState(options, query, [&](const LiveVersion& version, auto entries) {
          seen = CopyOf(version, entries);
          return absl::OkStatus();
        }));
    EXPECT_FALSE(visited.is_mapped);
    ASSERT_OK_AND_ASSIGN(const Copied read, Get(query));
    ExpectSame(seen, read);
  }
  // Nobody ever held a version of this job, so no executor can have waited for it.
  static void ExpectNothingWasEverHeld() {
    const Mapping group = testing_support::MapRegionOf(getpid(), "toy/group");
    ASSERT_TRUE(group.valid());
    const auto* page = reinterpret_cast<const GroupPage*>(group.data());
    for (const RankRecord& rank : page->ranks) {
      EXPECT_EQ(rank.hold.held.load(), 0);
      EXPECT_EQ(rank.hold.changes.value.load(), 0u);
      EXPECT_EQ(rank.hold.changes.sleepers.load(), 0u);
    }
  }

  std::unique_ptr<LocalCluster> cluster_;
  LiveReaderOptions reader_options_;
  LiveQuery query_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_LIVE_MAP_FIXTURE_H_
