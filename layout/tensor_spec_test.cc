#include "layout/tensor_spec.h"

#include <limits>
#include <utility>

#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(DTypeTest, NamesParseBackAndPyTorchNamesAreUnderstood) {
  for (DType dtype :
       {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64, DType::kInt64, DType::kInt32}) {
    ASSERT_OK_AND_ASSIGN(const DType parsed, ParseDType(Name(dtype)));
    EXPECT_EQ(parsed, dtype);
  }
  EXPECT_EQ(ParseDType("float32").value(), DType::kFp32);
  EXPECT_EQ(ParseDType("bfloat16").value(), DType::kBf16);
  EXPECT_EQ(ParseDType("half").value(), DType::kFp16);
  EXPECT_EQ(ParseDType("double").value(), DType::kFp64);
}

TEST(DTypeTest, UnknownNameIsRefusedByName) {
  EXPECT_THAT(ParseDType("fp31"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"fp31\"")));
  EXPECT_THAT(ParseDType(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("known are")));
}

TEST(NumelTest, ScalarHasOneElementAndAZeroDimensionNone) {
  EXPECT_EQ(Numel(MakeSpec("w", {})).value(), 1);
  EXPECT_EQ(Numel(MakeSpec("w", {3, 7})).value(), 21);
  EXPECT_EQ(Numel(MakeSpec("w", {3, 0, 7})).value(), 0);
  EXPECT_EQ(Numel(MakeSpec("w", {kMax, kMax, 0})).value(), 0);
}

TEST(NumelTest, OverflowAndNegativeDimensionsAreInvalid) {
  EXPECT_THAT(Numel(MakeSpec("w", {int64_t{1} << 32, int64_t{1} << 31})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"w\"")));
  EXPECT_THAT(Numel(MakeSpec("w", {0, -1})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative")));
}

// A model of two units with one change each, and what the error must say.
struct InvalidModel {
  const char* promise;
  void (*change)(ModelSpec*);
  const char* fragment;
};

ModelSpec ValidModel() {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("embed", {4, 3}), MakeSpec("head", {4, 3})}});
  model.units.back().parameters[1].shared_with = "embed";
  model.units.push_back({"block", {MakeSpec("w", {3, 3}), MakeSpec("b", {3})}});
  model.buffers = {{"mean", StoredDType::kF64, {3}}, {"count", StoredDType::kI64, {}}};
  return model;
}

class ValidateModelTest : public testing::TestWithParam<InvalidModel> {};

TEST_P(ValidateModelTest, ErrorNamesTheCulprit) {
  ModelSpec model = ValidModel();
  ASSERT_OK(ValidateModel(model));
  GetParam().change(&model);
  EXPECT_THAT(ValidateModel(model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().fragment)));
}

