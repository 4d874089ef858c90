// G12 to G14: a checkpoint saved and loaded, against plain files of as many bytes, written and read
// by as many processes; and what training waits for where it is saved in the background.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/streaming_copy.h"
#include "base/unique_fd.h"
#include "base/yield_to_others.h"
#include "checkpoint/safetensors/crc32.h"
#include "shm/region.h"
#include "tessera/checkpoint.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/checkpoint_peer.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series {
  kSave,
  kPlainWrite,
  kDirectWrite,
  kStall,
  kCopy,
  kSlowest,
  kSlowestBeside,
  kMedian,
  kStallOfComputing,  // The same of steps that compute.
  kSlowestOfComputing,
  kSlowestBesideComputing,
  kMedianOfComputing,
  kSlowestBesideWriting,  // A plain file of as many bytes, instead of a save.
  kFirstLoad,
  kLoad,
  kPlainRead,
  kWholeRead,
  kSavePeak,
  kBackgroundPeak,
  kLoadPeak,
  kPeers,  // Of each command of the peer two: seconds, peak.
};

// The peer's operation on the same bytes, and ours to compare it with.
struct PeerCommand {
  const char* command;
  const char* what;
  bool is_load;
};
constexpr PeerCommand kPeerCommands[] = {
    {"save_file", "safetensors.torch.save_file of the gathered state, durable", false},
    {"torch_save", "torch.save of the gathered state, durable", false},
    {"dcp_save", "torch.distributed.checkpoint.save, durable", false},
    {"load_file", "safetensors.torch.load_file into a gathered state", true},
    {"torch_load", "torch.load into a gathered state", true},
    {"dcp_load", "torch.distributed.checkpoint.load", true},
};

constexpr int kUnits = 4;
constexpr int64_t kUnitNumel = 16 << 20;
// Parameters and two moments, fp32.
constexpr int64_t kStateBytes = 3 * kUnits * kUnitNumel * static_cast<int64_t>(sizeof(float));

void Check(const absl::Status& status) {
  if (!status.ok()) fprintf(stderr, "checkpoint bench: %s\n", status.ToString().c_str());
  TESSERA_CHECK(status.ok());
}

