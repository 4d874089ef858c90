// Where loaded state comes from, and what is refused: SD-4, SD-16, SD-18, SD-21, DCP1-1, DSD2-7.
#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/state_exchange.h"
#include "tests/conformance/fsdp/state_dict_fixture.h"

namespace tessera::conformance {
namespace {

using testing::HasSubstr;

std::shared_ptr<Nested> MakeNested() { return std::make_shared<Nested>(); }
// Other values.
std::shared_ptr<Nested> MakeOther() {
  auto model = MakeNested();
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) parameter.mul_(-2).add_(1);
  return model;
}

class LoadStateTest : public StateDictTest {};

// DCP1-1, SD-16, DCP2-1 (the same ranks), DSD-2: by way of a file of each rank.
TEST_F(LoadStateTest, ModelOfOtherValuesAndUnitsTakesWhatAnotherOneSaved) {
  for (const StateDictType type : {StateDictType::kLocal, StateDictType::kSharded}) {
    std::vector<std::string> files(2);
    Tensors saved;
    OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
      Train(rank, 1);
      const Tensors whole = Whole(rank);
      if (rank.rank == 0) saved = whole;
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
      std::vector<torch::Tensor> tensors;
      for (const auto& item : dict) tensors.push_back(item.value().tensor);
      std::ostringstream out;
      torch::save(tensors, out);
      files[rank.rank] = out.str();
    });
    Job<Nested> job = {MakeOther, 2, NestedUnits()};
    // Rows know no units.
    if (type == StateDictType::kSharded) job.policy = ManyUnits();
    OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
      EXPECT_FALSE(torch::equal(Whole(rank).at("2.weight"), saved.at("2.weight")));
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
      std::istringstream in(files[rank.rank]);
      std::vector<torch::Tensor> tensors;
      torch::load(tensors, in);
      ASSERT_EQ(tensors.size(), dict.size());
      size_t i = 0;
      for (auto& item : dict) item.value().tensor = tensors[i++];
      ASSERT_OK(rank.states->Load(*rank.model, dict));
      ExpectEqual(Whole(rank), saved);
    });
  }
}

// SD-21: parts of four ranks, put together and cut for two.
TEST_F(LoadStateTest, PartsOfFourRanksAreCutAnewForTwo) {
  for (const StateDictType type : {StateDictType::kLocal, StateDictType::kSharded}) {
    std::vector<StateDict> parts(4);
    Tensors saved;
    OnRanks<Nested>({MakeNested, 4, NestedUnits()}, [&](Trainer<Nested>& rank) {
      Train(rank, 1);
      const Tensors whole = Whole(rank);
      if (rank.rank == 0) saved = whole;
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(parts[rank.rank], rank.states->Get(*rank.model));
    });
    OnRanks<Nested>({MakeOther, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
      for (auto& item : dict) {
        std::vector<torch::Tensor> tensors;
        for (const StateDict& part : parts) tensors.push_back(part[item.key()].tensor);
        StateEntry& entry = item.value();
        entry.tensor = torch::cat(tensors).narrow(0, entry.begin, entry.tensor.size(0));
      }
      ASSERT_OK(rank.states->Load(*rank.model, dict));
      ExpectEqual(Whole(rank), saved);
    });
  }
}

// SD-4.
TEST_F(LoadStateTest, RankZerosStateReachesAllThroughAPlainModelThatIsAttached) {
  StateDict saved;
  Tensors trained;
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    Train(rank, 2);
    ASSERT_OK(rank.states->types().Set(*rank.model,
                                       {StateDictType::kFull, FullStateDictConfig{true, true}}));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    const Tensors whole = Whole(rank);
    if (rank.rank != 0) return;
    saved = dict;
    trained = whole;
  });
  const SessionOptions options = Options(2);
  ForEachRank(2, [&](int r) {
    auto model = MakeOther();
    if (r == 0) {
      const torch::NoGradGuard no_grad;
      for (auto& item : model->named_parameters()) item.value().copy_(saved[item.key()].tensor);
    }
    AttachOptions attach;
    attach.sync_module_states = true;
    SessionOptions of_rank = options;
    of_rank.rank = r;
    ASSERT_OK_AND_ASSIGN(const auto sharded,
                         ShardedModel::Attach(model, of_rank, NestedUnits(), attach));
    ExpectEqual(WholeParameters(sharded.get(), *model), trained);
  });
}

