// backend.h - THE BOUNDARY, part one: the resources a device offers.
//
// Kernels are the other part (kernels.h). Everything above this line is written once for all
// devices; only registry.cpp knows which backends exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tarn/core/device.h"

namespace tarn {

struct DeviceInfo {
  std::string name;
  size_t total_memory = 0;
  int multiprocessors = 0;  ///< cores on the CPU
  std::string features;     ///< instruction sets or compute capability
};

/// Memory, copies, streams and events of one kind of device.
/// Thread safety: every method may be called from any thread.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual int device_count() const = 0;
  virtual DeviceInfo info(int index) const = 0;

  /// Raw memory from the system; nullptr if there is none left. The caching allocator sits above.
  virtual void* system_allocate(size_t bytes, int index) = 0;
  virtual void system_free(void* ptr, size_t bytes, int index) noexcept = 0;

  /// Page-locked memory of the host, which the device copies to and from while the host goes on;
  /// nullptr if there is none left. The CPU has nothing to lock pages for: ordinary memory.
  virtual void* pinned_allocate(size_t bytes) = 0;
  virtual void pinned_free(void* ptr) noexcept = 0;

  /// The caching allocator hands out `bytes` of a block, and takes the block back, in the order of
  /// its stream. For memory checkers; other backends do nothing.
  virtual void note_taken(void* block, size_t bytes, size_t block_bytes, Stream stream);
  virtual void note_given(void* block, Stream stream) noexcept;

  /// True after an error that no later call recovers from: no work is left on the device.
  virtual bool is_lost() const noexcept { return false; }
  /// True if what is queued on the stream is recorded into a graph instead (capture.h).
  virtual bool is_capturing(Stream) { return false; }

  /// Kernels started so far, by all threads; 0 on a device that does not count.
  virtual uint64_t launch_count() const { return 0; }

  /// Copies in stream order. Either side may be another device of the same kind or the host.
  virtual void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes,
                    Stream stream) = 0;

  virtual Stream default_stream(int index) = 0;
  virtual Stream create_stream(int index, int priority) = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) = 0;
  virtual void synchronize_device(int index) = 0;

  /// Events: a mark in a stream that other streams and the host can wait for.
  virtual void* create_event(int index, bool timing) = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record_event(void* event, Stream stream) = 0;
  virtual void wait_event(void* event, Stream stream) = 0;
  virtual bool query_event(void* event) = 0;
  virtual void synchronize_event(void* event) = 0;  ///< never throws an IndexError
  virtual double elapsed_ms(void* start, void* end) = 0;

  /// Throws the IndexError that a check on the device has found by now and nobody has been told yet
  /// (index_check.h). synchronize and synchronize_device end with it; so does Event::synchronize.
  virtual void throw_late_error(int) {}
};

/// The backend of a device type. Throws DeviceError that says how the library was built.
Backend& backend(DeviceType type);
/// True if the build has it and at least one such device is present.
bool has_backend(DeviceType type);
/// Why has_backend(type) is false, as one sentence; "" if it is true.
std::string why_no_backend(DeviceType type);

/// An event of RAII lifetime over Backend.
class Event {
 public:
  explicit Event(Device device, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  void record(Stream stream);
  void wait(Stream stream) const;  ///< makes `stream` wait, not the host
  bool query() const;
  void synchronize() const;
  /// Milliseconds from `start` to this event; both with timing.
  double elapsed_ms_since(const Event& start) const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Waits until all queued work of a device is done.
void synchronize(Device device = kCPU);

}  // namespace tarn
