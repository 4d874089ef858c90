// Which ranks of this worker have a put of a job, so that it is known when none of them can vote
// for it any more.
//
//   kNone ── Begin ──► kOffered ── Withdraw, a rank finds it void ──► kLeaving ── Begin ──► ...
//                                  or dies with it again and again
//
// It is over once it is leaving and no rank has it. Pure; thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_JOB_PUT_H_
#define TESSERA_WORKER_KEEPER_JOB_PUT_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace tessera {

class JobPut {
 public:
  enum class Phase { kNone, kOffered, kLeaving };

  // One that was there before is forgotten.
  void Begin(uint64_t put);
  // Whether ranks that do not have it are to be given it.
  bool is_offered() const { return phase_ == Phase::kOffered; }
  void Given(int rank) { holders_.insert(rank); }
  // The rank says that it has it no more. `failure`: no rank can take it; else empty.
  void Gone(int rank, uint64_t put, const std::string& failure);
  // The rank's executor ended, and what it had with it. If that was kMaxEnds times, it may have
  // been the put's doing: it is void.
  void Ended(int rank);
  static constexpr int kMaxEnds = 3;
  void Withdraw(uint64_t put);

  uint64_t put() const { return put_; }
  // No rank will vote for it any more; another put than this one is.
  bool IsOver(uint64_t put) const;
  const std::string& failure() const { return failure_; }

 private:
  Phase phase_ = Phase::kNone;
  uint64_t put_ = 0;
  std::set<int> holders_;
  std::map<int, int> ends_;  // By rank, while it had it.
  std::string failure_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_PUT_H_