// Keeps a core busy for so much of its time, however long that takes where others want it too.
void Compute(double seconds) {
  const auto used = [] {
    timespec time;
    TESSERA_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double end = used() + seconds;
  while (used() < end) {
  }
}

// Of a rank and step: forward and backward of these parameters over a batch of 256 tokens are
// 103 GFLOP, of which a core does 80 a second.
constexpr double kComputeSeconds = 1.29;

// After the first there are moments.
void TrainOneStep(Session* session, double compute_seconds = 0) {
  const std::vector<float> gradient(kUnitNumel, 0.01f);
  for (int unit = 0; unit < kUnits; ++unit) {
    Check(session->Unshard(unit));
    Compute(compute_seconds / kUnits);
    Check(session->Reshard(unit));
    ReduceUnit(session, unit, gradient);
  }
  Check(session->Step().status());
}

// Of a load, at a time.
constexpr int64_t kLoadedBytes = 256 << 10;

constexpr int kSteps = 8, kComputingSteps = 4;

// The times of steps, in seconds: as rank 0 sees them, which waits for the others in each.
std::vector<double> TimesOfSteps(Session* session, int count, double compute_seconds) {
  std::vector<double> times;
  for (int step = 0; step < count; ++step) {
    const absl::Time start = absl::Now();
    TrainOneStep(session, compute_seconds);
    times.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  return times;
}

// Like the state of ranks, in pages that were touched.
Mapping SharedMemory(int64_t size_bytes) {
  const absl::StatusOr<SharedRegion> region = SharedRegion::Create("bench", size_bytes);
  Check(region.status());
  absl::StatusOr<Mapping> mapping = Mapping::CreateWhole(region->fd(), Access::kReadWrite);
  Check(mapping.status());
  mapping->Populate();
  return *std::move(mapping);
}

// One file, each rank a part of it, durably: what the bytes of a checkpoint cost at least.
class PlainFile {
 public:
  PlainFile(TeamMember* member, std::string path)
      : member_(*member),
        path_(std::move(path)),
        own_bytes_(kStateBytes / member->size()),
        memory_(WarmMemory(own_bytes_)),
        piece_(WarmMemory(kLoadedBytes)),
        state_(SharedMemory(own_bytes_)),
        published_(SharedMemory(own_bytes_ / 3)) {
    memset(memory_, 1, own_bytes_);
  }

  // Through the page cache, or past it with `flags` O_DIRECT.
  void Write(int flags = 0) {
    if (member_.rank() == 0) {
      const UniqueFd fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      TESSERA_CHECK(fd.valid() && posix_fallocate(fd.get(), 0, kStateBytes) == 0);
    }
    Check(member_.comm()->Barrier());
    const UniqueFd fd(open(path_.c_str(), O_WRONLY | O_CLOEXEC | flags));
    TESSERA_CHECK(fd.valid());
    ForEachPiece(own_bytes_, [&](char* piece, int64_t bytes, int64_t at) {
      return pwrite(fd.get(), piece, bytes, at);
    });
    TESSERA_CHECK(fsync(fd.get()) == 0);
  }
  // The files of a checkpoint, each rank a part of each: what loading it costs at least. No file of
  // ours would do: how fast one is read also depends on how it came into the page cache.
  void ReadFilesOf(const std::string& checkpoint) {
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const UniqueFd fd(open(absl::StrCat(checkpoint, "/", name).c_str(), O_RDONLY | O_CLOEXEC));
      struct stat info;
      TESSERA_CHECK(fd.valid() && fstat(fd.get(), &info) == 0);
      const int64_t part_bytes = info.st_size / member_.size();
      TESSERA_CHECK(part_bytes <= own_bytes_);
      ForEachPiece(part_bytes, [&](char* piece, int64_t bytes, int64_t at) {
        return pread(fd.get(), piece, bytes, at);
      });
    }
  }
  // All that a load has to do with these bytes: while they are in the cache they are summed and
  // stored to the state and, of parameters, to where trainers have them.
  void ReadSummedAndPublished(const std::string& checkpoint) {
    std::byte* into = state_.data();
    std::byte* published = published_.data();
    uint32_t crc32 = kCrc32OfNothing;
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const UniqueFd fd(open(absl::StrCat(checkpoint, "/", name).c_str(), O_RDONLY | O_CLOEXEC));
      struct stat info;
      TESSERA_CHECK(fd.valid() && fstat(fd.get(), &info) == 0);
      const int64_t part_bytes = info.st_size / member_.size();
      // What the files have besides is little, and left out.
      const int64_t most_bytes = published != nullptr ? own_bytes_ / 3 : own_bytes_ / 3 * 2;
      for (int64_t at = 0; at < std::min(part_bytes, most_bytes); at += kLoadedBytes) {
        const int64_t bytes = std::min(kLoadedBytes, std::min(part_bytes, most_bytes) - at);
        TESSERA_CHECK(pread(fd.get(), piece_, bytes, member_.rank() * part_bytes + at) == bytes);
        crc32 = Crc32(piece_, bytes, crc32);
        StreamingCopy(into + at, piece_, bytes);
        if (published != nullptr) StreamingCopy(published + at, piece_, bytes);
      }
      into += own_bytes_ / 3;
      published = nullptr;
    }
    FlushStreamed();
    asm volatile("" : : "r"(crc32) : "memory");
  }
  // Into memory that nobody used before, as a snapshot's is.
  void Copy() {
    const std::unique_ptr<char[]> copy(new char[own_bytes_]);
    memcpy(copy.get(), memory_, own_bytes_);
    asm volatile("" : : "r"(copy.get()) : "memory");
  }

 private:
  // Of this rank's part of a file.
  template <typename Transfer>
  void ForEachPiece(int64_t part_bytes, const Transfer& transfer) {
    constexpr int64_t kPieceBytes = 4 << 20;
    for (int64_t at = 0; at < part_bytes; at += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, part_bytes - at);
      TESSERA_CHECK(transfer(memory_ + at, bytes, member_.rank() * part_bytes + at) == bytes);
    }
  }

  TeamMember& member_;
  const std::string path_;
  const int64_t own_bytes_;
  char* const memory_;
  char* const piece_;
  const Mapping state_, published_;
};