// DSD2-7, with buffers.
TEST_F(LoadStateTest, OfRankZeroAloneItReachesEveryRankBuffersToo) {
  const auto make = [] { return std::make_shared<Transformer>(); };
  OnRanks<Transformer>({make, 3}, [&](Trainer<Transformer>& rank) {
    Train(rank, 1);
    const Tensors trained = Whole(rank);
    ASSERT_OK(rank.states->types().Set(*rank.model,
                                       {StateDictType::kFull, FullStateDictConfig{true, true}}));
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    if (rank.rank == 0) dict["calls"].tensor = torch::full_like(dict["calls"].tensor, 12);
    Fill(rank, 0);
    LoadStateOptions options;
    options.from_rank0 = true;
    ASSERT_OK(rank.states->Load(*rank.model, dict, options));
    ExpectEqual(Whole(rank), trained);
    EXPECT_EQ(rank.model->calls.max().item<int64_t>(), 12);
  });
}

TEST_F(LoadStateTest, KeyThatRankZeroLacksIsEveryRanksErrorAndNothingIsSet) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    const Tensors before = Whole(rank);
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    for (auto& item : dict) item.value().tensor = item.value().tensor + 1;
    if (rank.rank == 0) dict.erase("2.bias");
    LoadStateOptions options;
    options.from_rank0 = true;
    EXPECT_THAT(rank.states->Load(*rank.model, dict, options),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing keys '2.bias'")));
    ExpectEqual(Whole(rank), before);
    // Not strict, the report is every rank's too.
    options.strict = false;
    ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                         rank.states->Load(*rank.model, dict, options));
    EXPECT_EQ(report.missing, std::vector<std::string>({"2.bias"}));
    const Tensors after = Whole(rank);
    EXPECT_TRUE(torch::equal(after.at("2.bias"), before.at("2.bias")));
    EXPECT_TRUE(torch::equal(after.at("2.weight"), before.at("2.weight") + 1));
  });
}

// SD-18.
TEST_F(LoadStateTest, MissingAndUnexpectedKeysAreReportedUnderTheModulesNames) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
      dict.insert("stranger", dict["1.0.bias"]);
      dict.erase("1.0.bias");
      EXPECT_THAT(rank.states->Load(*rank.model, dict),
                  StatusIs(absl::StatusCode::kNotFound,
                           HasSubstr("missing keys '1.0.bias'; unexpected keys 'stranger'")));
      LoadStateOptions options;
      options.strict = false;
      ASSERT_OK_AND_ASSIGN(const LoadStateReport report,
                           rank.states->Load(*rank.model, dict, options));
      EXPECT_EQ(report.missing, std::vector<std::string>({"1.0.bias"}));
      EXPECT_EQ(report.unexpected, std::vector<std::string>({"stranger"}));
    }
  });
}

TEST_F(LoadStateTest, WrongShapeOnOneRankIsEveryRanksErrorByNameAndNothingIsSet) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    const Tensors before = Whole(rank);
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    for (auto& item : dict) item.value().tensor = item.value().tensor + 1;
    if (rank.rank == 1) dict["2.weight"] = StateEntry::Whole(torch::ones({4, 15}));
    EXPECT_THAT(rank.states->Load(*rank.model, dict),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("'2.weight': its shape is [4, 15], that of the model [4, 16]")));
    ExpectEqual(Whole(rank), before);
  });
}

TEST_F(LoadStateTest, EntriesOfAnotherTypeAreRefusedByName) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    ASSERT_OK_AND_ASSIGN(const StateDict full, rank.states->Get(*rank.model));
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kSharded}));
    EXPECT_THAT(
        rank.states->Load(*rank.model, full),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'0.weight': it is a whole")));
    LoadStateOptions options;
    options.from_rank0 = true;
    EXPECT_THAT(rank.states->Load(*rank.model, full, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SHARDED_STATE_DICT")));
  });
}

