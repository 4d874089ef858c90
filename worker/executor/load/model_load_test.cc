#include "worker/executor/load/model_load.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/loopback/loopback_communicator.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/load/fake_state_writer.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// One rank, one parameter, and a model of it in a file.
class LoadModelOfOneRankTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "/tessera-load-XXXXXX";
    path_ = std::string(mkdtemp(folder.data())) + "/model.safetensors";
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                         PlaceTensors({{"w", {4}, DType::kFp32}}, {}));
    ASSERT_OK(ModelFile::Create(path_, header));
    ASSERT_OK(ModelFile::Publish(path_));
    ModelSpec model;
    model.units.push_back({"root", {{"w", {4}, DType::kFp32}}});
    ASSERT_OK_AND_ASSIGN(layout_, ModelLayout::Create(model, LayoutOptions(), 1));
    segments_ = {ShardSegment()};
    segments_[0].numel = 4;
  }
  // What becomes of a load during which `meanwhile` happens.
  absl::Status Load(absl::FunctionRef<void()> meanwhile) {
    auto communicator = LoopbackCommunicator::Create(0, 1);
    FakeStateWriter writer([&](StateArray, const ShardSegment&) { meanwhile(); });
    LoadedState state{/*first=*/true, {}, &writer, std::nullopt, {}};
    const absl::Status outcome = LoadModel(path_, {/*strict=*/true}, /*buffers=*/{}, layout_,
                                           segments_, &state, communicator->get(), &stopped_)
                                     .status();
    EXPECT_TRUE(outcome.ok() || IsAgreed(outcome)) << outcome;
    return outcome;
  }
  std::string path_;
  ModelLayout layout_;
  std::vector<ShardSegment> segments_;
  std::atomic<bool> stopped_{false};
};

TEST_F(LoadModelOfOneRankTest, FileThatStaysAsItIsIsLoaded) {
  EXPECT_OK(Load([] {}));
}

TEST_F(LoadModelOfOneRankTest, FileThatChangesWhileItIsReadIsRefused) {
  const timespec times[2] = {{1, 0}, {1, 0}};
  EXPECT_THAT(Load([&] { EXPECT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path_ + " changed")));
}

TEST_F(LoadModelOfOneRankTest, ReadsNoSliceMoreOnceTheEpochEnds) {
  segments_ = {segments_[0], segments_[0], segments_[0]};
  int num_read = 0;
  EXPECT_THAT(Load([&] { stopped_.store(++num_read == 2); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the epoch ended")));
  EXPECT_EQ(num_read, 2);
}

TEST_F(LoadModelOfOneRankTest, FileThatVanishesWhileItIsReadIsRefused) {
  EXPECT_THAT(Load([&] { EXPECT_EQ(remove(path_.c_str()), 0); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("open " + path_)));
}

}  // namespace
}  // namespace tessera
