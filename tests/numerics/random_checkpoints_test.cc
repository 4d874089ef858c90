// Random jobs that train some random steps, are saved, and continue as other jobs: the same
// parameters in other units, with other names for tied ones, another world, strategy and dtypes.
// Checkpoints in one file, in files of a size and in parts that are consolidated; models alone,
// rounded or not. Every parameter, moment and count of updates has the bits of plain scalar code
// that knows no shards and no files.
//
// A failure names its seed: kFirstSeed, with one case, repeats it.
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/consolidate.h"
#include "checkpoint/safetensors/model_reader.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tessera/stored_model.h"
#include "tests/numerics/case_runner.h"
#include "tests/numerics/checkpoint_case.h"
#include "tests/testing/trainer_team.h"

namespace tessera::numerics {
namespace {

using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr uint64_t kFirstSeed = 70000;
constexpr int kCases = 72;
constexpr int kGroups = 4;  // Of cases.

using Reals = std::vector<double>;

// Of a parameter. Floats and doubles, which all fit into a double with their signs of zero.
struct ParameterState {
  DType dtype = DType::kFp32;
  bool trainable = true;
  Reals values;
  std::map<StateArray, Reals> moments;
  int64_t updates = 0;
};
using State = std::map<std::string, ParameterState>;  // By its name in the job that saves.

bool SameBits(const Reals& a, const Reals& b) {
  return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), 8 * a.size()) == 0);
}

// As elements that have this dtype, or a larger one.
Reals RoundedTo(DType dtype, Reals values) {
  for (double& value : values) {
    if (dtype != DType::kFp64) value = static_cast<float>(value);
    value = RoundTo(dtype, value);
  }
  return values;
}

Reals RealsOf(ConstValues values) {
  if (values.dtype() == DType::kFp64) {
    const absl::Span<const double> all = values;
    return {all.begin(), all.end()};
  }
  const absl::Span<const float> all = values;
  return {all.begin(), all.end()};
}

// A job's cluster and its trainers.
struct Running {
  std::unique_ptr<LocalCluster> cluster;
  std::optional<TrainerTeam> team;
};

absl::StatusOr<Running> Start(const RandomJob& job) {
  Running running;
  LocalCluster::Options cluster_options;
  cluster_options.num_workers = static_cast<int>(job.ranks_by_worker.size());
  cluster_options.num_devices = job.ranks_by_worker[0];
  ASSIGN_OR_RETURN(running.cluster, LocalCluster::Start(cluster_options));
  std::vector<std::string> workers;
  for (size_t worker = 0; worker < job.ranks_by_worker.size(); ++worker) {
    workers.insert(workers.end(), job.ranks_by_worker[worker],
                   running.cluster->worker_address(static_cast<int>(worker)));
  }
  SessionOptions options = ToyOptions(*running.cluster, "job", job.config.world_size);
  options.model = job.model;
  options.config = job.config;
  ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options, workers));
  running.team = std::move(team);
  return running;
}

int WorkerOf(const RandomJob& job, int rank) {
  int worker = 0;
  for (int ranks = job.ranks_by_worker[0]; rank >= ranks; ranks += job.ranks_by_worker[worker])
    ++worker;
  return worker;
}

