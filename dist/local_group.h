// local_group.h - ranks that are threads of one process: for tests, the tour, and DataParallel.
//
//   run_local(4, [](ProcessGroup& group) { ... });    // four threads, joined; errors reach the
//   caller
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tarn/dist/group.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

/// One group per rank, each to be used by a thread of its own. A rank that lets go of its group has
/// left: the others' collectives with it fail.
std::vector<std::shared_ptr<ProcessGroup>> make_local_groups(int size, GroupOptions options = {});

using RankBody = std::function<void(ProcessGroup&)>;

/// Runs body once per rank, each in a thread that first makes its group, and joins them. If ranks
/// throw, the caller gets the error of the one that failed first; what other ranks wait for then
/// fails at once.
void run_threads(int size, const std::function<std::shared_ptr<ProcessGroup>(int rank)>& make,
                 const RankBody& body);

/// The same for groups whose ranks meet in a store, a new one here. If a rank cannot make its
/// group, those that wait for it there fail at once, with its error.
void run_threads(int size,
                 const std::function<std::shared_ptr<ProcessGroup>(
                     const std::shared_ptr<Store>& store, int rank)>& make,
                 const RankBody& body);

/// run_threads over local groups.
void run_local(int size, const RankBody& body, GroupOptions options = {});

}  // namespace tarn::dist
