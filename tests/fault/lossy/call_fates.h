// Which calls are lost, repeated, delayed or cut. The fates of a method's calls come in packs, each
// shuffled:
//
//   a pack of 7 for a call of one message each way
//   [request lost] [reply lost] [repeated] [delayed] [handed on] [handed on] [handed on]
//
// So each method has each fate of its kind in each pack, and only the seed, the method and the
// call's number decide which, whatever other calls there are. Thread-safe.
#ifndef TESSERA_TESTS_FAULT_LOSSY_CALL_FATES_H_
#define TESSERA_TESTS_FAULT_LOSSY_CALL_FATES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

enum class Fate { kHandedOn, kRequestLost, kReplyLost, kRepeated, kDelayed, kCut };

// By how many messages the caller and the server send.
enum class CallKind {
  kUnary,         // One each: is not cut.
  kClientStream,  // Many up, one down: is not repeated.
  kServerStream,  // One up, many down: its reply is not lost, but cut.
  kBothStreams,   // Only its beginning is lost or delayed, and it is cut more often.
  kLasting,       // As kBothStreams, and without an end of its own: is cut, unless its beginning is
                  // lost.
};
// Of a method that is linked into this program, such as "tessera.v1.Jobs/GetJob".
CallKind KindOf(const std::string& method);

class CallFates {
 public:
  // A pack has `pack_size` calls, or as many as there are fates.
  CallFates(uint64_t seed, int pack_size) : seed_(seed), pack_size_(pack_size) {}

  struct Call {
    Fate fate = Fate::kHandedOn;
    int delay_ms = 0;
    int cut_after = 0;  // So many messages, of both sides.
  };
  // Of the next call of this method.
  Call Next(const std::string& method) ABSL_LOCKS_EXCLUDED(mu_);
  // A call that was to be cut has been.
  void NoteCut(const std::string& method) ABSL_LOCKS_EXCLUDED(mu_);
  // "tessera.v1.Jobs/GetJob: 20 calls, 3 requests lost, 3 replies lost, 3 repeated, 2 delayed\n",
  // a line for each method that was called.
  std::string Describe() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Method {
    CallKind kind;
    std::mt19937_64 random;
    std::vector<Fate> pack;  // Not used yet.
    int num_calls = 0;
    std::map<Fate, int> counts;
  };
  Method* Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t seed_;
  const size_t pack_size_;
  mutable absl::Mutex mu_;
  std::map<std::string, Method> methods_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_LOSSY_CALL_FATES_H_
