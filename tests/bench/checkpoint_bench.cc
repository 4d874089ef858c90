// G12 to G14: a checkpoint saved and loaded beside plain files of as many bytes, written and read
// by as many processes; and what training waits for where it is saved in the background.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "client/cpp/checkpoint.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series {
  kSave,
  kPlainWrite,
  kStall,
  kCopy,
  kSlowest,
  kSlowestBeside,
  kMedian,
  kLoad,
  kPlainRead,
  kNumSeries
};

constexpr int kUnits = 4;
constexpr int64_t kUnitNumel = 4 << 20;
// Parameters and two moments, fp32.
constexpr int64_t kStateBytes = 3 * kUnits * kUnitNumel * static_cast<int64_t>(sizeof(float));

void Check(const absl::Status& status) {
  if (!status.ok()) fprintf(stderr, "checkpoint bench: %s\n", status.ToString().c_str());
  TESSERA_CHECK(status.ok());
}

// So that there are moments.
void TrainOneStep(Session* session) {
  const std::vector<float> gradient(kUnitNumel, 0.01f);
  for (int unit = 0; unit < kUnits; ++unit) {
    Check(session->Unshard(unit));
    Check(session->Reshard(unit));
    ReduceUnit(session, unit, gradient);
  }
  Check(session->Step().status());
}

constexpr int kSteps = 8;

// The times of steps, in seconds: as rank 0 sees them, which waits for the others in each.
std::vector<double> TimesOfSteps(Session* session) {
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const absl::Time start = absl::Now();
    TrainOneStep(session);
    times.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  return times;
}

// One file, each rank a part of it, durably: what the bytes of a checkpoint cost at least.
class PlainFile {
 public:
  PlainFile(TeamMember* member, std::string path)
      : member_(*member),
        path_(std::move(path)),
        own_bytes_(kStateBytes / member->size()),
        memory_(WarmMemory(own_bytes_)) {
    memset(memory_, 1, own_bytes_);
  }

  void Write() {
    if (member_.rank() == 0) {
      const UniqueFd fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      TESSERA_CHECK(fd.valid() && posix_fallocate(fd.get(), 0, kStateBytes) == 0);
    }
    Check(member_.comm()->Barrier());
    const UniqueFd fd(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    ForEachPiece(
        [&](char* piece, int64_t bytes, int64_t at) { return pwrite(fd.get(), piece, bytes, at); });
    TESSERA_CHECK(fsync(fd.get()) == 0);
  }
  void Read() {
    const UniqueFd fd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ForEachPiece(
        [&](char* piece, int64_t bytes, int64_t at) { return pread(fd.get(), piece, bytes, at); });
  }
  // Into memory that nobody used before, as a snapshot's is.
  void Copy() {
    const std::unique_ptr<char[]> copy(new char[own_bytes_]);
    memcpy(copy.get(), memory_, own_bytes_);
    asm volatile("" : : "r"(copy.get()) : "memory");
  }

 private:
  template <typename Transfer>
  void ForEachPiece(const Transfer& transfer) {
    constexpr int64_t kPieceBytes = 4 << 20;
    for (int64_t at = 0; at < own_bytes_; at += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, own_bytes_ - at);
      TESSERA_CHECK(transfer(memory_ + at, bytes, member_.rank() * own_bytes_ + at) == bytes);
    }
  }

