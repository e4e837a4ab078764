// storage.cpp - where a storage's memory goes when its last view is gone.
#include "tarn/core/storage.h"

#include <utility>

#include "tarn/core/error.h"

namespace tarn {

Ref<Storage> Storage::wrap(void* data, size_t bytes, Device device, std::function<void()> release) {
  Ref<Storage> storage(new (detail::FreeList<sizeof(Storage)>::take())
                           Storage(data, bytes, device));
  if (release) storage->release_ = new std::function<void()>(std::move(release));
  return storage;
}

void Storage::drop_memory(const WhyAway& why) {
  delete std::exchange(why_away_, new WhyAway(why));
  deallocate(std::exchange(allocation_, {}), device_);
}

void Storage::adopt(Storage& fresh) {
  TARN_ASSERT(fresh.bytes_ == bytes_ && fresh.device_ == device_ && !fresh.release_);
  deallocate(allocation_, device_);
  allocation_ = std::exchange(fresh.allocation_, {});
  delete std::exchange(why_away_, nullptr);
}

Storage::~Storage() {
  if (__builtin_expect(release_ != nullptr, 0)) {
    (*release_)();
    delete release_;
    return;
  }
  delete why_away_;
  deallocate(allocation_, device_);  // nothing for wrapped memory: its size is 0
}

}  // namespace tarn
