// Each operation of a save or load on the disk fails once, on each rank: ENOSPC, EIO, a write that
// writes half. All ranks get the error with its cause; what was saved before stays, to the bit;
// training continues, and the next save finds nothing in its way.
//
// Only calls can fail so: an error of a page that is mapped would be a signal. Files of checkpoints
// and models are read by read() and pread() alone.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"
#include "tests/fault/disk_log/crash_disk.h"
#include "tests/fault/watched_training.h"

namespace tessera {
namespace {

using disk_log::DiskTree;
using disk_log::ReadTree;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

using disk_log::kShortWrite;

class DiskErrorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto training = WatchedTraining::Start();
    ASSERT_OK(training);
    training_ = *std::move(training);
    ASSERT_OK(training_->TrainStep());
  }
  DiskTree Tree() const { return ReadTree(training_->folder()).value(); }

  // Lets the first, second, ... call of `calls` by `rank` fail in `act`, until none is left.
  // `failed` says which it was; `check` is told, and what `act` gave.
  using Check = std::function<void(const std::string& failed, const std::vector<absl::Status>&)>;
  void FailEach(int rank, uint32_t calls, int error,
                const std::function<std::vector<absl::Status>()>& act, const Check& check,
                int64_t least_calls) {
    for (int64_t call = 1;; ++call) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", call ", call, ", error ", error));
      training_->log().Arm({rank, calls, call, error});
      const std::vector<absl::Status> statuses = act();
      const std::string failed = training_->log().Disarm();
      if (failed.empty()) {
        for (const absl::Status& status : statuses) ASSERT_OK(status);
        EXPECT_GT(call, least_calls) << "the calls are on the way";
        return;
      }
      SCOPED_TRACE(failed);
      check(failed, statuses);
      if (HasFailure()) return;
      ASSERT_LT(call, 500) << "there is no end";
    }
  }

  // Whether files of this folder can be written past the page cache.
  bool HasDirectWrites() const {
    const std::string path = training_->Path("tried");
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    std::filesystem::remove(path);
    return fd.valid();
  }

  // All ranks have the error of that one: its number, the path, the error's text.
  void ExpectNamed(const std::vector<absl::Status>& statuses, int rank, int error) {
    const absl::StatusCode code =
        error == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status, StatusIs(code, AllOf(HasSubstr(absl::StrCat("on rank ", rank, ": ")),
                                               HasSubstr(training_->folder()),
                                               HasSubstr(strerror(error)))));
    }
  }

  std::unique_ptr<WatchedTraining> training_;
};

void ExpectWhole(const std::string& path, int64_t step) {
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, step);
}

bool AllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return false;
  }
  return true;
}

