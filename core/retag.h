// retag.h - a tag for memory whose use is known only after it was handed out.
#pragma once

#include "tarn/core/storage.h"

namespace tarn {

/// Moves the memory of a storage from the tag `from` to the tag `to`, e.g. once it is known to be
/// kept for backward; nothing if its tag is another. No effect on wrapped memory. Any thread may
/// call it at any time.
void retag(const Storage& storage, MemoryTag from, MemoryTag to) noexcept;

}  // namespace tarn
