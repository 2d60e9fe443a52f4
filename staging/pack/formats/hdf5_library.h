// Handles and the lock for libhdf5. Debian's libhdf5 is not thread-safe, so every call to it holds the one
// lock of this library. A program that also calls libhdf5 must not do so while another of its threads reads
// HDF5 data here.
//
// Threads: see each class.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <utility>

namespace lockstep::pack {

/// Holds the lock, and stops libhdf5 from printing errors, since they are thrown. Safe from any thread.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::scoped_lock<std::recursive_mutex> lock_;
};

/// Owns a handle and closes it, holding the lock. One thread at a time.
template <herr_t (*Close)(hid_t)>
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  explicit Hdf5Handle(hid_t id) : id_(id) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() {
    if (id_ < 0) return;
    const Hdf5Lock lock;
    Close(id_);
  }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using Hdf5File = Hdf5Handle<H5Fclose>;
using Hdf5Dataset = Hdf5Handle<H5Dclose>;
using Hdf5Space = Hdf5Handle<H5Sclose>;
using Hdf5Type = Hdf5Handle<H5Tclose>;
using Hdf5Properties = Hdf5Handle<H5Pclose>;
using Hdf5Object = Hdf5Handle<H5Oclose>;

}  // namespace lockstep::pack