  TeamMember& member_;
  const std::string path_;
  const int64_t own_bytes_;
  char* const memory_;
};

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config,
             const std::string& folder) {
  const std::unique_ptr<Session> session =
      OpenSession(cluster, "checkpoint", EqualUnits(kUnits, kUnitNumel), config, member->rank());
  TrainOneStep(session.get());
  const std::string saved = folder + "/saved";
  PlainFile plain(member, folder + "/plain");
  const auto remove = [&](const std::string& path) {
    member->Barrier();
    if (member->rank() == 0) std::filesystem::remove_all(path);
    member->Barrier();
  };
  while (member->NextRound()) {
    member->Time(kSave, 1, [&] { Check(SaveCheckpoint(session.get(), saved)); });
    member->Time(kPlainWrite, 1, [&] { plain.Write(); });
    member->Time(kLoad, 1, [&] { Check(LoadCheckpoint(session.get(), saved).status()); });
    member->Time(kPlainRead, 1, [&] { plain.Read(); });
    remove(saved);
    remove(folder + "/plain");
    SaveCheckpointOptions background;
    background.in_background = true;
    member->Time(kStall, 1, [&] { Check(SaveCheckpoint(session.get(), saved, {}, background)); });
    const std::vector<double> beside = TimesOfSteps(session.get());
    Check(AwaitSave(session.get()));
    const std::vector<double> alone = TimesOfSteps(session.get());
    const bool notes = member->rank() == 0;
    member->Note(kSlowestBeside, notes ? *std::max_element(beside.begin(), beside.end()) : 0);
    member->Note(kSlowest, notes ? *std::max_element(alone.begin(), alone.end()) : 0);
    member->Note(kMedian, notes ? QuartilesOf(alone).median : 0);
    member->Time(kCopy, 1, [&] { plain.Copy(); });
    remove(saved);
  }
}

std::vector<double> GigabytesPerSecond(const std::vector<double>& seconds) {
  std::vector<double> rates;
  for (const double value : seconds) rates.push_back(kStateBytes * 1e-9 / value);
  return rates;
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchCheckpoint(int size, int rounds, const std::string& folder,
                                                 const std::string& executor_binary) {
  const std::string own = absl::StrCat(folder, "/tessera-bench-", getpid());
  if (!std::filesystem::create_directories(own))
    return absl::InternalError(absl::StrCat("cannot make folder ", own));
  JobConfig config;
  config.world_size = size;
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(size, executor_binary));
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.pin = false;
  options.helpers_cpu_ns = [&cluster] { return cluster->CpuNs(); };
  const absl::StatusOr<TeamResult> result =
      RunTeam(options, [&](TeamMember* member) { Measure(member, *cluster, config, own); });
  std::filesystem::remove_all(own);
  RETURN_IF_ERROR(result.status());
  const auto& series = result->series;
  const int loaded = result->loaded_rounds;
  const std::string bytes = absl::StrCat(kStateBytes >> 20, " MiB");
  std::vector<Row> rows;
  rows.push_back(Row{"G12", bytes + ": checkpoint, durable / plain parallel write and fsync", size,
                     RatioOf(series[kSave], series[kPlainWrite]), "ratio", Better::kLower, 1.08,
                     1.25, loaded});
  rows.push_back(Row{"G12", "the same, rate", size, QuartilesOf(GigabytesPerSecond(series[kSave])),
                     "GB/s", Better::kNeither, 0, 0, loaded});
  rows.push_back(Row{"G13", "what training waits for a save in the background / copy of its bytes",
                     size, RatioOf(series[kStall], series[kCopy]), "ratio", Better::kLower, 1.2,
                     1.2, loaded});
  rows.push_back(Row{"G13", "slowest step beside the save / median step without one", size,
                     RatioOf(series[kSlowestBeside], series[kMedian]), "ratio", Better::kNeither, 0,
                     0, loaded});
  rows.push_back(Row{"G13", "slowest step without a save / median step", size,
                     RatioOf(series[kSlowest], series[kMedian]), "ratio", Better::kNeither, 0, 0,
                     loaded});
  rows.push_back(Row{"G14", "plain parallel read / load from the page cache, checked", size,
                     RatioOf(series[kPlainRead], series[kLoad]), "ratio", Better::kHigher, 0.9,
                     0.75, loaded});
  rows.push_back(Row{"G14", "the same, rate of the load", size,
                     QuartilesOf(GigabytesPerSecond(series[kLoad])), "GB/s", Better::kNeither, 0, 0,
                     loaded});
  return rows;
}

}  // namespace bench
}  // namespace tessera
