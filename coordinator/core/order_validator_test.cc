#include "coordinator/core/order_validator.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobSpecPtr Spec() {
  auto spec = std::make_shared<JobSpec>();
  for (const char* unit : {"root", "b0", "b1"}) {
    UnitSpec& added = spec->model.units.emplace_back();
    added.name = unit;
    for (const char* name : {".q", ".k", ".v", ".o", ".n"}) {
      added.parameters.emplace_back().name = std::string(unit) + name;
    }
  }
  return spec;
}

OrderEntry Entry(const std::string& operation, int64_t unit, int64_t count = 64) {
  return {operation, UnitId(unit), DType::kBf16, count};
}

OrderPosition At(int64_t step, int64_t sequence) { return {Step(step), sequence}; }

class OrderValidatorTest : public ::testing::Test {
 protected:
  // Both ranks do "unshard" of units 0, 1, 2 in `step`.
  void Record(int64_t step) {
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_THAT(order_.Announce(Rank(0), At(step, i), Entry("unshard", i)).released, IsEmpty());
      EXPECT_THAT(order_.Announce(Rank(1), At(step, i), Entry("unshard", i)).released,
                  ElementsAre(Rank(0), Rank(1)));
    }
    order_.Finished(Rank(0), Step(step));
    order_.Finished(Rank(1), Step(step));
  }

  OrderValidator order_{2, Spec()};
};

TEST_F(OrderValidatorTest, ReleasesWhenAllAnnouncedTheSame) {
  EXPECT_THAT(order_.Announce(Rank(1), At(1, 0), Entry("unshard", 1)).released, IsEmpty());
  const OrderVerdict verdict = order_.Announce(Rank(0), At(1, 0), Entry("unshard", 1));
  EXPECT_THAT(verdict.released, ElementsAre(Rank(0), Rank(1)));
  EXPECT_EQ(verdict.position, At(1, 0));
  EXPECT_EQ(verdict.recorded, Entry("unshard", 1));
  EXPECT_EQ(order_.num_recorded(), 1);
}

TEST_F(OrderValidatorTest, DifferentEntriesNameRanksUnitsParametersAndPosition) {
  order_.Announce(Rank(1), At(4, 17), Entry("unshard", 1));
  const OrderVerdict verdict = order_.Announce(Rank(0), At(4, 17), Entry("reduce", 2));
  EXPECT_THAT(verdict.released, IsEmpty());
  ASSERT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(*verdict.mismatch,
              AllOf(HasSubstr("step 4, position 17"),
                    HasSubstr("rank 1 is about to unshard unit 'b0' (parameters b0.q, b0.k, b0.v "
                              "and 2 more; bf16, 64 elements)"),
                    HasSubstr("rank 0 is about to reduce unit 'b1'")));
}

TEST_F(OrderValidatorTest, AnyFieldOfAnEntryMakesADifference) {
  const OrderEntry base = Entry("unshard", 1);
  OrderEntry other_dtype = base;
  other_dtype.dtype = DType::kFp32;
  for (const OrderEntry& other :
       {Entry("reduce", 1), Entry("unshard", 2), Entry("unshard", 1, 65), other_dtype}) {
    OrderValidator order(2, Spec());
    order.Announce(Rank(0), At(1, 0), base);
    EXPECT_TRUE(order.Announce(Rank(1), At(1, 0), other).mismatch.has_value());
  }
}

TEST_F(OrderValidatorTest, RepeatedAnnouncementIsReleasedAgain) {
  Record(1);
  EXPECT_THAT(order_.Announce(Rank(0), At(1, 2), Entry("unshard", 2)).released,
              ElementsAre(Rank(0)));
  order_.Announce(Rank(0), At(1, 3), Entry("reduce", 0));
  EXPECT_THAT(order_.Announce(Rank(0), At(1, 3), Entry("reduce", 0)).released, IsEmpty());
}

TEST_F(OrderValidatorTest, RankThatContradictsWhatItAgreedToIsFoundAtOnce) {
  Record(1);
  const OrderVerdict verdict = order_.Announce(Rank(0), At(1, 2), Entry("reduce", 2));
  ASSERT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(*verdict.mismatch, HasSubstr("rank 1 agreed with all to unshard unit 'b1'"));
}

TEST_F(OrderValidatorTest, NothingIsReleasedAfterAMismatch) {
  OrderValidator order(3, Spec());
  order.Announce(Rank(0), At(1, 0), Entry("unshard", 0));
  EXPECT_TRUE(order.Announce(Rank(1), At(1, 0), Entry("reduce", 0)).mismatch.has_value());
  const OrderVerdict third = order.Announce(Rank(2), At(1, 0), Entry("unshard", 0));
  EXPECT_THAT(third.released, IsEmpty());
  EXPECT_THAT(third.mismatch.value_or(""), HasSubstr("rank 1 is about to reduce"));
}

TEST_F(OrderValidatorTest, WhoFollowsTheRecordIsReleasedAtOnce) {
  Record(1);
  EXPECT_THAT(order_.Announce(Rank(1), At(2, 1), Entry("unshard", 1)).released,
              ElementsAre(Rank(1)));
}