// FLAT-2: nothing to flatten. A0.2: integer dtype, non-uniform dtype.
const InvalidModel kInvalidModels[] = {
    {"NoUnit", [](ModelSpec* m) { m->units.clear(); }, "no unit"},
    {"EmptyUnit", [](ModelSpec* m) { m->units[1].parameters.clear(); },
     "unit \"block\": has no parameters"},
    {"UnnamedUnit", [](ModelSpec* m) { m->units[1].name = ""; }, "unit has no name"},
    {"UnnamedParameter", [](ModelSpec* m) { m->units[1].parameters[1].name = ""; },
     "unit \"block\": a parameter has no name"},
    {"TwiceInAUnit", [](ModelSpec* m) { m->units[1].parameters[1].name = "w"; },
     "unit \"block\", parameter \"w\": the name is used twice"},
    {"InTwoUnits", [](ModelSpec* m) { m->units[1].parameters[1].name = "embed"; },
     "unit \"block\", parameter \"embed\": unit \"root\" has it too"},
    {"TwoUnitsOfOneName", [](ModelSpec* m) { m->units[1].name = "root"; }, "unit \"root\""},
    {"IntegerDType", [](ModelSpec* m) { m->units[1].parameters[0].dtype = DType::kInt64; },
     "unit \"block\", parameter \"w\": integer dtype int64"},
    {"MixedDTypes", [](ModelSpec* m) { m->units[1].parameters[1].dtype = DType::kBf16; },
     "unit \"block\", parameter \"b\": dtype bf16 differs from fp32"},
    {"UnknownPrimary", [](ModelSpec* m) { m->units[1].parameters[1].shared_with = "embed"; },
     "parameter \"b\": shared with \"embed\", which is not an earlier primary"},
    {"SharedWithItself", [](ModelSpec* m) { m->units[1].parameters[1].shared_with = "b"; },
     "shared with \"b\""},
    {"SharedWithAnAlias",
     [](ModelSpec* m) {
       m->units[0].parameters.push_back(MakeSpec("tail", {4, 3}));
       m->units[0].parameters.back().shared_with = "head";
     },
     "parameter \"tail\": shared with \"head\""},
    {"OtherShape",
     [](ModelSpec* m) {
       m->units[0].parameters[1].shape = {3, 4};
     },
     "parameter \"head\": shape [3, 4] differs from shape [4, 3] of \"embed\""},
    {"OtherRequiresGrad", [](ModelSpec* m) { m->units[0].parameters[1].requires_grad = false; },
     "parameter \"head\": requires_grad differs"},
    {"NegativeDimension", [](ModelSpec* m) { m->units[1].parameters[0].shape = {-3}; },
     "unit \"block\": parameter \"w\": negative dimension"},
    {"ProductOverflows",
     [](ModelSpec* m) {
       m->units[1].parameters[0].shape = {kMax, 2};
     },
     "more elements than int64"},
    {"SumOverflows", [](ModelSpec* m) { m->units[1].parameters[0].shape = {kMax}; },
     "unit \"block\", parameter \"b\": the unit's total size overflows"},
    {"UnnamedBuffer", [](ModelSpec* m) { m->buffers[1].name = ""; }, "a buffer has no name"},
    {"BufferTwice", [](ModelSpec* m) { m->buffers[1].name = "mean"; },
     "buffer \"mean\": the name is used twice"},
    {"BufferOfAParametersName", [](ModelSpec* m) { m->buffers[1].name = "w"; },
     "buffer \"w\": the name is used twice"},
    {"BufferOfAnAliasName", [](ModelSpec* m) { m->buffers[1].name = "head"; },
     "buffer \"head\": the name is used twice"},
    {"BufferOfPartsOfBytes", [](ModelSpec* m) { m->buffers[0].dtype = StoredDType::kF4; },
     "buffer \"mean\": elements of F4 end within a byte"},
    {"NegativeDimensionOfABuffer", [](ModelSpec* m) { m->buffers[0].shape = {-1}; },
     "buffer \"mean\": negative dimension"},
    {"BytesOfABufferOverflow", [](ModelSpec* m) { m->buffers[0].shape = {kMax / 8}; },
     "buffer \"mean\": shape"},
    {"BytesOfBuffersOverflow",
     [](ModelSpec* m) {
       m->buffers[0].shape = {kMax / 65};
       m->buffers.resize(10, m->buffers[0]);
       for (size_t i = 1; i < m->buffers.size(); ++i) m->buffers[i].name = std::string(i, 'x');
     },
     "the buffers' size overflows"},
};

INSTANTIATE_TEST_SUITE_P(All, ValidateModelTest, testing::ValuesIn(kInvalidModels),
                         [](const auto& info) { return std::string(info.param.promise); });

TEST(ValidateModelDetailTest, RequiresGradMayDifferWithinAUnit) {
  ModelSpec model = ValidModel();
  model.units[1].parameters[0].requires_grad = false;
  EXPECT_OK(ValidateModel(model));
}

TEST(ValidateModelDetailTest, ControlCharactersInNamesAreEscapedInErrors) {
  ModelSpec model = ValidModel();
  model.units[1].name = "a\nb";
  model.units[1].parameters.clear();
  EXPECT_THAT(ValidateModel(model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\\nb\"")));
}