void TimePeer(TeamMember* member, CheckpointPeer* peer) {
  member->Barrier();
  if (member->rank() == 0) {
    int series = kPeers;
    for (const PeerCommand& command : kPeerCommands) {
      const CheckpointPeer::Result result = peer->Run(command.command);
      member->Note(series++, result.seconds);
      member->Note(series++, static_cast<double>(result.peak_bytes));
    }
    peer->Run("remove");
  }
  member->Barrier();
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config,
             const std::string& folder, CheckpointPeer* peer) {
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
  const bool notes = member->rank() == 0;
  const auto with_peak = [&](int series, absl::FunctionRef<void()> body) {
    std::map<pid_t, int64_t> mark;
    if (notes) mark = cluster.MarkMemory();
    body();
    member->Barrier();
    if (notes) member->Note(series, static_cast<double>(cluster.PeakGrowthBytes(mark)));
  };
  while (member->NextRound()) {
    with_peak(kSavePeak, [&] {
      member->Time(kSave, 1, [&] { Check(SaveCheckpoint(session.get(), saved)); });
    });
    member->Time(kPlainWrite, 1, [&] { plain.Write(); });
    // What was written past the page cache this one reads from the disk, into the page cache; the
    // kernel believes in what is read for the second time, and does more then than for the third.
    member->Time(kFirstLoad, 1, [&] { Check(LoadCheckpoint(session.get(), saved).status()); });
    Check(LoadCheckpoint(session.get(), saved).status());
    with_peak(kLoadPeak, [&] {
      member->Time(kLoad, 1, [&] { Check(LoadCheckpoint(session.get(), saved).status()); });
    });
    member->Time(kPlainRead, 1, [&] { plain.ReadFilesOf(saved); });
    member->Time(kWholeRead, 1, [&] { plain.ReadSummedAndPublished(saved); });
    remove(saved);
    remove(folder + "/plain");
    member->Time(kDirectWrite, 1, [&] { plain.Write(O_DIRECT); });
    remove(folder + "/plain");
    const auto save_beside = [&](int stall, int slowest, int steps, double compute_seconds) {
      SaveOptions background;
      background.in_background = true;
      // First, so that the kernel's work for what was removed before is not in the save's first
      // step.
      const std::vector<double> alone = TimesOfSteps(session.get(), steps, compute_seconds);
      std::vector<double> beside;
      const auto save_and_train = [&] {
        member->Time(stall, 1,
                     [&] { Check(SaveCheckpoint(session.get(), saved, {}, background)); });
        beside = TimesOfSteps(session.get(), steps, compute_seconds);
        Check(AwaitSave(session.get()));
      };
      if (compute_seconds == 0) {
        with_peak(kBackgroundPeak, save_and_train);
      } else {
        save_and_train();
      }
      const auto most = [&](const std::vector<double>& times) {
        return notes ? *std::max_element(times.begin(), times.end()) : 0;
      };
      member->Note(slowest, most(alone));
      member->Note(slowest + 1, most(beside));
      member->Note(slowest + 2, notes ? QuartilesOf(alone).median : 0);
    };
    save_beside(kStall, kSlowest, kSteps, 0);
    remove(saved);
    save_beside(kStallOfComputing, kSlowestOfComputing, kComputingSteps, kComputeSeconds);
    Check(member->comm()->Barrier());
    std::thread writing([&] {
      YieldToOthers();
      plain.Write(O_DIRECT);
    });
    const std::vector<double> beside =
        TimesOfSteps(session.get(), kComputingSteps, kComputeSeconds);
    writing.join();
    member->Note(kSlowestBesideWriting,
                 notes ? *std::max_element(beside.begin(), beside.end()) : 0);
    remove(folder + "/plain");
    member->Time(kCopy, 1, [&] { plain.Copy(); });
    remove(saved);
    if (peer != nullptr) TimePeer(member, peer);
  }
}

std::vector<double> GigabytesPerSecond(const std::vector<double>& seconds) {
  std::vector<double> rates;
  for (const double value : seconds) rates.push_back(kStateBytes * 1e-9 / value);
  return rates;
}

std::vector<double> Mebibytes(std::vector<double> bytes) {
  for (double& value : bytes) value /= 1 << 20;
  return bytes;
}

