// The state of jobs whose ranks are on a GPU, which is a fake here, read and set by trainers: as
// that of the same job on the host, to the bit.
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tessera/local_shards.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/gpu_clusters.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing_support::GpuClusters;
using testing_support::InitializeToy;
using testing_support::JobState;
using testing_support::ReadAllFrom;
using testing_support::ReadJobState;
using testing_support::StateOf;
using testing_support::ToyGradient;
using testing_support::TrainerTeam;
using testing_support::TrainToyOn;

constexpr int kWorldSize = 3;

// What a rank saw, as bytes: what, and in which order.
class Record {
 public:
  template <typename T>
  void Note(const std::string& what, const T* values, int64_t count) {
    std::string bytes(count * sizeof(T), 0);
    if (count > 0) memcpy(bytes.data(), values, bytes.size());
    notes_.push_back(absl::StrCat(what, ": ") + bytes);
  }
  void Note(const std::string& what, ConstValues values) {
    Note(what, static_cast<const char*>(values.data()), static_cast<int64_t>(values.size_bytes()));
  }
  void Note(const std::string& what, const JobState& state) {
    for (const auto& [name, values] : state.tensors)
      Note(absl::StrCat(what, " ", name), values.data(), static_cast<int64_t>(values.size()));
    for (const auto& [name, count] : state.update_counts)
      notes_.push_back(absl::StrCat(what, " ", name, " ", count));
    notes_.push_back(absl::StrCat(what, " step ", state.step));
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<std::string> notes_;
};

using Body = std::function<absl::Status(Session*, RankDevice*, Record*)>;

// Whether the state is offloaded.
class GpuStateTest : public GpuClusters, public testing::WithParamInterface<bool> {
 protected:
  SessionOptions Job(int world_size = kWorldSize) {
    SessionOptions options = GpuClusters::Job(world_size);
    options.config.cpu_offload = GetParam();
    return options;
  }
  // Has every rank do `body`, on the host and on the GPU; each sees the same on both.
  void ExpectSame(const SessionOptions& job, const Body& body) {
    std::vector<Record> expected(job.config.world_size), seen(job.config.world_size);
    for (auto& [cluster, records] :
         {std::pair(on_host_.get(), &expected), std::pair(on_gpu_.get(), &seen)}) {
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*cluster, job)));
      ASSERT_OK(team.RunAll([&, records = records](Session* session) {
        return body(session, DeviceOf(session), &(*records)[session->rank()]);
      }));
    }
    for (int rank = 0; rank < job.config.world_size; ++rank) {
      EXPECT_FALSE(expected[rank].notes().empty());
      EXPECT_TRUE(seen[rank].notes() == expected[rank].notes()) << "rank " << rank;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(State, GpuStateTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Offloaded" : "OnTheGpu";
                         });

absl::Status NoteState(Session* session, const std::string& what, Record* record) {
  ASSIGN_OR_RETURN(const JobState state, ReadJobState(session));
  record->Note(what, state);
  return absl::OkStatus();
}

