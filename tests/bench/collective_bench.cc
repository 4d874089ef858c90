#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/kernels.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/gloo_group.h"
#include "tests/bench/limits.h"
#include "tests/bench/open_mpi_group.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series {
  kBarrier,
  kMappedAllGather,
  kPrivateAllGather,
  kCopiedAllGather,
  kMemcpy,
  kReduceScatter,
  kStream,
  kSmallReduceScatter,
  kGlooBarrier,
  kGlooAllGather,
  kGlooReduceScatter,
  kGlooSmallReduceScatter,
  kMappedBytesCopied,
  kConvertingAllGather,
  kConvertingStream,
  kOpenMpiBarrier,
  kOpenMpiAllGather,
  kOpenMpiReduceScatter,
  kOpenMpiSmallReduceScatter,
};

constexpr int64_t kSmallBytes = 4096;
// Of what moves much memory: what the one before it left in the caches is to weigh little.
constexpr int kCopies = 6;

// What one rank measures with, all of it faulted in before the first round.
struct Buffers {
  std::vector<const void*> gradients;  // Every rank's whole buffer, in one shared mapping.
  float* full;                         // Private, the size of the whole.
  float* shard;                        // Private, the size of a slice.
  int64_t full_count;
  int64_t shard_count;
};

Buffers MakeBuffers(TeamMember* member, int64_t bytes) {
  Buffers b;
  b.full_count = bytes / static_cast<int64_t>(sizeof(float));
  b.shard_count = b.full_count / member->size();
  for (int r = 0; r < member->size(); ++r) b.gradients.push_back(member->shared() + r * bytes);
  float* mine = reinterpret_cast<float*>(member->shared() + member->rank() * bytes);
  for (int64_t i = 0; i < b.full_count; ++i) mine[i] = static_cast<float>(member->rank() + 1);
  b.full = reinterpret_cast<float*>(WarmMemory(bytes));
  b.shard = reinterpret_cast<float*>(WarmMemory(bytes / member->size()));
  return b;
}

// The all-gather is in place: each rank's own part is in its place.
void TimeOurs(TeamMember* member, const Buffers& b) {
  ShmCommunicator* comm = member->comm();
  const auto slices_of = [&](int64_t count) {
    std::vector<ElementRange> slices;
    for (int r = 0; r < member->size(); ++r) slices.push_back({r * count, (r + 1) * count});
    return slices;
  };
  const auto reduce_scatter = [&](const std::vector<ElementRange>& slices) {
    TESSERA_CHECK(comm->ReduceScatterMapped(b.gradients, slices, {{0, slices.back().end}},
                                            DType::kFp32, 1.0f, false, b.shard, nullptr)
                      .ok());
  };
  const std::vector<ElementRange> whole = slices_of(b.shard_count);
  member->Time(kBarrier, 500, [&] { TESSERA_CHECK(comm->Barrier().ok()); });
  const int64_t copied_before = comm->payload_bytes_copied();
  member->Time(kMappedAllGather, 500,
               [&] { TESSERA_CHECK(comm->AllGatherMapped(nullptr, 0).ok()); });
  member->Note(kMappedBytesCopied,
               static_cast<double>(comm->payload_bytes_copied() - copied_before));
  member->Time(kReduceScatter, 3, [&] { reduce_scatter(whole); });
  const std::vector<ElementRange> small =
      slices_of(kSmallBytes / static_cast<int64_t>(sizeof(float)) / member->size());
  member->Time(kSmallReduceScatter, 200, [&] { reduce_scatter(small); });
  const float* own = b.full + member->rank() * b.shard_count;
  const int64_t shard_bytes = b.shard_count * static_cast<int64_t>(sizeof(float));
  member->Time(kCopiedAllGather, kCopies, [&] {
    TESSERA_CHECK(comm->AllGatherMapped(nullptr, 0).ok());
    for (int r = 0; r < member->size(); ++r) {
      if (r == member->rank()) continue;
      std::memcpy(b.full + r * b.shard_count, b.gradients[r], shard_bytes);
    }
    TESSERA_CHECK(comm->Barrier().ok());
  });
  member->Time(kPrivateAllGather, kCopies,
               [&] { TESSERA_CHECK(comm->AllGather(own, b.full, shard_bytes).ok()); });
}

