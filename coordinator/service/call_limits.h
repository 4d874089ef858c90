// How much of the coordinator the calls of one client take, so that it starves nobody. Of each kind
// of call there are so many places, and
//
//   a client gets one more   while it has fewer than are free, or than kAlways
//
// So one alone gets half of them, the next one half of the rest; and a client without a place gets one.
// What waiting calls hold of their requests is shared likewise.
//
// And of each client one request at a time is read, one long one is dealt with, and one long reply
// is sent; others wait. Where a request takes long, one more is read every 100 ms, up to eight: one
// that the network loses must not keep the client's other ranks waiting.
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_CALL_LIMITS_H_
#define TESSERA_COORDINATOR_SERVICE_CALL_LIMITS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera::coordinator {

// What a call does. kOfWorker: one of a worker, until it has said which it is.
enum class CallKind { kShort, kWaiting, kOfWorker };

class CallLimits {
 public:
  static constexpr int kAlways = 4;
  static constexpr int kReadsAtOnce = 8;
  static constexpr absl::Duration kBetweenReads = absl::Milliseconds(100);
  static constexpr int64_t kMaxHeldBytes = int64_t{64} << 20;

  // `max_calls`: places of each kind.
  explicit CallLimits(int max_calls) : max_calls_(max_calls) {}

  // Of one call. Movable; given back where it ends.
  class Place {
   public:
    Place(Place&& other) noexcept
        : limits_(std::exchange(other.limits_, nullptr)),
          client_(std::move(other.client_)),
          kind_(other.kind_),
          held_bytes_(other.held_bytes_) {}
    Place& operator=(Place&&) = delete;
    ~Place() { Leave(); }

    void Leave();  // Idempotent.
    // Until it leaves. Errors: ResourceExhausted  the client's calls hold too much already
    absl::Status Hold(int64_t bytes);

   private:
    friend class CallLimits;
    Place(CallLimits* limits, std::string client, CallKind kind)
        : limits_(limits), client_(std::move(client)), kind_(kind) {}

    CallLimits* limits_;  // Null: it has left.
    std::string client_;
    CallKind kind_;
    int64_t held_bytes_ = 0;
  };
  // Errors: Unavailable  names the client, and how many calls it has
  absl::StatusOr<Place> Enter(const std::string& client, CallKind kind);

  // kHandling: a long request is dealt with.
  enum class Of { kReading, kHandling, kReplying };
  // Held by who may read, or reply, for its client; null: nobody holds it. Give it back soon.
  using Turn = std::shared_ptr<void>;
  class TurnRequest;
  // Waits for it. Errors: Unavailable  others of the client's have it until the deadline
  //                       Cancelled    `cancelled` became true
  absl::StatusOr<Turn> TakeTurn(const std::string& client, Of what, absl::Time deadline,
                                absl::FunctionRef<bool()> cancelled);
  // Gives turns to those who may have them because of the time that has passed. Call it often.
  void LetMoreIn(absl::Time now);
  // Unavailable: what a client is told that has waited too long.
  static absl::Status HasNoTurn(const std::string& client, Of what);

 private:
  static constexpr int kNumKinds = 3;
  struct Taken {
    std::array<int, kNumKinds> calls = {};
    int64_t held_bytes = 0;
  };
  struct TurnsOfClient {
    explicit TurnsOfClient(int most) : max_taken(most) {}

    const int max_taken;
    absl::Mutex mu;
    int num_taken ABSL_GUARDED_BY(mu) = 0;
    absl::Time newest_at ABSL_GUARDED_BY(mu);  // When one was given.
    std::list<TurnRequest*> waiting ABSL_GUARDED_BY(mu);
  };

  std::shared_ptr<TurnsOfClient> TurnsOf(const std::string& client, Of what);

  absl::Status HoldLocked(const std::string& client, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int max_calls_;
  absl::Mutex mu_;
  Taken all_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Taken> clients_ ABSL_GUARDED_BY(mu_);  // Of those with calls.
  std::map<std::pair<std::string, Of>, std::weak_ptr<TurnsOfClient>> turns_ ABSL_GUARDED_BY(mu_);
};

// For a turn, which is given to those who ask in the order in which they do.
class CallLimits::TurnRequest {
 public:
  // `on_turn` is called once, by whichever thread has a turn to give, with no lock held.
  TurnRequest(CallLimits* limits, const std::string& client, Of what,
              std::function<void(Turn)> on_turn)
      : turns_(limits->TurnsOf(client, what)), on_turn_(std::move(on_turn)) {}

  void Ask();  // Once.
  // False: there is nothing to withdraw, since it was not asked for, or `on_turn` is called.
  bool Withdraw();

 private:
  friend class CallLimits;

  // To the client that has waited longest, if one waits and may have it now.
  static void Give(const std::shared_ptr<TurnsOfClient>& turns, absl::Time now);

  const std::shared_ptr<TurnsOfClient> turns_;
  std::function<void(Turn)> on_turn_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_CALL_LIMITS_H_
