// What a worker that is asked itself gives of a job to map, from real regions; the test is the
// executors and the clients.
#include "worker/keeper/direct_maps.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "worker/keeper/hosted_job_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class DirectMapsTest : public HostedJobFixture {
 protected:
  // In place of the one that was there.
  void HostToy() {
    hosted_.reset();
    description_.Clear();
    description_.set_generation(++generation_);
    Host(NewThreadLauncher(), 2);
    ASSERT_OK(created_);
    hosted_ = std::move(job_);
    hosted_->regions().group()->initialized.store(1);
  }
  static v1::LiveStateQuery QueryOf(const std::string& job_id) {
    v1::LiveStateQuery query;
    query.set_job_id(job_id);
    query.set_moments(true);
    return query;
  }

  int64_t generation_ = 6;
  std::shared_ptr<HostedJob> hosted_;
  DirectMaps maps_{
      [this](const std::string& job_id) { return job_id == "toy" ? hosted_ : nullptr; }};
};

TEST_F(DirectMapsTest, AnswerIsAllTensorsAndWhatThisWorkerHasOfThem) {
  ASSERT_NO_FATAL_FAILURE(HostToy());
  hosted_->regions().group()->prepared_epoch.store(5);
  ASSERT_OK_AND_ASSIGN(const auto map, maps_.Open(QueryOf("toy")));
  const v1::LiveMapAnswer answer = map->TakeAnswer();
  EXPECT_EQ(answer.generation(), 7);
  EXPECT_EQ(answer.epoch(), 5);
  EXPECT_EQ(answer.first_rank(), 0);
  ASSERT_EQ(answer.tensors_size(), 3) << "w and its moments";
  EXPECT_EQ(answer.size_bytes(), 3 * 64 * 4);
  for (const v1::LiveTensorInfo& tensor : answer.tensors()) {
    EXPECT_EQ(tensor.parameter(), "w");
  }
  EXPECT_EQ(answer.given().ranks_size(), 2);
  ASSERT_EQ(answer.given().slices_size(), 6) << "of each tensor a half of each rank's";
  for (int i = 0; i < 6; ++i) EXPECT_EQ(answer.given().slices(i).tensor(), i / 2);
  EXPECT_EQ(map->TakeRegions().size(), 3u) << "the group's and two ranks'";
  EXPECT_OK(map->CheckNew());
}

TEST_F(DirectMapsTest, NothingNewerComesOfMemoryThatIsNotTheJobsAnyMore) {
  ASSERT_NO_FATAL_FAILURE(HostToy());
  ASSERT_OK_AND_ASSIGN(const auto map, maps_.Open(QueryOf("toy")));
  ASSERT_NO_FATAL_FAILURE(HostToy());
  EXPECT_THAT(map->CheckNew(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("with other memory")));
  ASSERT_OK_AND_ASSIGN(const auto again, maps_.Open(QueryOf("toy")));
  EXPECT_OK(again->CheckNew());
  const std::weak_ptr<HostedJob> memory = hosted_;
  hosted_.reset();
  EXPECT_TRUE(memory.expired()) << "a map keeps the job";
  EXPECT_THAT(again->CheckNew(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'toy' is gone")));
}

TEST_F(DirectMapsTest, PlacesAreGivenBackAlsoByThoseThatWereRefused) {
  ASSERT_NO_FATAL_FAILURE(HostToy());
  v1::LiveStateQuery nothing;
  nothing.set_job_id("toy");
  nothing.add_include("other");
  std::vector<std::unique_ptr<DirectMap>> maps;
  for (int i = 0; i < DirectMaps::kMaxMapsOfAJob; ++i) {
    EXPECT_THAT(maps_.Open(nothing).status(),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no parameter's name")));
    ASSERT_OK_AND_ASSIGN(maps.emplace_back(), maps_.Open(QueryOf("toy")));
  }
  EXPECT_THAT(maps_.Open(QueryOf("toy")).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("job 'toy'")));
  maps.pop_back();
  EXPECT_OK(maps_.Open(QueryOf("toy")).status());
}

TEST_F(DirectMapsTest, QueryOfNoJobIsRefused) {
  ASSERT_NO_FATAL_FAILURE(HostToy());
  for (const char* job : {"", "toys"}) {
    EXPECT_THAT(maps_.Open(QueryOf(job)).status(),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(absl::StrCat("'", job, "'"))));
  }
  hosted_->regions().group()->initialized.store(0);
  EXPECT_THAT(maps_.Open(QueryOf("toy")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no values yet")));
}

}  // namespace
}  // namespace tessera