// Seconds until the slowest rank is through.
double SecondsOf(TeamMember* member, absl::FunctionRef<void()> body) {
  member->Barrier();
  const int64_t begin_ns = absl::GetCurrentTimeNanos();
  body();
  member->Barrier();
  return 1e-9 * static_cast<double>(absl::GetCurrentTimeNanos() - begin_ns);
}

// Each rank publishes its slice in bf16, and all see the whole; into gradients that are not used
// any more in this round. In turns with its limit over the same memory, since each finds in the
// caches what the one before it left there.
void TimeConversion(TeamMember* member, const Buffers& b) {
  const float* own = b.full + member->rank() * b.shard_count;
  auto* published = reinterpret_cast<uint16_t*>(member->shared());
  uint16_t* own_published = published + member->rank() * b.shard_count;
  const int64_t published_bytes = b.shard_count * static_cast<int64_t>(sizeof(uint16_t));
  double ours = 0, limit = 0;
  for (int i = 0; i < kCopies; ++i) {
    limit += SecondsOf(member, [&] { ReadFourWriteTwo(own, b.shard_count, own_published); });
    ours += SecondsOf(member, [&] {
      host::CastFp32ToHalf(DType::kBf16, own, own_published, b.shard_count);
      TESSERA_CHECK(member->comm()
                        ->AllGatherMapped(reinterpret_cast<std::byte*>(published), published_bytes)
                        .ok());
    });
  }
  if (member->rank() != 0) return;
  member->Note(kConvertingAllGather, ours / kCopies);
  member->Note(kConvertingStream, limit / kCopies);
}

// Each repetition ends when the slowest rank has, as that of a collective does.
void TimeLimits(TeamMember* member, const Buffers& b) {
  const int64_t begin = member->rank() * b.shard_count;
  std::vector<const float*> slices;
  for (const void* g : b.gradients) slices.push_back(static_cast<const float*>(g) + begin);
  const auto time = [&](int series, int repetitions, absl::FunctionRef<void()> copy) {
    member->Time(series, repetitions, [&] {
      copy();
      TESSERA_CHECK(member->comm()->Barrier().ok());
    });
  };
  time(kStream, 3,
       [&] { ReadManyWriteOne(slices.data(), member->size(), b.shard_count, b.shard); });
  // From memory that processes share, as all-gathers copy: its pages are small ones here.
  const int64_t half = b.full_count / 2;
  const float* shared = static_cast<const float*>(b.gradients[member->rank()]);
  time(kMemcpy, kCopies, [&] { std::memcpy(b.full, shared, half * sizeof(float)); });
}

void TimeGloo(TeamMember* member, GlooGroup* gloo, const Buffers& b) {
  const int64_t small = kSmallBytes / static_cast<int64_t>(sizeof(float));
  member->Time(kGlooBarrier, 20, [&] { gloo->Barrier(); });
  member->Time(kGlooSmallReduceScatter, 20, [&] { gloo->ReduceScatter(b.full, small); });
  const float* own = b.full + member->rank() * b.shard_count;
  member->Time(kGlooAllGather, 1, [&] { gloo->AllGather(own, b.shard_count, b.full); });
  member->Time(kGlooReduceScatter, 1, [&] { gloo->ReduceScatter(b.full, b.full_count); });
}

// Its ranks are processes of their own, which rank 0 has do one thing after another.
void TimeOpenMpi(TeamMember* member, OpenMpiGroup* open_mpi, int64_t bytes) {
  member->Barrier();
  if (member->rank() == 0) {
    const auto time = [&](int series, OpenMpiOp op, int repetitions, int64_t op_bytes) {
      member->Note(series, open_mpi->Seconds(op, repetitions, op_bytes));
    };
    time(kOpenMpiBarrier, OpenMpiOp::kBarrier, 500, 0);
    time(kOpenMpiSmallReduceScatter, OpenMpiOp::kReduceScatter, 200, kSmallBytes);
    time(kOpenMpiAllGather, OpenMpiOp::kAllGather, kCopies, bytes);
    time(kOpenMpiReduceScatter, OpenMpiOp::kReduceScatter, 1, bytes);
  }
  member->Barrier();
}