TEST_F(LoadStateTest, DictionariesOfDifferentKeysAreEveryRanksError) {
  OnRanks<Nested>({MakeNested, 3, NestedUnits()}, [&](Trainer<Nested>& rank) {
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    if (rank.rank == 2) dict.erase("3.weight");
    LoadStateOptions options;
    options.strict = false;
    EXPECT_THAT(rank.states->Load(*rank.model, dict, options),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks 0 and 2")));
  });
}

// E2E-2.
TEST_F(LoadStateTest, OrderOfKeysMayDifferFromRankToRank) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kSharded}));
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    std::vector<std::string> keys = dict.keys();
    if (rank.rank == 1) std::reverse(keys.begin(), keys.end());
    StateDict ordered;
    for (const std::string& key : keys) ordered.insert(key, dict[key]);
    const Tensors before = Whole(rank);
    Fill(rank, 0);
    ASSERT_OK(rank.states->Load(*rank.model, ordered));
    ExpectEqual(Whole(rank), before);
  });
}

// E2E-3, E2E-7.
TEST_F(LoadStateTest, ModuleOfTheTreeIsLoadedAloneAndTheRestStays) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
      Fill(rank, 1);
      ASSERT_OK(rank.states->types().Set(*rank.model, {type}));
      ASSERT_OK_AND_ASSIGN(const StateDict inner, rank.states->Get(*rank.model->inner));
      Fill(rank, 2);
      ASSERT_OK(rank.states->Load(*rank.model->inner, inner));
      for (const auto& [name, tensor] : Whole(rank)) {
        EXPECT_EQ(tensor.min().item<float>(), name.rfind("1.", 0) == 0 ? 1 : 2) << name;
        EXPECT_EQ(tensor.min().item<float>(), tensor.max().item<float>()) << name;
      }
    }
  });
}

TEST_F(LoadStateTest, ModuleOfAUnitOfSeveralHasTheWholeUnitsPart) {
  Job<Nested> job = {MakeNested, 2};
  job.policy = WrapTogether({{"0", "2"}}, WrapIf([](const WrapCandidate&) { return false; }));
  OnRanks<Nested>(job, [&](Trainer<Nested>& rank) {
    ASSERT_OK(rank.states->types().Set(*rank.model, {StateDictType::kLocal}));
    Fill(rank, 1);
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model->middle));
    ASSERT_EQ(dict.size(), 1);
    Fill(rank, 2);
    ASSERT_OK(rank.states->Load(*rank.model->middle, dict));
    for (const auto& [name, tensor] : Whole(rank)) {
      const bool in_unit = name[0] == '0' || name[0] == '2';
      EXPECT_EQ(tensor.min().item<float>(), in_unit ? 1 : 2) << name;
      EXPECT_EQ(tensor.max().item<float>(), in_unit ? 1 : 2) << name;
    }
  });
}

TEST_F(LoadStateTest, WithinAStepItIsRefused) {
  OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
    ASSERT_OK_AND_ASSIGN(const StateDict dict, rank.states->Get(*rank.model));
    ASSERT_OK(rank.sharded->RunStep([&] {
      EXPECT_OK(rank.states->Get(*rank.model));
      EXPECT_THAT(rank.states->Load(*rank.model, dict),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within a step")));
      LossOf(*rank.model, 1, rank.rank).backward();
      return rank.sharded->Step();
    }));
  });
}

// A sparse tensor has the right shape; that it cannot be copied is only found on the way.
TEST_F(LoadStateTest, TensorThatOneRankCannotConvertIsEveryRanksErrorAndNothingIsSet) {
  for (const bool from_rank0 : {true, false}) {
    SCOPED_TRACE(from_rank0);
    const int broken = from_rank0 ? 0 : 1;
    std::vector<absl::Status> statuses(2);
    OnRanks<Nested>({MakeNested, 2, NestedUnits()}, [&](Trainer<Nested>& rank) {
      const Tensors before = Whole(rank);
      ASSERT_OK_AND_ASSIGN(const StateDict whole, rank.states->Get(*rank.model));
      StateDict dict = whole;
      for (auto& item : dict) item.value().tensor = item.value().tensor + 1;
      if (rank.rank == broken) {
        torch::Tensor& tensor = dict[dict.keys().back()].tensor;
        tensor = tensor.to_sparse();
      }
      LoadStateOptions options;
      options.from_rank0 = from_rank0;
      statuses[rank.rank] = rank.states->Load(*rank.model, dict, options).status();
      ExpectEqual(Whole(rank), before);
      ASSERT_OK(rank.states->Load(*rank.model, whole, options));
    });
    // Neither the deadline's nor the other process's end.
    EXPECT_THAT(statuses[broken], StatusIs(absl::StatusCode::kUnknown, HasSubstr("parse")));
    EXPECT_THAT(statuses[1 - broken],
                StatusIs(absl::StatusCode::kUnknown,
                         HasSubstr(std::string(statuses[broken].message().substr(0, 40)))));
  }
}