std::vector<Row> Judge(int size, const TeamResult& result) {
  const auto& series = result.series;
  const int loaded = result.loaded_rounds;
  const std::string bytes = absl::StrCat(kStateBytes >> 20, " MiB");
  std::vector<Row> rows;
  const auto ratio = [&](const char* goal, std::string what, const std::vector<double>& above,
                         const std::vector<double>& below, Better better, double target,
                         double gate) {
    rows.push_back(Row{goal, std::move(what), size, RatioOf(above, below), "ratio", better, target,
                       gate, loaded});
  };
  const auto plain = [&](const char* goal, std::string what, std::vector<double> values,
                         const char* unit) {
    rows.push_back(Row{goal, std::move(what), size, QuartilesOf(std::move(values)), unit,
                       Better::kNeither, 0, 0, loaded});
  };
  ratio("G12", bytes + ": checkpoint, durable / plain parallel write and fsync", series[kSave],
        series[kPlainWrite], Better::kLower, 1.08, 1.25);
  ratio("G12", "the same / plain parallel write with O_DIRECT and fsync", series[kSave],
        series[kDirectWrite], Better::kLower, 1.08, 1.25);
  ratio("G12", "plain parallel write with O_DIRECT / through the page cache", series[kDirectWrite],
        series[kPlainWrite], Better::kNeither, 0, 0);
  plain("G12", "the same, rate of the checkpoint", GigabytesPerSecond(series[kSave]), "GB/s");
  plain("G12", "the same, growth of all processes", Mebibytes(series[kSavePeak]), "MiB");
  ratio("G13", "what training waits for a save in the background / copy of its bytes",
        series[kStall], series[kCopy], Better::kLower, 0.02, 1.2);
  ratio("G13", "the same / median step that computes a batch", series[kStallOfComputing],
        series[kMedianOfComputing], Better::kLower, 0.02, 0.02);
  ratio("G13", "slowest such step during the save / median one without",
        series[kSlowestBesideComputing], series[kMedianOfComputing], Better::kLower, 1.1, 1.1);
  ratio("G13", "slowest such step beside a plain write with O_DIRECT / median one without",
        series[kSlowestBesideWriting], series[kMedianOfComputing], Better::kNeither, 0, 0);
  ratio("G13", "slowest such step without a save / median one", series[kSlowestOfComputing],
        series[kMedianOfComputing], Better::kNeither, 0, 0);
  ratio("G13", "what training waits for it / median step that computes nothing", series[kStall],
        series[kMedian], Better::kNeither, 0, 0);
  ratio("G13", "slowest such step during the save / median one without", series[kSlowestBeside],
        series[kMedian], Better::kNeither, 0, 0);
  ratio("G13", "slowest such step without a save / median one", series[kSlowest], series[kMedian],
        Better::kNeither, 0, 0);
  plain("G13", "a save in the background, growth of all processes",
        Mebibytes(series[kBackgroundPeak]), "MiB");
  ratio("G14", "plain parallel read of its files / load from the page cache, checked",
        series[kPlainRead], series[kLoad], Better::kHigher, 0.9, 0.75);
  ratio("G14", "the same read, summed, and stored to where it belongs by a plain loop / load",
        series[kWholeRead], series[kLoad], Better::kNeither, 0, 0);
  plain("G14", "the same, rate of the load", GigabytesPerSecond(series[kLoad]), "GB/s");
  plain("G14", "rate of the first load after the save, from the disk",
        GigabytesPerSecond(series[kFirstLoad]), "GB/s");
  plain("G14", "the same, growth of all processes", Mebibytes(series[kLoadPeak]), "MiB");
  return rows;
}

std::vector<Row> JudgeByPeer(int size, const TeamResult& result) {
  std::vector<Row> rows;
  int series = kPeers;
  for (const PeerCommand& command : kPeerCommands) {
    const char* goal = command.is_load ? "G14" : "G12";
    // torch.save and torch.load have gates; the others are shown for comparison.
    const bool is_judged = std::string(command.command).rfind("torch_", 0) == 0;
    const double target = !is_judged ? 0 : command.is_load ? 6 : 4;
    rows.push_back(
        Row{goal, absl::StrCat(command.what, " / ours"), size,
            RatioOf(result.series[series], result.series[command.is_load ? kLoad : kSave]), "ratio",
            is_judged ? Better::kHigher : Better::kNeither, target, target, result.loaded_rounds});
    rows.push_back(Row{goal, "the same, growth of all processes", size,
                       QuartilesOf(Mebibytes(result.series[series + 1])), "MiB", Better::kNeither,
                       0, 0, result.loaded_rounds});
    series += 2;
  }
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchCheckpoint(int size, int rounds, const std::string& folder,
                                                 const std::string& executor_binary,
                                                 const CheckpointPeerFlags& peer_flags) {
  const std::string own = absl::StrCat(folder, "/tessera-bench-", getpid());
  if (!std::filesystem::create_directories(own + "/peer"))
    return absl::InternalError(absl::StrCat("cannot make folder ", own));
  const absl::Cleanup remove = [&own] { std::filesystem::remove_all(own); };
  JobConfig config;
  config.world_size = size;
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(size, executor_binary));
  std::unique_ptr<CheckpointPeer> peer;
  if (!peer_flags.python.empty()) {
    ASSIGN_OR_RETURN(peer, CheckpointPeer::Start(peer_flags.python, peer_flags.script, size,
                                                 own + "/peer", 3 * kUnits, kUnitNumel));
  }
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.pin = false;
  options.helpers_cpu_ns = [&] {
    return cluster->CpuNs() + (peer != nullptr ? peer->cpu_ns() : 0);
  };
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, *cluster, config, own, peer.get());
                   }));
  std::vector<Row> rows = Judge(size, result);
  if (peer != nullptr) {
    for (Row& row : JudgeByPeer(size, result)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bench
}  // namespace tessera