void Measure(TeamMember* member, int64_t bytes, const std::string& gloo_directory,
             OpenMpiGroup* open_mpi) {
  const Buffers buffers = MakeBuffers(member, bytes);
  GlooGroup gloo(gloo_directory, member->rank(), member->size());
  while (member->NextRound()) {
    TimeOurs(member, buffers);
    TimeConversion(member, buffers);
    TimeLimits(member, buffers);
    TimeGloo(member, &gloo, buffers);
    if (open_mpi != nullptr) TimeOpenMpi(member, open_mpi, bytes);
  }
}

class Rows {
 public:
  Rows(int size, const TeamResult& result) : size_(size), result_(result) {}

  void Ratio(const char* goal, std::string what, Quartiles value, Better better, double target,
             double gate) {
    rows_.push_back(Row{goal, std::move(what), size_, value, "ratio", better, target, gate,
                        result_.loaded_rounds});
  }
  void Seconds(const char* goal, const char* what, int series) {
    std::vector<double> micros = result_.series[series];
    for (double& value : micros) value *= 1e6;
    rows_.push_back(Row{goal, what, size_, QuartilesOf(micros), "us", Better::kNeither, 0, 0,
                        result_.loaded_rounds});
  }
  void Bytes(const char* goal, const char* what, int series) {
    rows_.push_back(Row{goal, what, size_, QuartilesOf(result_.series[series]), "bytes",
                        Better::kLower, 0, 0, result_.loaded_rounds});
  }
  std::vector<Row> Take() { return std::move(rows_); }

 private:
  int size_;
  const TeamResult& result_;
  std::vector<Row> rows_;
};

std::vector<Row> Judge(int size, const TeamResult& result) {
  const auto& s = result.series;
  Rows rows(size, result);
  rows.Seconds("G1", "barrier", kBarrier);
  rows.Seconds("G1", "all-gather, mapped", kMappedAllGather);
  rows.Ratio("G1", "mapped all-gather / barrier", RatioOf(s[kMappedAllGather], s[kBarrier]),
             Better::kLower, 1.1, 1.3);
  rows.Bytes("G1", "payload bytes copied by mapped all-gathers", kMappedBytesCopied);
  rows.Ratio("G1", "Gloo all-gather (private copies) / mapped all-gather",
             RatioOf(s[kGlooAllGather], s[kMappedAllGather]), Better::kHigher, 1000, 1000);
  rows.Seconds("G2", "all-gather, private copies of mapped shards", kCopiedAllGather);
  rows.Seconds("G2", "all-gather, private memory to private memory", kPrivateAllGather);
  rows.Seconds("G2", "all-gather, Gloo", kGlooAllGather);
  // memcpy: each rank copies half of `bytes`, so the host copies size * bytes / 2 in its time.
  const double per_memcpy = (size - 1.0) / (size / 2.0);
  rows.Ratio("G2", "copies of mapped shards (N-1)S/t / aggregate memcpy",
             RatioOf(s[kMemcpy], s[kCopiedAllGather], per_memcpy), Better::kHigher, 0.95, 0.80);
  rows.Ratio("G2", "private to private (N-1)S/t / aggregate memcpy",
             RatioOf(s[kMemcpy], s[kPrivateAllGather], per_memcpy), Better::kHigher, 0.95, 0.80);
  rows.Seconds("G2", "all-gather, fp32 slices published as bf16", kConvertingAllGather);
  // All of S is read and half of it written, whatever N is. By what each rank gets to see, two
  // ranks cannot reach more than two thirds of a copy's rate.
  rows.Ratio("G2", "published as bf16: rate / stream that reads 4 bytes and writes 2",
             RatioOf(s[kConvertingStream], s[kConvertingAllGather]), Better::kHigher, 0.95, 0.80);
  rows.Ratio("G2", "published as bf16 (N-1)S/2/t / aggregate memcpy",
             RatioOf(s[kMemcpy], s[kConvertingAllGather], per_memcpy / 2), Better::kNeither, 0, 0);
  rows.Seconds("G3", "reduce-scatter, mapped", kReduceScatter);
  rows.Seconds("G3", "reduce-scatter, Gloo", kGlooReduceScatter);
  rows.Ratio("G3", "reduce-scatter rate / N-read-1-write stream rate",
             RatioOf(s[kStream], s[kReduceScatter]), Better::kHigher, 0.95, 0.80);
  rows.Ratio("G3", "Gloo reduce-scatter / ours", RatioOf(s[kGlooReduceScatter], s[kReduceScatter]),
             Better::kHigher, size >= 8 ? 7 : 3.5, size >= 8 ? 6 : 3);
  rows.Seconds("G4", "reduce-scatter of 4 KiB", kSmallReduceScatter);
  const double wanted = size >= 4 ? 100 : 1;
  rows.Ratio("G4", "Gloo barrier / ours", RatioOf(s[kGlooBarrier], s[kBarrier]), Better::kHigher,
             wanted, wanted);
  rows.Ratio("G4", "Gloo reduce-scatter of 4 KiB / ours",
             RatioOf(s[kGlooSmallReduceScatter], s[kSmallReduceScatter]), Better::kHigher, wanted,
             wanted);
  return rows.Take();
}

