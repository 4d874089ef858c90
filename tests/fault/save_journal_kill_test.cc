// The coordinator is killed at each write of its journal from the request of a checkpoint to its
// end, before the write and after it. The client asks again with the same request id; there is one
// checkpoint of it, and training is not disturbed.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "client/cli/saves_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using cli::SavesClient;
using testing_support::Eventually;
using testing_support::ReadFile;

class SaveJournalKillTest : public LiveCluster, public testing::WithParamInterface<const char*> {
 protected:
  // Of a coordinator that has nothing more to write.
  void AwaitAllStepsWritten() {
    EXPECT_TRUE(Eventually([this] {
      const absl::StatusOr<v1::Job> job = TryJob();
      return !coordinator_->running() || (job.ok() && job->committed_step() == steps_);
    }));
  }
  // A new process on the same journal; waits until it has heard of both ranks. False: it died
  // before that.
  bool Restart(const std::string& faults) {
    coordinator_->Kill(SIGKILL);
    coordinator_->Wait();
    StartCoordinator(faults);
    cli::Endpoint endpoint;
    endpoint.address = coordinator_address();
    auto client = SavesClient::Create(endpoint);
    EXPECT_OK(client);
    if (client.ok()) client_ = *std::move(client);
    EXPECT_TRUE(Eventually([this] {
      const absl::StatusOr<v1::Job> job = TryJob();
      return !coordinator_->running() ||
             (job.ok() && job->state() == v1::JOB_STATE_RUNNING && job->ranks_size() == 2);
    }));
    return coordinator_->running();
  }
  absl::StatusOr<v1::Save> Ask(const std::string& name) {
    v1::RequestSaveRequest request;
    request.set_request_id(name);
    request.set_job_id("toy");
    request.mutable_spec()->set_path(Path(name));
    return client_->Request(request);
  }
  // The saves of this path that the coordinator knows.
  int CountSaves(const std::string& name) {
    const auto saves = client_->List("toy");
    EXPECT_OK(saves);
    if (!saves.ok()) return -1;
    return static_cast<int>(
        std::count_if(saves->saves().begin(), saves->saves().end(),
                      [&](const v1::Save& save) { return save.spec().path() == Path(name); }));
  }
  // Trains until the save has ended, over the coordinator's death; `asked` as far as it is known.
  void AwaitOneCheckpoint(const std::string& name, absl::StatusOr<v1::Save> asked) {
    std::atomic<bool> ended{false}, trained{false};
    std::thread trainers([&] {
      while (!ended.load() && !HasFatalFailure()) Step();
      // Were it wanted once more, these steps would make it.
      for (int i = 0; i < 2; ++i) Step();
      trained.store(true);
    });
    // The order of a step with a save is asked for at the coordinator, so that step waits for it.
    const auto keep_alive = [this] {
      if (coordinator_->running()) return true;
      ++deaths_while_made_;
      return Restart("");
    };
    EXPECT_TRUE(Eventually([&] {
      if (!keep_alive()) return false;
      const absl::StatusOr<v1::Save> again = Ask(name);
      if (!again.ok()) return false;  // It dies just now.
      EXPECT_EQ(again->number(), asked.ok() ? asked->number() : again->number());
      asked = again;
      return asked->state() == v1::SAVE_STATE_ENDED;
    })) << asked.status();
    ended.store(true);
    EXPECT_TRUE(Eventually([&] { return keep_alive() && trained.load(); }));
    trainers.join();
    ASSERT_OK(asked);
    EXPECT_EQ(asked->code(), 0) << asked->message();
    steps_of_saves_[name] = asked->step();
  }

  std::unique_ptr<SavesClient> client_;
  int deaths_while_asked_ = 0, deaths_while_made_ = 0;
  std::map<std::string, int64_t> steps_of_saves_;
};

TEST_P(SaveJournalKillTest, WhateverWriteItDiesAtTheRequestIsOneCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kFewElements));
  const bool is_written = absl::StrContains(GetParam(), "after");
  for (int nth = 1, deaths = -1; deaths < deaths_while_asked_ + deaths_while_made_; ++nth) {
    ASSERT_LT(nth, 20) << "it dies again and again";
    const std::string name = absl::StrCat("checkpoint", nth);
    SCOPED_TRACE(absl::StrCat("killed at write ", nth));
    AwaitAllStepsWritten();
    if (!Restart(absl::StrCat(GetParam(), "=kill@", nth))) {  // Nobody had asked yet.
      ASSERT_TRUE(Restart(""));
      continue;
    }
    deaths = deaths_while_asked_ + deaths_while_made_;
    const absl::StatusOr<v1::Save> asked = Ask(name);
    if (!asked.ok()) {
      ++deaths_while_asked_;
      EXPECT_TRUE(absl::IsUnavailable(asked.status())) << asked.status();
      EXPECT_EQ(coordinator_->Wait(), 128 + SIGKILL);
      ASSERT_TRUE(Restart(""));
      EXPECT_EQ(CountSaves(name), is_written ? 1 : 0);
    }
    ASSERT_NO_FATAL_FAILURE(AwaitOneCheckpoint(name, asked));
  }
  ASSERT_TRUE(Restart(""));
  for (const auto& [name, step] : steps_of_saves_) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path(name)));
    EXPECT_THAT(verified.damages, testing::IsEmpty());
    EXPECT_EQ(verified.manifest.step, step);
    EXPECT_EQ(CountSaves(name), 1);
  }
  EXPECT_GE(deaths_while_asked_, 1);
  EXPECT_GE(deaths_while_made_, 2) << "its begin and its end are written too";
  ExpectRead();
  EXPECT_FALSE(absl::StrContains(ReadFile(Path("worker.log")), " failed: ")) << "an epoch ended";
}

INSTANTIATE_TEST_SUITE_P(Points, SaveJournalKillTest,
                         testing::Values("journal.before_append", "journal.after_append"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return name;
                         });

}  // namespace
}  // namespace tessera