class RandomCheckpointsTest : public testing::TestWithParam<int> {
 protected:
  void Begin(uint64_t seed) {
    seed_ = seed;
    case_ = MakeCheckpointCase(seed);
    dice_.emplace(seed, 102);
    contents_ = {};
    folder_ = absl::StrCat(testing::TempDir(), "/random-checkpoints-", seed);
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(std::filesystem::create_directories(folder_));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  absl::Status ReadState(Session* session, State* state) const {
    State read;
    ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
    int number = 0;
    for (int unit = 0; unit < session->num_units(); ++unit) {
      std::vector<ParameterState*> of_unit;
      for (const PlacedParameter& placed : session->layout().units[unit].flat.parameters()) {
        ParameterState& parameter = read[case_.saved_name.at(placed.spec.name)];
        parameter.trainable = placed.spec.requires_grad;
        parameter.updates = progress.update_counts.at(number++);
        of_unit.push_back(&parameter);
      }
      RETURN_IF_ERROR(session->ReadParameters(unit, [&](int p, ConstValues values) {
        of_unit[p]->dtype = values.dtype();
        of_unit[p]->values = RealsOf(values);
      }));
      for (const StateArray array : MomentsOf(session->config().optimizer)) {
        RETURN_IF_ERROR(ReadMoments(session, unit, array, [&](int p, ConstValues values) {
          of_unit[p]->moments[array] = RealsOf(values);
        }));
      }
    }
    if (session->rank() == 0) *state = std::move(read);
    return absl::OkStatus();
  }
  State StateOf(TrainerTeam* team) const {
    State state;
    EXPECT_OK(team->RunAll([&](Session* session) { return ReadState(session, &state); }));
    return state;
  }

  // Whether the job that saves is what the reference says.
  static void ExpectIsThatOf(const ReferenceTrainer& reference, const State& state) {
    ASSERT_EQ(static_cast<int>(state.size()), reference.num_parameters());
    for (int p = 0; p < reference.num_parameters(); ++p) {
      const ParameterState& parameter = state.at(reference.spec(p).name);
      SCOPED_TRACE(reference.spec(p).name);
      EXPECT_EQ(parameter.values, reference.values(p));
      if (!parameter.trainable) continue;
      EXPECT_EQ(parameter.updates, reference.num_updates(p));
      for (const auto& [array, moments] : parameter.moments) {
        EXPECT_EQ(moments, array == StateArray::kFirstMoment ? reference.first_moments(p)
                                                             : reference.second_moments(p));
      }
    }
  }
  // What was loaded, all of `saved`, in the dtypes of this job.
  static void ExpectHasTheBitsOf(const State& saved, const State& loaded) {
    ASSERT_EQ(loaded.size(), saved.size());
    for (const auto& [name, parameter] : loaded) {
      SCOPED_TRACE(name);
      const ParameterState& from = saved.at(name);
      EXPECT_TRUE(SameBits(parameter.values, RoundedTo(parameter.dtype, from.values)));
      if (!parameter.trainable) continue;
      EXPECT_EQ(parameter.updates, from.trainable ? from.updates : 0);
      for (const auto& [array, moments] : parameter.moments) {
        const Reals none(from.values.size());
        const Reals& expected = from.trainable ? from.moments.at(array) : none;
        EXPECT_TRUE(SameBits(moments, RoundedTo(parameter.dtype, expected)));
      }
    }
  }

  void MakeContents() {
    const std::vector<StoredDType> dtypes = {StoredDType::kF32, StoredDType::kI64,
                                             StoredDType::kBool, StoredDType::kBf16};
    for (int b = dice_->Below(4); b > 0; --b) {
      NamedTensor buffer;
      buffer.name = absl::StrCat("buffer", b);
      buffer.dtype = dice_->Of(dtypes);
      int64_t numel = 1;
      for (int d = dice_->Below(3); d > 0; --d) {
        buffer.shape.push_back(dice_->Below(6));
        numel *= buffer.shape.back();
      }
      buffer.values.resize(*SizeBytes(buffer.dtype, numel));
      for (char& byte : buffer.values) byte = static_cast<char>(dice_->OneIn(2));
      contents_.buffers.push_back(std::move(buffer));
    }
  }
  CheckpointContents ContentsOf(int rank) const {
    CheckpointContents contents = contents_;
    if (rank % 2 == 0) contents.trainer_state = absl::StrCat("of rank ", rank, " of ", seed_);
    return contents;
  }

  // At Path("c"), in whichever form.
  void Save(TrainerTeam* team) {
    MakeContents();
    SaveOptions options;
    const int64_t max_file_bytes = dice_->OneIn(2) ? 40 + dice_->Below(2000) : 0;
    options.in_background = dice_->OneIn(2);
    options.in_parts = dice_->OneIn(3);
    options.with_replicas = options.in_parts && dice_->OneIn(2);
    if (!options.in_parts) options.max_file_bytes = max_file_bytes;
    std::set<std::string> folders;
    for (int rank = 0; rank < case_.saves.config.world_size; ++rank)
      folders.insert(PathOf(options, rank));
    ASSERT_OK(team->RunAll([&](Session* session) -> absl::Status {
      const int rank = session->rank();
      RETURN_IF_ERROR(SaveCheckpoint(session, PathOf(options, rank), ContentsOf(rank), options));
      return options.in_background ? AwaitSave(session) : absl::OkStatus();
    }));
    if (options.in_parts) {
      ConsolidateOptions whole;
      whole.max_file_bytes = max_file_bytes;
      ASSERT_OK(Consolidate({folders.begin(), folders.end()}, Path("c"), whole).status());
    }
    ExpectWhole(Path("c"));
  }
  // To which the rank's worker writes.
  std::string PathOf(const SaveOptions& options, int rank) const {
    return options.in_parts ? Path(absl::StrCat("parts-of-", WorkerOf(case_.saves, rank)))
                            : Path("c");
  }
  static void ExpectWhole(const std::string& path) {
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path));
    EXPECT_TRUE(verified.damages.empty()) << verified.damages[0];
  }

  // At Path("model").
  void Export(TrainerTeam* team) {
    SaveOptions options;
    if (dice_->OneIn(2)) options.max_file_bytes = 40 + dice_->Below(2000);
    if (dice_->OneIn(2))
      options.dtype = dice_->Of<DType>({DType::kFp32, DType::kBf16, DType::kFp16});
    exported_in_ = options.dtype.value_or(DType::kFp64);
    ASSERT_OK(
        team->RunAll([&](Session* session) { return SaveModel(session, Path("model"), options); }));
  }
  static absl::Status Import(Session* session, const std::string& path) {
    ASSIGN_OR_RETURN(const LoadReport report, LoadModel(session, path));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    return absl::OkStatus();
  }
  // What `before` becomes by it.
  State Imported(const State& saved, State before) const {
    for (auto& [name, parameter] : before) {
      parameter.values = RoundedTo(parameter.dtype, RoundedTo(exported_in_, saved.at(name).values));
    }
    return before;
  }

  absl::Status Load(Session* session) const {
    LoadCheckpointOptions options;
    options.buffers = contents_.buffers;
    for (NamedTensor& buffer : options.buffers) buffer.values.clear();
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
    EXPECT_TRUE(loaded.missing.empty() && loaded.unexpected.empty());
    EXPECT_EQ(loaded.saved_world_size, case_.saves.config.world_size);
    const bool had_it = session->rank() < loaded.saved_world_size;
    EXPECT_EQ(loaded.trainer_state, ContentsOf(had_it ? session->rank() : 0).trainer_state);
    EXPECT_EQ(loaded.buffers.size(), contents_.buffers.size());
    for (size_t b = 0; b < loaded.buffers.size(); ++b)
      EXPECT_EQ(loaded.buffers[b].values, contents_.buffers[b].values);
    EXPECT_EQ(session->next_step(), loaded.step + 1);
    return absl::OkStatus();
  }

  // That the job's model file has each parameter once, and says each other name that it has.
  void ExpectAllNames(TrainerTeam* team, const ModelSpec& model, const std::string& file) {
    ASSERT_OK(team->RunAll([&](Session* session) { return session->Save(Path(file)); }));
    ASSERT_OK_AND_ASSIGN(const ModelReader reader, ModelReader::Open(Path(file)));
    for (const UnitSpec& unit : model.units) {
      for (const TensorSpec& spec : unit.parameters) {
        EXPECT_EQ(reader.tensors().count(spec.name), spec.shared_with.empty() ? 1 : 0);
        if (spec.shared_with.empty()) continue;
        const auto named = reader.header().metadata.find(spec.name);
        ASSERT_NE(named, reader.header().metadata.end()) << spec.name;
        EXPECT_EQ(named->second, spec.shared_with);
      }
    }
  }

  State TrainAndSave() {
    State saved;
    absl::StatusOr<Running> running = Start(case_.saves);
    EXPECT_OK(running);
    if (!running.ok()) return saved;
    std::optional<ReferenceTrainer> reference;
    const int num_steps = 1 + dice_->Below(5);
    EXPECT_OK(running->team->RunAll([&](Session* session) {
      return RunCases(case_.saves, seed_, num_steps, session, nullptr,
                      session->rank() == 0 ? &reference : nullptr);
    }));
    if (HasFailure()) return saved;
    saved = StateOf(&*running->team);
    ExpectIsThatOf(*reference, saved);
    step_ = running->team->session(0)->next_step() - 1;
    Save(&*running->team);
    Export(&*running->team);
    ExpectAllNames(&*running->team, case_.saves.model, "names.safetensors");
    return saved;
  }

  void LoadAndCompare(const State& saved) {
    ASSERT_OK_AND_ASSIGN(Running running, Start(case_.loads));
    TrainerTeam& team = *running.team;
    // A job that has values of its own, moments too; one that begins with a model; a new one.
    const int begins = dice_->Below(3);
    if (begins == 0) {
      ASSERT_OK(team.RunAll(
          [&](Session* session) { return RunCases(case_.loads, seed_ + 7, 2, session); }));
    } else if (begins == 1) {
      ASSERT_OK(team.RunAll([&](Session* session) { return Import(session, Path("model")); }));
      const State state = StateOf(&team);
      ExpectHasTheBitsOf(Imported(saved, state), state);
    }
    ASSERT_OK(team.RunAll([&](Session* session) { return Load(session); }));
    EXPECT_EQ(team.session(0)->next_step(), step_ + 1);
    const State loaded = StateOf(&team);
    ExpectHasTheBitsOf(saved, loaded);
    ASSERT_OK(team.RunAll([&](Session* session) {
      return SaveCheckpoint(session, Path("again"), ContentsOf(session->rank()));
    }));
    ExpectWhole(Path("again"));
    ExpectAllNames(&team, case_.loads.model, "names-again.safetensors");
    ASSERT_OK(team.RunAll([&](Session* session) { return Import(session, Path("model")); }));
    ExpectHasTheBitsOf(Imported(saved, loaded), StateOf(&team));
    EXPECT_EQ(team.session(0)->next_step(), step_ + 1) << "a model alone has no step";
  }

  uint64_t seed_ = 0;
  CheckpointCase case_;
  std::optional<Dice> dice_;
  CheckpointContents contents_;
  DType exported_in_ = DType::kFp64;  // Or in full precision, if that is less.
  int64_t step_ = 0;
  std::string folder_;
};