std::vector<Row> JudgeByOpenMpi(int size, const TeamResult& result) {
  const auto& s = result.series;
  Rows rows(size, result);
  rows.Ratio("G1", "Open MPI all-gather (private copies) / mapped all-gather",
             RatioOf(s[kOpenMpiAllGather], s[kMappedAllGather]), Better::kHigher, 1000, 1000);
  rows.Seconds("G2", "all-gather, Open MPI", kOpenMpiAllGather);
  rows.Ratio("G2", "Open MPI all-gather / private to private",
             RatioOf(s[kOpenMpiAllGather], s[kPrivateAllGather]), Better::kHigher, 1, 1);
  // What a trainer does by itself that wants to keep what it has mapped; no collective of ours.
  rows.Ratio("G2", "Open MPI all-gather / copies of mapped shards",
             RatioOf(s[kOpenMpiAllGather], s[kCopiedAllGather]), Better::kNeither, 0, 0);
  rows.Seconds("G3", "reduce-scatter, Open MPI", kOpenMpiReduceScatter);
  rows.Ratio("G3", "Open MPI reduce-scatter / ours",
             RatioOf(s[kOpenMpiReduceScatter], s[kReduceScatter]), Better::kHigher,
             size >= 8 ? 7 : 3.5, size >= 8 ? 6 : 3);
  const double target = size >= 4 ? 0.5 : 1.2, gate = size >= 4 ? 0.8 : 3;
  rows.Ratio("G4", "barrier / Open MPI's", RatioOf(s[kBarrier], s[kOpenMpiBarrier]), Better::kLower,
             target, gate);
  rows.Ratio("G4", "reduce-scatter of 4 KiB / Open MPI's",
             RatioOf(s[kSmallReduceScatter], s[kOpenMpiSmallReduceScatter]), Better::kLower, target,
             gate);
  return rows.Take();
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchCollectives(int size, int rounds, int64_t bytes,
                                                  const std::string& open_mpi_peer) {
  char directory[] = "/tmp/tessera_bench_XXXXXX";
  if (mkdtemp(directory) == nullptr) return absl::InternalError("no directory below /tmp");
  const absl::Cleanup remove = [&] {
    std::system(absl::StrCat("rm -rf '", directory, "'").c_str());
  };
  const std::string gloo_directory = absl::StrCat(directory, "/gloo");
  if (mkdir(gloo_directory.c_str(), 0700) != 0) return absl::InternalError("no directory for Gloo");
  std::unique_ptr<OpenMpiGroup> open_mpi;
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.shared_bytes = size * bytes;
  if (!open_mpi_peer.empty()) {
    ASSIGN_OR_RETURN(open_mpi, OpenMpiGroup::Start(open_mpi_peer, size, bytes, directory));
    options.helpers_cpu_ns = [&open_mpi] { return open_mpi->cpu_ns(); };
  }
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, bytes, gloo_directory, open_mpi.get());
                   }));
  std::vector<Row> rows = Judge(size, result);
  if (open_mpi != nullptr) {
    for (Row& row : JudgeByOpenMpi(size, result)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bench
}  // namespace tessera
