// An attached module continues in a job of another size, from the memory of the previous one.
#include "tessera/hand_over.h"

#include <thread>

#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "client/session/session_buffers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/torch/attach_options.h"

namespace tessera {
namespace {

class TorchHandOverTest : public TorchCluster {
 protected:
  static void TrainTo(Trainer& trainer, int64_t last_step) {
    while (trainer.model->next_step() <= last_step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        // The same on both ranks, so that their mean is that of one.
        LossOf(*trainer.net, trainer.model->next_step(), /*rank=*/0).backward();
        return trainer.model->Step();
      }));
    }
  }
};

TEST_F(TorchHandOverTest, ModuleOnTheMetaDeviceGoesOnAsTheOneThatWasHandedOver) {
  std::map<std::string, torch::Tensor> expected;
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        TrainTo(trainer, 5);
        const auto whole = WholeParameters(trainer);
        if (trainer.rank == 0) expected = whole;
      },
      [](SessionOptions* options) { options->job_id = "whole"; });
  std::thread old([&] {
    OnEachRank(2, [&](Trainer& trainer) {
      TrainTo(trainer, 3);
      EXPECT_OK(HandOver(&trainer.model->session(), {"position"}));
    });
  });
  ForEachRank(1, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    MoveToMeta(*trainer.net);
    SessionOptions options = OptionsFor(rank, 1);
    options.job_id = "next";
    AttachOptions attach;
    TakenOver taken;
    attach.first_values = [&](Session* session) -> absl::Status {
      // The old job may not be there yet.
      absl::StatusOr<TakenOver> tried = absl::NotFoundError("");
      while (absl::IsNotFound(tried.status()))
        tried = TakeOver(session, {"torch", absl::Seconds(60)});
      if (tried.ok()) taken = *std::move(tried);
      return tried.status();
    };
    auto model = ShardedModel::Attach(trainer.net, options, AlwaysWrap(), attach);
    ASSERT_OK(model);
    trainer.model = *std::move(model);
    EXPECT_EQ(taken.step, 3);
    EXPECT_EQ(taken.trainer_states, std::vector<std::string>(2, "position"));
    TrainTo(trainer, 5);
    const auto whole = WholeParameters(trainer);
    for (const auto& [name, value] : whole)
      EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
  });
  old.join();
}

class TorchBuffersHandOverTest : public TorchHandOverTest {
 protected:
  static constexpr float kOfRank0 = 3.5;

  // A job of two ranks that is handed over after three steps, with buffers that differ.
  void HandOverOld(bool publish) {
    ForEachRank(2, [&](int rank) {
      Trainer trainer = {rank, MakeNet(), nullptr};
      AttachOptions attach;
      attach.publish_buffers = publish;
      auto model = ShardedModel::Attach(trainer.net, OptionsFor(rank, 2), AlwaysWrap(), attach);
      ASSERT_OK(model);
      trainer.model = *std::move(model);
      TrainTo(trainer, 2);
      trainer.net->first->shift.fill_(rank == 0 ? kOfRank0 : 9);
      TrainTo(trainer, 3);
      EXPECT_OK(HandOver(&trainer.model->session()));
    });
  }
  // Attaches as a rank of the job that takes it over; the old one may not be there yet.
  absl::Status TakeOverInto(Trainer* trainer, int world_size, TakenOver* taken) {
    SessionOptions options = OptionsFor(trainer->rank, world_size);
    options.job_id = "next";
    options.wait_if_attached = true;  // A try that failed may just be detaching.
    AttachOptions attach;
    const auto take = TakeOverModel(trainer->net, {"torch", absl::Seconds(60)}, taken);
    attach.first_values = [take](Session* session) {
      absl::Status status = absl::NotFoundError("");
      while (absl::IsNotFound(status)) status = take(session);
      return status;
    };
    auto model = ShardedModel::Attach(trainer->net, options, AlwaysWrap(), attach);
    if (model.ok()) trainer->model = *std::move(model);
    return model.status();
  }
  static bool IsAll(const torch::Tensor& tensor, float value) {
    return torch::equal(tensor, torch::full_like(tensor, value));
  }
};

TEST_F(TorchBuffersHandOverTest, BuffersOfRank0GoOnInTheModuleOnAllRanksAndForReaders) {
  std::thread old([&] { HandOverOld(/*publish=*/true); });
  ForEachRank(3, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    const torch::Tensor before = trainer.net->second->shift.clone();
    TakenOver taken;
    ASSERT_OK(TakeOverInto(&trainer, 3, &taken));
    EXPECT_EQ(taken.step, 3);
    EXPECT_TRUE(taken.missing_buffers.empty());
    EXPECT_TRUE(IsAll(trainer.net->first->shift, kOfRank0)) << "rank " << rank;
    EXPECT_TRUE(torch::equal(trainer.net->second->shift, before));
    const torch::Tensor& shift = trainer.net->first->shift;
    const absl::string_view bytes(static_cast<const char*>(shift.data_ptr()), shift.nbytes());
    EXPECT_TRUE(SessionBuffers(&trainer.model->session()).Has(0, bytes));
    TrainTo(trainer, 5);
  });
  old.join();
}

TEST_F(TorchBuffersHandOverTest, WhatTheOldJobDoesNotPublishIsReportedAndStays) {
  std::thread old([&] { HandOverOld(/*publish=*/false); });
  ForEachRank(1, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    TakenOver taken;
    ASSERT_OK(TakeOverInto(&trainer, 1, &taken));
    EXPECT_EQ(taken.missing_buffers, std::vector<std::string>({"first.shift", "second.shift"}));
    EXPECT_TRUE(IsAll(trainer.net->first->shift, 0.25));
    TrainTo(trainer, 4);
  });
  old.join();
}

TEST_F(TorchBuffersHandOverTest, ReadingThatFailsLeavesTheModulesOwn) {
  std::thread old([&] { HandOverOld(/*publish=*/true); });
  ForEachRank(1, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    TakenOver taken;
    ArmFaultPoint("take-over.read-buffer", {FaultAction::kFail, 2, absl::DataLossError("torn")});
    EXPECT_THAT(TakeOverInto(&trainer, 1, &taken),
                StatusIs(absl::StatusCode::kDataLoss, ::testing::HasSubstr("torn")));
    EXPECT_TRUE(IsAll(trainer.net->first->shift, 0.25));
    DisarmAllFaultPoints();
    ASSERT_OK(TakeOverInto(&trainer, 1, &taken));
    EXPECT_TRUE(IsAll(trainer.net->first->shift, kOfRank0));
    TrainTo(trainer, 4);
  });
  old.join();
}

}  // namespace
}  // namespace tessera