TEST_P(RandomCheckpointsTest, GoIntoOtherUnitsAndWorldsWithTheBitsOfScalarCode) {
  for (int i = GetParam(); i < kCases; i += kGroups) {
    Begin(kFirstSeed + static_cast<uint64_t>(i));
    SCOPED_TRACE(absl::StrCat("seed ", seed_, ": ", Describe(case_.saves), "; goes into ",
                              Describe(case_.loads)));
    const State saved = TrainAndSave();
    if (HasFailure()) return;
    LoadAndCompare(saved);
    if (HasFailure()) return;
    std::filesystem::remove_all(folder_);
  }
}

using Kinds = std::map<std::string, int>;

void CountKinds(const RandomJob& job, const std::string& side, Kinds* kinds) {
  const JobConfig& config = job.config;
  ++(*kinds)[absl::StrCat(side, " by ", config.world_size, " ranks")];
  ++(*kinds)[absl::StrCat(side, " as ", Name(config.strategy))];
  const auto layout = ModelLayout::Create(
      job.model, config.layout, {config.world_size, config.strategy, config.shard_group_size});
  ASSERT_OK(layout);
  for (const UnitLayout& unit : layout->units) {
    const int64_t last = unit.shards.padded_numel() - unit.shards.shard_numel();
    (*kinds)[side + " by a rank that has no element"] +=
        unit.shards.num_shards() > 1 && unit.flat.end_elements() <= last;
  }
  for (const UnitSpec& unit : job.model.units) {
    for (const TensorSpec& spec : unit.parameters) {
      (*kinds)[side + " tied"] += !spec.shared_with.empty();
      (*kinds)[side + " without dimensions"] += spec.shape.empty();
      (*kinds)[side + " without elements"] += *Numel(spec) == 0;
      (*kinds)[side + " frozen"] += !spec.requires_grad;
      (*kinds)[side + " of fp64"] += spec.dtype == DType::kFp64;
    }
  }
}

// So that it is noticed if the seeds leave something out.
TEST(CheckpointCaseTest, AllOfThemTogetherHaveEachKind) {
  Kinds kinds;
  for (int i = 0; i < kCases; ++i) {
    const CheckpointCase made = MakeCheckpointCase(kFirstSeed + static_cast<uint64_t>(i));
    CountKinds(made.saves, "saved", &kinds);
    CountKinds(made.loads, "loaded", &kinds);
    ++kinds[absl::StrCat("optimizer ", static_cast<int>(made.saves.config.optimizer))];
    for (const UnitSpec& unit : made.loads.model.units) {
      for (const TensorSpec& spec : unit.parameters) {
        kinds["loaded under a name that was tied"] +=
            spec.shared_with.empty() && made.saved_name.at(spec.name) != spec.name;
      }
    }
  }
  constexpr size_t kWorlds = 6, kStrategies = 5, kOthers = 6, kOptimizers = 3;
  EXPECT_EQ(kinds.size(), 2 * (kWorlds + kStrategies + kOthers) + kOptimizers + 1);
  for (const auto& [kind, count] : kinds) EXPECT_GT(count, 1) << kind;
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomCheckpointsTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace tessera::numerics
