// storage.cpp - where a storage's memory goes when its last view is gone.
#include "tarn/core/storage.h"

namespace tarn {

Ref<Storage> Storage::wrap(void* data, size_t bytes, Device device, std::function<void()> release) {
  Ref<Storage> storage(new (detail::FreeList<sizeof(Storage)>::take())
                           Storage(data, bytes, device));
  if (release) storage->release_ = new std::function<void()>(std::move(release));
  return storage;
}

Storage::~Storage() {
  if (__builtin_expect(release_ != nullptr, 0)) {
    (*release_)();
    delete release_;
    return;
  }
  deallocate(allocation_, device_);  // nothing for wrapped memory: its size is 0
}

}  // namespace tarn