TEST_P(GpuStateTest, WholeParametersAndGradientsAreReadAndSet) {
  SessionOptions job = Job();
  job.config.max_gradient_norm = 0.5;
  ExpectSame(job, [](Session* session, RankDevice* device, Record* record) -> absl::Status {
    RETURN_IF_ERROR(TrainToyOn(session, device, 2));
    RETURN_IF_ERROR(NoteState(session, "trained", record));
    const auto note = [&](const std::string& what, int unit) {
      return [record, what = absl::StrCat(what, unit, " ")](int p, ConstValues values) {
        record->Note(absl::StrCat(what, p), values);
      };
    };
    for (const int unit : {0, 2}) {
      const int64_t numel = session->layout().units[unit].flat.parameters()[0].numel;
      std::vector<float> gradient(numel);
      for (int64_t i = 0; i < numel; ++i) gradient[i] = ToyGradient(1, i, session->rank(), unit);
      RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
      RETURN_IF_ERROR(session->Reduce(unit));
      RETURN_IF_ERROR(session->ReadGradients(unit, note("reduced", unit)));
    }
    // One that was reduced is changed, and one that was not is given.
    for (const int unit : {1, 2}) {
      RETURN_IF_ERROR(session->WriteGradients(unit, [&](int p, bool has, Values values) {
        for (float& value : values.as<float>()) value = has ? value * 0.5f : 0.25f;
        return has || p == 1;
      }));
      RETURN_IF_ERROR(session->ReadGradients(unit, note("written", unit)));
    }
    ASSIGN_OR_RETURN(const StepResult step, session->Step());
    record->Note("norm", &step.gradient_norm, 1);
    RETURN_IF_ERROR(NoteState(session, "stepped", record));
    RETURN_IF_ERROR(session->WriteParameters({0, 2}, [](int unit, int p, Values values) {
      for (size_t i = 0; i < values.size(); ++i)
        values.as<float>()[i] = static_cast<float>(i) / static_cast<float>(3 + unit + p);
    }));
    RETURN_IF_ERROR(NoteState(session, "written", record));
    ASSIGN_OR_RETURN(const std::vector<float> all, ReadAllFrom(session, device));
    record->Note("unsharded", all.data(), static_cast<int64_t>(all.size()));
    RETURN_IF_ERROR(TrainToyOn(session, device, 4));
    return NoteState(session, "trained on", record);
  });
}

TEST_P(GpuStateTest, TrainersOwnOptimizerWorksOnShards) {
  ExpectSame(Job(), [](Session* session, RankDevice* device, Record* record) -> absl::Status {
    RETURN_IF_ERROR(TrainToyOn(session, device, 1));
    ASSIGN_OR_RETURN(const auto shards, LocalShards::Open(session));
    for (int64_t step = 2; step <= 4; ++step) {
      RETURN_IF_ERROR(session->RunStep([&]() -> absl::Status {
        for (int unit = session->num_units() - 1; unit >= 0; --unit) {
          const auto& parameters = session->layout().units[unit].flat.parameters();
          std::vector<float> gradient(parameters[0].numel);
          for (size_t i = 0; i < gradient.size(); ++i)
            gradient[i] = ToyGradient(1, i, session->rank(), step);
          RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
          RETURN_IF_ERROR(session->Reduce(unit));
        }
        RETURN_IF_ERROR(shards->Begin().status());
        for (size_t part = 0; part < shards->parts().size(); ++part) {
          if (!shards->has_gradient(part)) continue;
          record->Note("gradient", shards->gradient(part));
          const absl::Span<float> values = shards->values(part).as<float>();
          const absl::Span<float> own = shards->gradient(part).as<float>();
          for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.1f * own[i];
        }
        return shards->Commit();
      }));
    }
    RETURN_IF_ERROR(NoteState(session, "end", record));
    return TrainToyOn(session, device, 5);  // The job's own continues from there.
  });
}

TEST_P(GpuStateTest, OptimizersStateIsSetInAnotherJobWhichGoesOnToTheSameBits) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    SessionOptions job = Job();
    job.config.optimizer = optimizer;
    job.config.groups[0].momentum = optimizer == OptimizerKind::kSgd ? 0.9 : 0;
    ASSERT_OK_AND_ASSIGN(TrainerTeam whole, TrainerTeam::Open(On(*on_gpu_, job)));
    ASSERT_OK(Train(&whole, 3));
    const JobState state = StateOf(&whole);
    EXPECT_EQ(state.step, 3);
    ASSERT_OK_AND_ASSIGN(const TrainingProgress progress, ReadProgress(whole.session(0)));
    ASSERT_OK(Train(&whole, 5));
    for (LocalCluster* const cluster : {on_host_.get(), on_gpu_.get()}) {
      SessionOptions next = job;
      next.job_id += "-next";
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*cluster, next)));
      ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
        const auto fill = [&](const std::string& suffix, int unit, int p, Values values) {
          const auto& spec = session->layout().units[unit].flat.parameters()[p].spec;
          const std::vector<double>& from = state.tensors.at(spec.name + suffix);
          std::copy(from.begin(), from.end(), values.as<float>().begin());
        };
        RETURN_IF_ERROR(session->Initialize(
            [&](int unit, int p, Values values) { fill("", unit, p, values); }));
        return WriteOptimizerState(
            session, progress, [&](StateArray array, int unit, int p, Values values) {
              fill(absl::StrCat("/", static_cast<int>(array)), unit, p, values);
            });
      }));
      EXPECT_TRUE(StateOf(&team) == state);
      ASSERT_OK(Train(&team, 5));
      EXPECT_TRUE(StateOf(&team) == StateOf(&whole));
    }
  }
}