TEST(CompareModelsDetailTest, EqualModelsCompareOk) {
  EXPECT_OK(CompareModels(ValidModel(), "rank 0", ValidModel(), "rank 1"));
}

struct Difference {
  const char* promise;
  void (*change)(ModelSpec*);
  const char* where;
  const char* side_a;
  const char* side_b;
};

class CompareModelsTest : public testing::TestWithParam<Difference> {};

TEST_P(CompareModelsTest, SaysWhereAndWhatEachRankHas) {
  ModelSpec changed = ValidModel();
  GetParam().change(&changed);
  EXPECT_THAT(CompareModels(ValidModel(), "rank 0", changed, "rank 2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(GetParam().where), HasSubstr(GetParam().side_a),
                             HasSubstr(GetParam().side_b))));
}

const Difference kDifferences[] = {
    {"Shape",
     [](ModelSpec* m) {
       m->units[1].parameters[0].shape = {3, 4};
     },
     "unit 1 (\"block\"), parameter \"w\"", "rank 0: shape [3, 3]", "rank 2: shape [3, 4]"},
    {"DType", [](ModelSpec* m) { m->units[1].parameters[1].dtype = DType::kBf16; },
     "parameter \"b\"", "rank 0: shape [3], dtype fp32", "rank 2: shape [3], dtype bf16"},
    {"RequiresGrad", [](ModelSpec* m) { m->units[1].parameters[1].requires_grad = false; },
     "parameter \"b\"", "requires_grad true", "requires_grad false"},
    {"Sharing", [](ModelSpec* m) { m->units[0].parameters[1].shared_with.clear(); },
     "parameter \"head\"", "shared with \"embed\", rank 2", "rank 2: shape [4, 3]"},
    {"UnitDType", [](ModelSpec* m) { m->units[1].compute_dtype = DType::kBf16; },
     "unit 1 (\"block\"), options", "rank 0: compute the job's, reduce the job's",
     "rank 2: compute bf16, reduce the job's"},
    {"UnitStrategy", [](ModelSpec* m) { m->units[1].strategy = Strategy::kNoShard; },
     "unit 1 (\"block\"), options", "strategy the job's, rank 2", "strategy NO_SHARD"},
    {"ParameterName", [](ModelSpec* m) { m->units[1].parameters[0].name = "v"; },
     "unit 1 (\"block\"), parameter 0", "rank 0: \"w\"", "rank 2: \"v\""},
    {"MissingParameter", [](ModelSpec* m) { m->units[1].parameters.pop_back(); },
     "unit 1 (\"block\"), parameter \"b\"", "rank 0: 2 parameters", "rank 2: 1 parameters"},
    {"UnitName", [](ModelSpec* m) { m->units[1].name = "blok"; }, "the name of unit 1",
     "rank 0: \"block\"", "rank 2: \"blok\""},
    {"MissingUnit", [](ModelSpec* m) { m->units.pop_back(); }, "unit \"block\"", "rank 0: 2 units",
     "rank 2: 1 units"},
    {"BufferDType", [](ModelSpec* m) { m->buffers[0].dtype = StoredDType::kF32; }, "buffer 0",
     "rank 0: \"mean\" of shape [3], dtype F64", "rank 2: \"mean\" of shape [3], dtype F32"},
    {"BufferShape", [](ModelSpec* m) { m->buffers[1].shape = {1}; }, "buffer 1", "shape []",
     "shape [1]"},
    {"MissingBuffer", [](ModelSpec* m) { m->buffers.pop_back(); }, "buffer 1", "rank 0: \"count\"",
     "rank 2: none"},
};

INSTANTIATE_TEST_SUITE_P(All, CompareModelsTest, testing::ValuesIn(kDifferences),
                         [](const auto& info) { return std::string(info.param.promise); });

}  // namespace
}  // namespace tessera