TEST_F(LoadStateTest, BufferThatRankZeroCannotConvertIsEveryRanksError) {
  const auto make = [] { return std::make_shared<Transformer>(); };
  OnRanks<Transformer>({make, 2}, [&](Trainer<Transformer>& rank) {
    ASSERT_OK_AND_ASSIGN(StateDict dict, rank.states->Get(*rank.model));
    dict["calls"].tensor = torch::ones_like(dict["calls"].tensor).to_sparse();
    LoadStateOptions options;
    options.from_rank0 = true;
    EXPECT_THAT(rank.states->Load(*rank.model, dict, options),
                StatusIs(absl::StatusCode::kUnknown, HasSubstr("parse")));
    Train(rank, 1);
  });
}

// What a rank 0 sends of which only the names, sizes and values of other states matter here.
absl::Status SendStates(Session* session, const std::string& name, int64_t size_bytes,
                        char* values) {
  StateExchange exchange(session);
  RETURN_IF_ERROR(exchange.AgreeOn(absl::OkStatus()));
  std::vector<char> given;
  for (const UnitLayout& unit : session->layout().units)
    given.resize(given.size() + unit.flat.parameters().size());
  RETURN_IF_ERROR(exchange.Share(absl::MakeSpan(given)));
  std::vector<std::string> missing, unexpected, names = {name};
  RETURN_IF_ERROR(exchange.Share(&missing));
  RETURN_IF_ERROR(exchange.Share(&unexpected));
  RETURN_IF_ERROR(exchange.Share(&names));
  std::vector<int64_t> sizes = {size_bytes};
  RETURN_IF_ERROR(exchange.Share(&sizes));
  RETURN_IF_ERROR(exchange.AgreeOn(absl::OkStatus()));
  return exchange.Share(size_bytes, values);
}

TEST_F(LoadStateTest, SizeThatCannotBeIsRefusedByNameOnEveryRankBeforeMemoryIsMade) {
  const auto make = [] { return std::make_shared<Transformer>(); };
  OnRanks<Transformer>({make, 2}, [&](Trainer<Transformer>& rank) {
    for (const char* name : {"calls", "which only rank 0 has"}) {
      for (const int64_t size_bytes : {int64_t{-1}, int64_t{1} << 60}) {
        LoadStateOptions options;
        options.from_rank0 = true;
        const absl::Status status =
            rank.rank == 0 ? SendStates(&rank.sharded->session(), name, size_bytes, nullptr)
                           : rank.states->Load(*rank.model, StateDict(), options).status();
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr(absl::StrCat("'", name, "': rank 0 announced ",
                                                            size_bytes, " bytes"))));
      }
    }
    Train(rank, 1);
  });
}

TEST_F(LoadStateTest, StateThatOnlyRankZeroHasIsDroppedByTheOthers) {
  const auto make = [] { return std::make_shared<Transformer>(); };
  OnRanks<Transformer>({make, 2}, [&](Trainer<Transformer>& rank) {
    const Tensors before = Whole(rank);
    std::string values((3 << 20) + 5, 'x');  // Several pieces.
    LoadStateOptions options;
    options.from_rank0 = true;
    ASSERT_OK(rank.rank == 0
                  ? SendStates(&rank.sharded->session(), "more", values.size(), values.data())
                  : rank.states->Load(*rank.model, StateDict(), options).status());
    ExpectEqual(Whole(rank), before);
  });
}

}  // namespace
}  // namespace tessera::conformance
