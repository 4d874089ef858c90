// Answers that all pages share, so that many of them ask the cluster no more than one does.
//
//   page ──┐
//   page ──┼──► Get("jobs") ──► the answer that is kept, or that is being made; else makes one
//   page ──┘
//
// An answer is kept for half a second, or for as long as it took to make: a coordinator that answers
// slowly is asked each question at most half of the time. Errors are answers too. Thread-safe.
#ifndef TESSERA_CLIENT_DASHBOARD_SHARED_ANSWERS_H_
#define TESSERA_CLIENT_DASHBOARD_SHARED_ANSWERS_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "net/http_listener.h"

namespace tessera::dashboard {

class SharedAnswers {
 public:
  struct Options {
    absl::Duration kept = absl::Milliseconds(500);
    absl::Duration longest_wait = absl::Seconds(8);  // For an answer that another call makes.
    size_t max_answers = 64;                         // Kept; those being made come on top.
  };
  explicit SharedAnswers(const Options& options) : options_(options) {}

  // What `make` returned for this key, now or a short while ago. 504: another call is still making it
  // after longest_wait.
  HttpReply Get(const std::string& key, absl::FunctionRef<HttpReply()> make);

 private:
  struct Answer {
    bool is_made = false;
    HttpReply reply;
    absl::Time until;
  };
  void ForgetOld(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  absl::Mutex mu_;
  // What an Answer holds is guarded too.
  std::map<std::string, std::shared_ptr<Answer>> answers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_SHARED_ANSWERS_H_