TEST_F(OrderValidatorTest, DeviationOfAllAlikeIsTheNewOrder) {
  Record(1);
  EXPECT_THAT(order_.Announce(Rank(0), At(2, 1), Entry("unshard", 2)).released, IsEmpty());
  EXPECT_THAT(order_.Announce(Rank(1), At(2, 1), Entry("unshard", 2)).released,
              ElementsAre(Rank(0), Rank(1)));
  EXPECT_EQ(order_.num_recorded(), 2);  // Entries after it are void.
  EXPECT_THAT(order_.Announce(Rank(0), At(3, 1), Entry("unshard", 2)).released,
              ElementsAre(Rank(0)));
}

TEST_F(OrderValidatorTest, DeviationWaitsWhileOthersHaveNotReachedThePosition) {
  Record(1);
  EXPECT_FALSE(order_.Announce(Rank(0), At(2, 1), Entry("reduce", 2)).mismatch.has_value());
  EXPECT_FALSE(order_.Progress(Rank(1), At(2, 0)).mismatch.has_value());
  EXPECT_FALSE(order_.Progress(Rank(1), At(2, 1)).mismatch.has_value());
  const OrderVerdict verdict = order_.Progress(Rank(1), At(2, 2));
  ASSERT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(
      *verdict.mismatch,
      AllOf(HasSubstr("step 2, position 1"), HasSubstr("rank 0 is about to reduce unit 'b1'"),
            HasSubstr("rank 1 followed its recorded order: unshard unit 'b0'")));
}

TEST_F(OrderValidatorTest, DeviationWhereAnotherAlreadyPassedIsFoundAtOnce) {
  Record(1);
  order_.Progress(Rank(1), At(2, 3));
  EXPECT_TRUE(order_.Announce(Rank(0), At(2, 1), Entry("reduce", 2)).mismatch.has_value());
}

TEST_F(OrderValidatorTest, LongerStepOfOneRankIsFoundWhenAnotherFinished) {
  Record(1);
  EXPECT_FALSE(order_.Announce(Rank(0), At(2, 3), Entry("reduce", 2)).mismatch.has_value());
  const OrderVerdict verdict = order_.Finished(Rank(1), Step(2));
  ASSERT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(*verdict.mismatch, HasSubstr("rank 1 ended its step after 3 operations"));
}

TEST_F(OrderValidatorTest, AgreeingWithTheRecordIsAMismatchForWhoDeviates) {
  Record(1);
  order_.Announce(Rank(0), At(2, 1), Entry("reduce", 2));
  const OrderVerdict verdict = order_.Announce(Rank(1), At(2, 1), Entry("unshard", 1));
  EXPECT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(verdict.released, IsEmpty());
}

TEST_F(OrderValidatorTest, PassesOfOneStepAreComparedLikeSteps) {
  Record(1);
  const auto in_pass = [](int64_t pass, int64_t sequence) {
    return OrderPosition{Step(2), sequence, pass};
  };
  EXPECT_TRUE(At(2, 7) < in_pass(1, 0));
  EXPECT_TRUE(in_pass(1, 7) < At(3, 0));
  // Instead of the second unit, both ranks end the pass; entries recorded after it are void.
  order_.Announce(Rank(0), in_pass(1, 1), Entry("end-forward", -1));
  EXPECT_THAT(order_.Announce(Rank(1), in_pass(1, 1), Entry("end-forward", -1)).released,
              ElementsAre(Rank(0), Rank(1)));
  EXPECT_EQ(order_.num_recorded(), 2);
  // One rank continues with another pass by the record; the other one trains.
  EXPECT_FALSE(order_.Announce(Rank(1), in_pass(2, 1), Entry("unshard", 1)).mismatch.has_value());
  const OrderVerdict verdict = order_.Progress(Rank(0), in_pass(3, 0));
  ASSERT_TRUE(verdict.mismatch.has_value());
  EXPECT_THAT(*verdict.mismatch,
              AllOf(HasSubstr("step 2, pass 2, position 1: rank 1"),
                    HasSubstr("rank 0 followed its recorded order: end-forward")));
}

TEST_F(OrderValidatorTest, OldProgressReportsAreHarmless) {
  Record(1);
  order_.Announce(Rank(0), At(2, 1), Entry("reduce", 2));
  EXPECT_FALSE(order_.Progress(Rank(1), At(1, 3)).mismatch.has_value());
}

TEST_F(OrderValidatorTest, RestoredRecordReleasesWhoMissedItsRelease) {
  OrderValidator restored(2, Spec());
  restored.Restore(At(1, 1), Entry("unshard", 1));
  restored.Restore(At(1, 0), Entry("unshard", 0));
  restored.FinishRestore();
  // Rank 0 received its release of position 1 before the restart and is one ahead; rank 1 did not.
  EXPECT_THAT(restored.Announce(Rank(0), At(1, 2), Entry("unshard", 2)).released, IsEmpty());
  EXPECT_THAT(restored.Announce(Rank(1), At(1, 1), Entry("unshard", 1)).released,
              ElementsAre(Rank(1)));
  EXPECT_THAT(restored.Announce(Rank(1), At(1, 2), Entry("unshard", 2)).released,
              ElementsAre(Rank(0), Rank(1)));
}

TEST_F(OrderValidatorTest, RestoreDropsWhatALongerEarlierOrderLeft) {
  OrderValidator restored(2, Spec());
  for (int64_t i = 0; i < 6; ++i) restored.Restore(At(1, i), Entry("unshard", 0));
  restored.Restore(At(5, 3), Entry("reduce", 1));  // It replaced position 3, and the step ended.
  restored.FinishRestore();
  EXPECT_EQ(restored.num_recorded(), 4);
}

}  // namespace
}  // namespace tessera::coordinator
