// The lock of a hosted job and the parts of the job that it guards. The parts know each other, and
// take no lock of their own: each public method of HostedJob, and each look of a rank's supervisor
// at them, is one critical section, so that an attachment, a failure and an epoch cannot interleave.
//
//   ExecutorSlots ◄── EpochMachine ◄── AttachTable
//        ▲ ▲
//        │ └── SaveForwarder
//        └──── PutForwarder
#ifndef TESSERA_WORKER_KEEPER_JOB_PARTS_H_
#define TESSERA_WORKER_KEEPER_JOB_PARTS_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/coordinator.pb.h"
#include "worker/keeper/attach_table.h"
#include "worker/keeper/epoch_machine.h"
#include "worker/keeper/executor_slot.h"
#include "worker/keeper/job_context.h"
#include "worker/keeper/put_forwarder.h"
#include "worker/keeper/save_forwarder.h"

namespace tessera {

struct JobParts {
  // `context` outlives it.
  JobParts(const JobContext* context, const v1::Job& job)
      : executors(context->local()),
        epochs(context, job, &executors),
        trainers(context, &epochs, &executors),
        saves(context, &executors),
        puts(context, &executors) {}
  JobParts(const JobParts&) = delete;
  JobParts& operator=(const JobParts&) = delete;

  mutable absl::Mutex mu;
  ExecutorSlots executors ABSL_GUARDED_BY(mu);
  EpochMachine epochs ABSL_GUARDED_BY(mu);
  AttachTable trainers ABSL_GUARDED_BY(mu);
  SaveForwarder saves ABSL_GUARDED_BY(mu);
  PutForwarder puts ABSL_GUARDED_BY(mu);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_PARTS_H_