TEST_F(DiskErrorTest, SaveOverACheckpointFailsByNameOnAllRanksOrHasAllOfIt) {
  ASSERT_TRUE(AllOk(training_->SaveCheckpoint("c")));
  int kept_old = 0, had_new = 0;
  DiskTree before;
  const auto save = [&] {
    EXPECT_OK(training_->TrainStep());
    before = Tree();
    return training_->SaveCheckpoint("c");
  };
  for (const int error : {ENOSPC, EIO, kShortWrite}) {
    for (int rank = 0; rank < WatchedTraining::kWorldSize; ++rank) {
      const auto check = [&](const std::string& failed, const std::vector<absl::Status>& statuses) {
        if (AllOk(statuses)) {
          ExpectWhole(training_->Path("c"), training_->step());
          // What remains to be done once it has its name: the older one is removed.
          EXPECT_TRUE(error == kShortWrite || absl::StrContains(failed, " c.partial")) << failed;
          ++had_new;
        } else {
          ExpectNamed(statuses, rank, error);
          EXPECT_TRUE(Tree() == before) << "what was there has changed";
          ++kept_old;
        }
        ASSERT_OK(training_->TrainStep());
        for (const absl::Status& status : training_->SaveCheckpoint("c")) ASSERT_OK(status);
        ExpectWhole(training_->Path("c"), training_->step());
        for (const auto& [path, bytes] : Tree())
          EXPECT_TRUE(path == "c" || absl::StartsWith(path, "c/")) << path << " is left";
      };
      // Direct writes by themselves: a thread of their own does them, now before and now after the
      // other calls.
      FailEach(rank, disk_log::kCallsOfASave & ~disk_log::kDirectWriteCall, error, save, check,
               rank == 0 ? 15 : 5);
      ASSERT_FALSE(HasFailure());
      FailEach(rank, disk_log::kDirectWriteCall, error, save, check, HasDirectWrites() ? 1 : 0);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(kept_old, 60);
  EXPECT_GT(had_new, 30);
}

// As some file systems do that let a file be opened for direct writes.
TEST_F(DiskErrorTest, SaveWhoseDirectWritesAreRefusedGoesThroughThePageCache) {
  if (!HasDirectWrites()) GTEST_SKIP() << "no direct writes in " << training_->folder();
  const auto save = [&] {
    EXPECT_OK(training_->TrainStep());
    return training_->SaveCheckpoint("c");
  };
  for (int rank = 0; rank < WatchedTraining::kWorldSize; ++rank) {
    const auto refused = [&](const std::string&, const std::vector<absl::Status>& statuses) {
      EXPECT_TRUE(AllOk(statuses));
      ExpectWhole(training_->Path("c"), training_->step());
    };
    FailEach(rank, disk_log::kDirectWriteCall, EINVAL, save, refused, 1);
    ASSERT_FALSE(HasFailure());
    const auto failed = [&](const std::string&, const std::vector<absl::Status>& statuses) {
      EXPECT_FALSE(AllOk(statuses)) << "a write through the page cache is not refused so";
    };
    FailEach(rank, disk_log::kWriteCall, EINVAL, save, failed, 3);
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(DiskErrorTest, SaveWithFewCheckpointsKeptNeverLosesTheOneBefore) {
  const auto path = [&](int64_t step) { return training_->Path(absl::StrCat("s", step)); };
  const auto save = [&]() -> std::vector<absl::Status> {
    EXPECT_OK(training_->TrainStep());
    return training_->SaveCheckpoint(absl::StrCat("s", training_->step()), /*keep_newest=*/2);
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(AllOk(save()));
  const auto check = [&](const std::string&, const std::vector<absl::Status>& statuses) {
    const int64_t step = training_->step();
    ExpectWhole(path(step - 1), step - 1);
    if (AllOk(statuses)) {
      ExpectWhole(path(step), step);
    } else {
      ExpectNamed(statuses, 0, EIO);
      EXPECT_FALSE(std::filesystem::exists(path(step)));
    }
    ASSERT_OK_AND_ASSIGN(const auto listed, ListCheckpoints(training_->folder()));
    for (const ListedCheckpoint& checkpoint : listed) ExpectWhole(checkpoint.path, checkpoint.step);
    ASSERT_TRUE(AllOk(save()));
    // An empty folder is all that may be left of an older one.
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(training_->folder())) {
      if (!std::filesystem::is_empty(entry)) {
        left.push_back(entry.path().string());
      } else {
        std::filesystem::remove(entry);
      }
    }
    EXPECT_THAT(left, testing::UnorderedElementsAre(path(step + 1),
                                                    path(AllOk(statuses) ? step : step - 1)));
  };
  FailEach(0, disk_log::kCallsOfASave, EIO, save, check, 20);
}

TEST_F(DiskErrorTest, SaveOverAModelFileFailsByNameOnAllRanksOrHasAllOfIt) {
  ASSERT_TRUE(AllOk(training_->SaveModel("m")));
  int kept_old = 0;
  DiskTree before;
  const auto save = [&] {
    EXPECT_OK(training_->TrainStep());
    before = Tree();
    return training_->SaveModel("m");
  };
  for (const int error : {ENOSPC, EIO, kShortWrite}) {
    for (int rank = 0; rank < WatchedTraining::kWorldSize; ++rank) {
      const auto check = [&](const std::string&, const std::vector<absl::Status>& statuses) {
        if (AllOk(statuses)) {
          EXPECT_TRUE(Tree().at("m") != before.at("m"));
        } else {
          ExpectNamed(statuses, rank, error);
          EXPECT_TRUE(Tree() == before) << "what was there has changed";
          ++kept_old;
        }
        for (const absl::Status& status : training_->SaveModel("m")) ASSERT_OK(status);
        EXPECT_EQ(Tree().size(), 1) << "nothing but the model";
        ASSERT_OK(training_->team().RunAll(
            [&](Session* session) { return LoadModel(session, training_->Path("m")).status(); }));
      };
      FailEach(rank, disk_log::kCallsOfASave, error, save, check, 1);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(kept_old, 20);
}

TEST_F(DiskErrorTest, LoadThatCannotReadFailsByNameOnAllRanksAndSetsNothing) {
  ASSERT_TRUE(AllOk(training_->SaveCheckpoint("c")));
  ASSERT_TRUE(AllOk(training_->SaveModel("m")));
  ASSERT_OK(training_->TrainStep());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> trained, ValuesOf(&training_->team()));
  LoadCheckpointOptions options;
  options.strict = false;  // The checkpoint has a buffer.
  const auto load_checkpoint = [&](Session* session) {
    return LoadCheckpoint(session, training_->Path("c"), options).status();
  };
  const auto load_model = [&](Session* session) {
    return LoadModel(session, training_->Path("m")).status();
  };
  for (const bool whole_state : {false, true}) {
    for (int rank = 0; rank < WatchedTraining::kWorldSize; ++rank) {
      const auto load = [&] {
        return whole_state ? training_->team().Run(load_checkpoint)
                           : training_->team().Run(load_model);
      };
      const auto check = [&](const std::string&, const std::vector<absl::Status>& statuses) {
        ExpectNamed(statuses, rank, EIO);
        EXPECT_EQ(ValuesOf(&training_->team()).value(), trained);
        EXPECT_EQ(training_->team().session(0)->next_step(), training_->step() + 1);
      };
      FailEach(rank, disk_log::kCallsOfALoad, EIO, load, check, 5);
      ASSERT_FALSE(HasFailure());
      // The last try loaded; the step that it undoes has the same bits again.
      ASSERT_OK(training_->team().RunAll(load_checkpoint));
      ASSERT_OK(training_->team().TrainTo(training_->step()));
      ASSERT_EQ(ValuesOf(&training_->team()).value(), trained);
    }
  }
}

}  // namespace
}  // namespace tessera