// The unit as trainers see it in its window.
absl::Status NoteWindow(Session* session, RankDevice* device, int unit, Precision precision,
                        Record* record) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  RETURN_IF_ERROR(session->Unshard(unit, precision));
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const bool full = precision == Precision::kFull;
    const DType dtype = full ? session->full_dtype(unit) : session->config().compute_dtype;
    std::string seen(parameters[p].numel * SizeBytes(dtype), 0);
    kernels->Copy(seen.data(),
                  full ? session->full_parameter(unit, p) : session->parameter(unit, p),
                  static_cast<int64_t>(seen.size()));
    RETURN_IF_ERROR(kernels->Finish());
    record->Note(absl::StrCat("window of ", unit), seen.data(), seen.size());
  }
  return session->Reshard(unit);
}

// Where it travels `in_half`: after one in the other half precision, which is refused as if it had
// not come.
absl::Status AddOnGpu(Session* session, RankDevice* device, int unit, bool in_half,
                      const std::vector<float>& gradient) {
  const auto numel = static_cast<int64_t>(gradient.size());
  ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
  ASSIGN_OR_RETURN(const Buffer on_gpu, device->Allocate(numel * sizeof(float)));
  kernels->Copy(on_gpu.data(), gradient.data(), on_gpu.size_bytes());
  RETURN_IF_ERROR(kernels->Finish());
  DeviceGradients gradients(session);
  if (in_half) {
    const DType other =
        session->config().reduce_dtype == DType::kBf16 ? DType::kFp16 : DType::kBf16;
    EXPECT_THAT(gradients.Add(unit, 0, on_gpu.data(), numel, other),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr("and the unit's travel in")));
  }
  RETURN_IF_ERROR(gradients.Add(unit, 0, on_gpu.data(), numel, DType::kFp32));
  return gradients.Finish();
}

