// Buffers of modules that train, read by clients: through a real coordinator, workers and
// executors' processes, with trainers that continue meanwhile.
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/model_checkpoint.h"
#include "tests/integration/live_buffers_fixture.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing_support::ResidentBytesOf;

TEST_F(LiveBuffersTest, EachReadingHasThoseOfItsStepInTheirDTypesBothWaysWhileTrainingGoesOn) {
  std::atomic<bool> stop{false};
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    std::thread reader;
    if (rank == 0) {
      reader = std::thread([&] {
        int64_t last_step = 0;
        for (int i = 0; i < 12; ++i) {
          StoredValues values;
          std::vector<std::string> flags;
          if (i % 2 == 0) flags.push_back("--through-coordinator");
          if (i % 3 == 0) flags.push_back("--dtype=bf16");
          const int64_t step = Get(flags, &values);
          EXPECT_GE(step, last_step);
          last_step = step;
          ExpectBuffers(values, At(step));
          EXPECT_EQ(values.at("in.weight").first, i % 3 == 0 ? "BF16" : "F32");
        }
        stop.store(true);
      });
    }
    while (!AllSee(rank, stop)) ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) reader.join();
  });
}

TEST_F(LiveBuffersTest, BuffersThatComputeInAnotherDTypeAreReadInTheirOwn) {
  AttachOptions attach;
  attach.precision.buffer_dtype = DType::kBf16;
  OnEachRank(
      [&](int rank, Trainer& trainer) {
        trainer.net->uses_norm = false;  // It supports no other dtype on the CPU.
        for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
        EXPECT_EQ(trainer.net->table.scalar_type(), torch::kBFloat16);
        Meet();
        if (rank == 0) {
          StoredValues values;
          EXPECT_EQ(Get({}, &values), 3);
          EXPECT_EQ(values.at("norm.running_mean").first, "F32");
          ExpectBuffers(values, At(3));
        }
        Meet();
      },
      attach);
}

// The trainers have what was loaded in their modules only once the load has returned, and say so at
// the next version; a reader gets it with the version that the load made.
TEST_F(LiveBuffersTest, ReaderRightBehindALoadGetsWhatWasLoaded) {
  StoredValues saved;
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 2; ++i) ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) saved = BuffersOf(*trainer.net);
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    for (int i = 0; i < 4; ++i) ASSERT_OK(Step(rank, &trainer));
    StoredValues values;
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 6);
      ExpectBuffers(values, At(6));
      EXPECT_NE(values.at("seen"), saved.at("seen"));
    }
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    Meet();
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 2);
      ExpectBuffers(values, saved);
      // One that fails changes nothing.
      EXPECT_EQ(Get({"--through-coordinator"}, &values), 2);
      ExpectBuffers(values, saved);
    }
    Meet();
    EXPECT_FALSE(LoadModelCheckpoint(trainer.model.get(), Path("nothing")).ok());
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 3);
      ExpectBuffers(values, At(3));
    }
    Meet();
  });
}

TEST_F(LiveBuffersTest, ListsFilesAndComparisonsHaveThem) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 2; ++i) ASSERT_OK(Step(rank, &trainer));
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    Meet();
    if (rank == 0) {
      const CliResult list = Tessera({"ls", "--job", "toy"});
      EXPECT_EQ(list.exit_code, 0) << list.err;
      EXPECT_THAT(list.out, testing::ContainsRegex("model +norm.num_batches_tracked +I64"));
      EXPECT_THAT(list.out, testing::ContainsRegex("model +mask +BOOL +\\[3\\]"));
      const CliResult same = Tessera({"diff", "--job", "toy", Path("checkpoint")});
      EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
      EXPECT_THAT(same.out, HasSubstr("equal: 13 of 13"));
      StoredValues values;
      EXPECT_EQ(Get({"--no-buffers"}, &values), 2);
      EXPECT_EQ(values.size(), 6u);
      EXPECT_EQ(values.count("seen"), 0u);
      EXPECT_EQ(Get({"--include=norm.running_*"}, &values), 2);
      EXPECT_EQ(values.size(), 2u);
    }
    Meet();
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      const CliResult diff = Tessera({"diff", "--job", "toy", Path("checkpoint"), "--match=seen"});
      EXPECT_EQ(diff.exit_code, 1);
      EXPECT_THAT(diff.out, HasSubstr("different: 1 of 1"));
    }
    Meet();
  });
}

TEST_F(LiveBuffersTest, JobsThatDoNotPublishThemHaveNone) {
  AttachOptions attach;
  attach.publish_buffers = false;
  OnEachRank(
      [&](int rank, Trainer& trainer) {
        ASSERT_OK(Step(rank, &trainer));
        Meet();
        if (rank == 0) {
          StoredValues values;
          EXPECT_EQ(Get({}, &values), 1);
          EXPECT_EQ(values.size(), 6u);
        }
        Meet();
      },
      attach);
}

TEST_F(LiveBuffersTest, BufferThatGetsAnotherShapeIsAnErrorByNameAndNoStepIsTaken) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) {
      const torch::Tensor before = trainer.net->mask.clone();
      trainer.net->mask.set_data(torch::tensor({true}));
      EXPECT_THAT(Step(rank, &trainer),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("buffer 'mask'")));
      EXPECT_EQ(trainer.model->next_step(), 2);
      trainer.net->mask.set_data(before);
    }
    // The other rank is told too, if it is in the step already.
    absl::Status status;
    while (trainer.model->next_step() <= 2 && (status.ok() || rank == 1))
      status = Step(rank, &trainer);
    EXPECT_OK(status);
  });
}

TEST_F(LiveBuffersTest, ErrorInWhatIsPublishedIsToldToAllRanksOfALoadToo) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_OK(SaveModelCheckpoint(trainer.model.get(), Path("saved")));
    Meet();  // The end of the epoch does not answer the save.
    const torch::Tensor before = trainer.net->mask.clone();
    if (rank == 0) trainer.net->mask.set_data(torch::tensor({true}));
    const absl::Status refused = LoadModelCheckpoint(trainer.model.get(), Path("saved")).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("buffer 'mask'"));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << "on the other worker too";
    if (rank == 0) trainer.net->mask.set_data(before);
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path("saved")).status());
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_EQ(trainer.model->next_step(), 3);
  });
}

TEST_F(LiveBuffersTest, Rank0AloneTakesMemoryForLargeOnesThatStayAsTheyAre) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    const auto resident = ResidentBytesOf(getpid(), "toy");
    const std::string label = absl::StrCat(rank, "/gradients");
    ASSERT_EQ(resident.count(label), 1u);
    EXPECT_EQ(resident.at(label) > kTableElements * int64_t{sizeof(float)}, rank == 0)
        << resident.at(label) << " bytes of rank " << rank;
    Meet();
  });
}

}  // namespace
}  // namespace tessera
