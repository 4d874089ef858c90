#include "client/dashboard/shared_answers.h"

#include <algorithm>
#include <utility>

#include "base/steady_time.h"

namespace tessera::dashboard {

HttpReply SharedAnswers::Get(const std::string& key, absl::FunctionRef<HttpReply()> make) {
  const absl::Time begun = SteadyNow();
  std::shared_ptr<Answer> answer;
  {
    absl::MutexLock lock(&mu_);
    ForgetOld(begun);
    std::shared_ptr<Answer>& known = answers_[key];
    if (known != nullptr) {
      answer = known;  // Its own reference: it may be forgotten meanwhile.
      if (AwaitWithTimeout(&mu_, absl::Condition(&answer->is_made), options_.longest_wait))
        return answer->reply;
      return {504, "text/plain; charset=utf-8", "another request waits for this answer already\n"};
    }
    answer = known = std::make_shared<Answer>();
  }
  // Without the lock: other questions are asked meanwhile.
  HttpReply reply = make();
  const absl::Time now = SteadyNow();
  absl::MutexLock lock(&mu_);
  answer->reply = reply;
  // As long as it took to make: slow servers get time for others between two of these.
  answer->until = now + std::max(options_.kept, now - begun);
  answer->is_made = true;
  return reply;
}

void SharedAnswers::ForgetOld(absl::Time now) {
  for (auto it = answers_.begin(); it != answers_.end();) {
    const bool is_old = it->second->is_made && it->second->until <= now;
    it = is_old ? answers_.erase(it) : std::next(it);
  }
  for (auto it = answers_.begin();
       it != answers_.end() && answers_.size() > options_.max_answers;) {
    // Those that are being made stay: a second one of the same would be made at once.
    it = it->second->is_made ? answers_.erase(it) : std::next(it);
  }
}

}  // namespace tessera::dashboard
