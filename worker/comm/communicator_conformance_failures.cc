// What operations return when ranks abort, stay away or disagree.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "worker/comm/communicator_conformance.h"

namespace tessera {
namespace {

using testing::HasSubstr;

struct NamedCall {
  const char* name;
  std::function<absl::Status(Communicator*)> call;
};

// Each operation once, with data of its own.
std::vector<NamedCall> EveryOperation() {
  constexpr int64_t kCount = 40000;
  return {
      {"Barrier", [](Communicator* c) { return c->Barrier(); }},
      {"AllGather",
       [](Communicator* c) {
         std::vector<char> recv(kCount * c->size());
         return c->AllGather(recv.data() + c->rank() * kCount, recv.data(), kCount);
       }},
      {"ReduceScatter",
       [](Communicator* c) {
         std::vector<float> send(kCount * c->size()), recv(kCount);
         return c->ReduceScatter(send.data(), recv.data(), kCount, DType::kFp32, 1);
       }},
      {"AllReduce",
       [](Communicator* c) {
         std::vector<double> buffer(kCount);
         return c->AllReduce(buffer.data(), kCount, DType::kFp64, ReduceOp::kSum, 1);
       }},
      {"Broadcast",
       [](Communicator* c) {
         std::vector<char> buffer(kCount);
         return c->Broadcast(buffer.data(), kCount, 0);
       }},
      {"AllGatherMapped", [](Communicator* c) { return c->AllGatherMapped(nullptr, 0); }},
      {"ReduceScatterMapped",
       [](Communicator* c) {
         const std::vector<float> send(kCount);
         const std::vector<const void*> sends(c->size(), send.data());
         std::vector<float> recv(kCount);
         const std::vector<ElementRange> slices(c->size(), {0, kCount});
         return c->ReduceScatterMapped(sends, slices, {{0, kCount}}, DType::kFp32, 1, false,
                                       recv.data(), nullptr);
       }},
  };
}

TEST_P(CommunicatorConformanceTest, AbortEndsEachOperationOnEveryRankWithTheReason) {
  for (const NamedCall& operation : EveryOperation()) {
    SCOPED_TRACE(operation.name);
    const std::vector<absl::Status> statuses =
        RunRanks([&operation](const RankContext& c) -> absl::Status {
          RETURN_IF_ERROR(c.comm->Barrier());
          if (c.comm->rank() == c.comm->size() - 1) {
            c.comm->Abort(absl::UnavailableError("the trainer is gone"));
          }
          return operation.call(c.comm);
        });
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("the trainer is gone")));
    }
  }
}

