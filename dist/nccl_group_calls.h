// nccl_group_calls.h - collectives of tarn as calls of NCCL.
#pragma once

#include "tarn/dist/collective.h"
#include "tarn/dist/nccl_group_api.h"

namespace tarn::dist {

/// Enqueues it on the current stream of the communicator's device: packs what is strided, makes one
/// group of NCCL's calls, brings the results home. For a send or receive, `comm` has two ranks.
void run_collective(Communicator& comm, const Collective& c, Clock::time_point deadline);

}  // namespace tarn::dist