TEST_P(GpuStateTest, UnitsInHalfPrecisionHaveWindowsInFullToo) {
  for (const DType half : {DType::kBf16, DType::kFp16}) {
    SessionOptions job = Job();
    job.config.compute_dtype = job.config.reduce_dtype = half;
    ExpectSame(job, [](Session* session, RankDevice* device, Record* record) -> absl::Status {
      RETURN_IF_ERROR(InitializeToy(session));
      for (int64_t step = 1; step <= 3; ++step) {
        RETURN_IF_ERROR(session->RunStep([&]() -> absl::Status {
          for (int unit = 0; unit < session->num_units(); ++unit) {
            // By turns in the dtype that they are computed in and in full, as gradients travel.
            RETURN_IF_ERROR(NoteWindow(
                session, device, unit,
                (unit + step) % 2 == 0 ? Precision::kFull : Precision::kCompute, record));
            const auto& parameter = session->layout().units[unit].flat.parameters()[0];
            std::vector<float> gradient(parameter.numel);
            for (size_t i = 0; i < gradient.size(); ++i)
              gradient[i] = ToyGradient(1, i, session->rank(), step);
            if (!DeviceGradients(session).available()) {
              RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
            } else {
              const bool in_half = (unit + step) % 2 != 0;
              RETURN_IF_ERROR(AddOnGpu(session, device, unit, in_half, gradient));
            }
            RETURN_IF_ERROR(session->Reduce(unit));
          }
          return session->Step().status();
        }));
        RETURN_IF_ERROR(NoteState(session, "step", record));
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(GpuStateTest, UnitsInFp64TrainInFp64) {
  SessionOptions job = Job();
  job.model = {{{"root", {{"a", {5}, DType::kFp32}}}, {"wide", {{"b", {7, 3}, DType::kFp64}}}}};
  job.config.max_gradient_norm = 0.5;
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    job.job_id += "x";
    job.config.optimizer = optimizer;
    ExpectSame(job, [](Session* session, RankDevice* device, Record* record) -> absl::Status {
      RETURN_IF_ERROR(session->Initialize([](int unit, int, Values values) {
        for (size_t i = 0; i < values.size(); ++i) {
          const double value = 1.0 / (3.0 + unit + static_cast<double>(i));
          unit == 1 ? values.as<double>()[i] = value
                    : values.as<float>()[i] = static_cast<float>(value);
        }
      }));
      ASSIGN_OR_RETURN(const std::unique_ptr<RankKernels> kernels, device->CreateKernels({}));
      for (int64_t step = 1; step <= 3; ++step) {
        RETURN_IF_ERROR(session->RunStep([&]() -> absl::Status {
          RETURN_IF_ERROR(NoteWindow(session, device, 1, Precision::kFull, record));
          RETURN_IF_ERROR(
              session->AddGradient(0, 0, std::vector<float>(5, 0.5f * session->rank())));
          std::vector<double> wide(21);
          for (size_t i = 0; i < wide.size(); ++i)
            wide[i] = 1.0 / (7.0 + static_cast<double>(i + step) + session->rank());
          if (!DeviceGradients(session).available()) {
            RETURN_IF_ERROR(session->AddGradient(1, 0, wide));
            RETURN_IF_ERROR(session->AddGradient(1, 0, wide));
            return session->Step().status();
          }
          ASSIGN_OR_RETURN(const Buffer on_gpu, device->Allocate(21 * sizeof(double)));
          kernels->Copy(on_gpu.data(), wide.data(), on_gpu.size_bytes());
          RETURN_IF_ERROR(kernels->Finish());
          for (int twice = 0; twice < 2; ++twice) {
            RETURN_IF_ERROR(DeviceGradients(session).Add(1, 0, on_gpu.data(), 21, DType::kFp64));
          }
          RETURN_IF_ERROR(session->Reduce(1));  // Then it was read.
          return session->Step().status();
        }));
        RETURN_IF_ERROR(NoteState(session, "step", record));
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(GpuStateTest, EveryStrategyOfOneWorkerHasTheSameBits) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard, Strategy::kHybridShard}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    SessionOptions job = Job(4);
    job.config.strategy = strategy;
    if (strategy == Strategy::kHybridShard) job.config.shard_group_size = 4;
    job.config.max_gradient_norm = 0.5;
    job.config.gradient_norm_p = 1;
    ExpectSame(job, [](Session* session, RankDevice* device, Record* record) -> absl::Status {
      RETURN_IF_ERROR(TrainToyOn(session, device, 3));
      ASSIGN_OR_RETURN(const std::vector<float> all, ReadAllFrom(session, device));
      record->Note("unsharded", all.data(), static_cast<int64_t>(all.size()));
      return NoteState(session, "end", record);
    });
  }
}

TEST_P(GpuStateTest, StepThatIsNotFiniteChangesNothingAndTheNextOneIsTaken) {
  SessionOptions job = Job();
  ExpectSame(job, [](Session* session, RankDevice* device, Record* record) -> absl::Status {
    RETURN_IF_ERROR(TrainToyOn(session, device, 1));
    const int64_t numel = session->layout().units[1].flat.parameters()[0].numel;
    std::vector<float> gradient(numel, 1.0f);
    if (session->rank() == 1) gradient[3] = std::numeric_limits<float>::infinity();
    RETURN_IF_ERROR(session->AddGradient(1, 0, gradient));
    RETURN_IF_ERROR(session->Reduce(1));
    EXPECT_THAT(session->Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("unit1")));
    RETURN_IF_ERROR(NoteState(session, "refused", record));
    RETURN_IF_ERROR(TrainToyOn(session, device, 3));
    return NoteState(session, "trained on", record);
  });
}

}  // namespace
}  // namespace tessera