TEST_P(CommunicatorConformanceTest, AbortIsIdempotentAndTheFirstReasonStays) {
  ExpectAllOk([](const RankContext& c) -> absl::Status {
    RETURN_IF_ERROR(c.comm->Barrier());
    if (c.comm->rank() == 0) {
      c.comm->Abort(absl::InternalError("first"));
      c.comm->Abort(absl::InternalError("second"));
    }
    for (int i = 0; i < 3; ++i) {
      const absl::Status status = c.comm->Barrier();
      RANK_EXPECT(absl::IsAborted(status), status.ToString());
      RANK_EXPECT(absl::StrContains(status.message(), "rank 0: first"), status.ToString());
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorConformanceTest, MissingRankIsNamedWithTheOperation) {
  if (size() == 1) GTEST_SKIP() << "one rank misses nobody";
  GroupOptions options;
  options.timeout = absl::Milliseconds(150);  // Longer than ranks take to start under load.
  const int missing = size() - 1;
  for (const NamedCall& operation : EveryOperation()) {
    SCOPED_TRACE(operation.name);
    const std::vector<absl::Status> statuses = RunRanks(
        [&operation, missing](const RankContext& c) -> absl::Status {
          if (c.comm->rank() == missing) return absl::OkStatus();
          return operation.call(c.comm);
        },
        options);
    int num_timed_out = 0;
    for (int r = 0; r < missing; ++r) {
      EXPECT_THAT(statuses[r].code(),
                  testing::AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAborted));
      EXPECT_THAT(std::string(statuses[r].message()), HasSubstr(operation.name));
      EXPECT_THAT(std::string(statuses[r].message()),
                  HasSubstr(absl::StrCat(" ", missing, " of ", size())));
      if (absl::IsDeadlineExceeded(statuses[r])) ++num_timed_out;
    }
    EXPECT_GE(num_timed_out, 1);
  }
}

TEST_P(CommunicatorConformanceTest, DifferentOperationsAreAnErrorNotAHang) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const std::vector<absl::Status> statuses = RunRanks([](const RankContext& c) {
    double value = 1;
    if (c.comm->rank() == 0) return c.comm->Barrier();
    return c.comm->AllReduce(&value, 1, DType::kFp64, ReduceOp::kSum, 1);
  });
  EXPECT_THAT(statuses[0].code(),
              testing::AnyOf(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted));
  bool named = false;
  for (const absl::Status& status : statuses) {
    if (absl::StrContains(status.message(), "called Barrier") &&
        absl::StrContains(status.message(), "called AllReduce")) {
      named = true;
    }
  }
  EXPECT_TRUE(named) << statuses[0];
}

TEST_P(CommunicatorConformanceTest, DifferentSizesAreAnErrorNotAHang) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const std::vector<absl::Status> statuses = RunRanks([](const RankContext& c) {
    std::vector<char> recv(64 * c.comm->size());
    const std::vector<char> send(64);
    return c.comm->AllGather(send.data(), recv.data(), c.comm->rank() == 0 ? 64 : 32);
  });
  bool named = false;
  for (const absl::Status& status : statuses) {
    if (absl::StrContains(status.message(), "with other sizes or types")) named = true;
  }
  EXPECT_TRUE(named) << statuses[0];
}

TEST_P(CommunicatorConformanceTest, DifferentTypesAndScalesAreAnErrorNotAHang) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const std::vector<NamedCall> calls_of_the_first = {
      {"another type",
       [](Communicator* c) {
         uint8_t codes[2] = {};
         return c->AllReduce(codes, 2, Fp8Format::kE4M3, ReduceOp::kSum, 0.5);
       }},
      {"another scale",
       [](Communicator* c) {
         uint8_t codes[2] = {};
         return c->AllReduce(codes, 2, Fp8Format::kE5M2, ReduceOp::kSum, 1);
       }},
  };
  for (const NamedCall& call : calls_of_the_first) {
    SCOPED_TRACE(call.name);
    const std::vector<absl::Status> statuses = RunRanks([&call](const RankContext& c) {
      if (c.comm->rank() == 0) return call.call(c.comm);
      uint8_t codes[2] = {};
      return c.comm->AllReduce(codes, 2, Fp8Format::kE5M2, ReduceOp::kSum, 0.5);
    });
    bool named = false;
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      if (absl::StrContains(status.message(), "with other sizes or types")) named = true;
    }
    EXPECT_TRUE(named) << statuses[0];
  }
}

TEST_P(CommunicatorConformanceTest, AfterAFailureEachCallReturnsTheFirstError) {
  if (size() == 1) GTEST_SKIP() << "one rank misses nobody";
  GroupOptions options;
  options.timeout = absl::Milliseconds(150);  // Longer than ranks take to start under load.
  ExpectAllOk(
      [](const RankContext& c) -> absl::Status {
        if (c.comm->rank() == 0) return absl::OkStatus();
        const absl::Status first = c.comm->Barrier();
        RANK_EXPECT(!first.ok());
        for (const NamedCall& operation : EveryOperation()) {
          RANK_EXPECT(operation.call(c.comm) == first, operation.name);
        }
        return absl::OkStatus();
      },
      options);
}

}  // namespace
}  // namespace tessera
