// memory_report.h - what the allocator tells people: the summary and the out-of-memory error.
#pragma once

#include <string>

#include "tarn/core/block_pool.h"

namespace tarn::detail {

/// "512 B", "1.50 KiB", "20.0 MiB".
std::string format_bytes(int64_t bytes);
/// The table behind memory_summary().
std::string describe_memory(Device device, BlockPool& pool, const LedgerDelta& pending);
/// Throws OutOfMemoryError: what was asked for and by whom, sizes, tags, owners, and what to do.
[[noreturn]] void fail_out_of_memory(size_t bytes, Device device, BlockPool& pool,
                                     const LedgerDelta& pending);

}  // namespace tarn::detail
